"""The command line: the help of every command, tables, JSON, and the replies of slash commands."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cli.conftest import Serve, Talaria
from golden.golden_files import Golden
from talaria.cli.main import cli, main


def commands(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, *path, name)


def test_the_help_of_every_command(
    golden: Golden, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in commands(cli):
        assert main([*path, "--help"]) == 0
        print()
    golden.check("help.txt", capsys.readouterr().out)


SAID = (
    "hello",
    '[[call todo {"items": [{"text": "a", "status": "pending"}]}]][[reply fine]]',
    "[[status 400]]",
    "/title A talk",
)
BEFORE = (("why",), ("sessions", "list"), ("jobs", "list"), ("top", "--once"), ("config", "get"))
COMMANDS = (
    "sessions list", "sessions show work", "sessions search fine", "sessions show no", "jobs list",
    "jobs show news", "jobs history news", "jobs show no", "why", "why --json", "config get model.name",
    "config get model.nam", "token list", "pair list", "plugins list --json", "skills list", "mcp list",
    "model list",
)  # fmt: skip


def shown(talaria: Talaria, *arguments: str) -> str:
    done = talaria(*arguments, env={"COLUMNS": "100"})
    return f"$ talaria {' '.join(arguments)}\n{done.stdout}{done.stderr}[status {done.returncode}]\n\n"


def test_tables_and_json(talaria: Talaria, golden: Golden) -> None:
    golden.check("cli/empty.txt", "".join(shown(talaria, *command) for command in BEFORE))
    for text in SAID:
        talaria("ask", "--session", "work", text)
    talaria("jobs", "add", "the news", "--cron", "0 9 * * 1-5", "--name", "news", "--timezone", "UTC")
    golden.check("cli/filled.txt", "".join(shown(talaria, *command.split()) for command in COMMANDS))


def test_the_answers_of_a_running_gateway(talaria: Talaria, serve: Serve, golden: Golden) -> None:
    serve()
    commands: list[tuple[str, ...]] = [("ask", "--session", "work", text) for text in SAID]
    commands += [("ask", "--json", "[[usage 9 4 3 2]][[reply fine]]"), ("sessions", "list"), ("why",)]
    golden.check("cli/serving.txt", "".join(shown(talaria, *command) for command in commands))


SLASH = (
    "/help", "/status", "/title", "/title One", "/model", "/model nobody/none", "/models", "/tools", "/usage",
    "/sessions", "/jobs", "/memory", "/skills", "/why", "/undo", "/whoami", "/approve", "/stop", "/resume 7",
    "/retry", "/nothing",
)  # fmt: skip


def test_the_replies_of_slash_commands(talaria: Talaria, golden: Golden) -> None:
    talaria("ask", "--session", "work", "[[usage 9 4 3 2]]hello")
    told = "".join(shown(talaria, "ask", "--session", "work", command) for command in SLASH)
    golden.check("slash.txt", told)


def test_the_findings_of_doctor(talaria: Talaria, golden: Golden) -> None:
    """Texts depend on the machine, so only the names are compared; `texts.txt` has the texts."""
    found = json.loads(talaria("doctor", "--json").stdout)
    told = [f"{finding['name']}: {' '.join(finding)}" for finding in found["findings"]]
    golden.check("cli/doctor.txt", "\n".join([*(name for name in found), *told]) + "\n")
