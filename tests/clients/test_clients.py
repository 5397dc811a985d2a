"""Real clients against a gateway: openai-python whole, and the short form of all others that are installed.

`./dev clients` runs every feature of each of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from clients import installation
from clients.__main__ import BEGIN, DOCS, END
from clients.installation import SCRIPTS, read_pins
from clients.servers import Servers
from clients.table import CLIENTS, FEATURES, Client, Report, check, markdown
from support.gateway import TOKEN, in_process
from talaria.testing.model_server import ModelServer

SLOW = ("frameworks", "crews", "dspy", "more-coders")
SHORT = ("plain", "streamed tool loop")
pytestmark = pytest.mark.timeout(600)  # importing a client takes a minute on a machine with other work


async def report_of(
    home: Path, client: Client, command: list[str], features: tuple[str, ...] = tuple(FEATURES)
) -> Report:
    async with ModelServer() as model, in_process(home, model) as api:
        servers = Servers(api.url, TOKEN, model.base_url.removesuffix("/v1"))
        return await asyncio.to_thread(check, client, command, servers, features)


async def test_every_feature_of_openai_python(tmp_path: Path) -> None:
    client = CLIENTS[0]
    report = await report_of(tmp_path, client, [sys.executable, str(SCRIPTS / client.script)])
    assert report.is_good, report.notes
    assert [feature for feature, cell in report.cells.items() if cell == "–"] == ["hand-off"]


@pytest.mark.parametrize(
    "client",
    [
        pytest.param(client, id=client.name, marks=pytest.mark.long if client.environment in SLOW else ())
        for client in CLIENTS[1:]
    ],
)
async def test_the_short_form_of_every_client_that_is_installed(tmp_path: Path, client: Client) -> None:
    if (command := client.command()) is None:
        why = installation.missing(client.environment)
        pytest.skip(f"{client.name}: {why}: ./dev clients --install {client.environment}")
    report = await report_of(tmp_path, client, command, SHORT)
    assert report.is_good, report.notes


async def test_a_feature_that_a_script_does_not_tell_about_has_failed(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text(
        "import sys, json\n"
        "print(json.dumps({'versions': {'it': '1'}}))\n"
        "print(json.dumps({'feature': 'plain', 'ok': True}))\n"
        "print(json.dumps({'feature': 'chain', 'cannot': 'is old'}))\n"
        "print(json.dumps({'feature': 'files', 'ok': False, 'why': 'none came'}))\n"
        "sys.exit('it broke')\n"
    )
    servers = Servers("http://127.0.0.1:1", "t", "http://127.0.0.1:2")
    report = check(Client("it", "", "broken.py"), [sys.executable, str(script)], servers)
    assert (report.cells["plain"], report.cells["chain"], report.cells["files"]) == ("ok", "–", "✗")
    assert (report.cells["usage"], report.notes["usage"]) == ("✗", "it broke")
    assert not report.is_good
    told = markdown([report], "this")
    assert "- **plain**: an answer" in told
    assert "| **it** | ok |" in told
    assert "| it | it 1 | is old (chain); none came (files);" in told


def test_the_docs_have_a_good_table_of_the_pinned_versions() -> None:
    table = DOCS.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in table.splitlines()]
    cells = {row[0]: row[1:] for row in rows if len(row) == 1 + len(FEATURES)}
    assert [*cells.pop("")] == [*FEATURES]
    assert [name for name in cells if "---" not in name] == [client.name for client in CLIENTS]
    for client in CLIENTS:
        assert set(cells[client.name]) <= {"ok", "–"}
    python, node = read_pins()
    clients = {
        name: each
        for name, each in ({**python, **node}).items()
        if not name.startswith(("mcp-", "import-", "generators-"))
    }
    for pinned in clients.values():
        for package, version in pinned.items():
            name = package.partition("[")[0]
            if name != "zod":
                assert f"{name} {version}" in table, f"{name}: run ./dev clients --docs"


def test_clients_are_installed_outside_the_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TALARIA_CLIENTS", str(tmp_path))
    assert installation.folder() == tmp_path
    assert all(client.command() is None for client in CLIENTS)
    monkeypatch.delenv("TALARIA_CLIENTS")
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path))
    assert installation.folder() == tmp_path / "talaria" / "clients"


def test_a_half_installed_program_of_node_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TALARIA_CLIENTS", str(tmp_path))
    wanted = read_pins()[1]["coders"]
    (tmp_path / "coders").mkdir()
    (tmp_path / "coders/.installed").write_text(json.dumps(wanted))
    modules = tmp_path / "coders/node_modules"
    native = f"some-{sys.platform}-x64"
    for name in wanted:
        (modules / name).mkdir(parents=True)
        manifest = {"bin": {"it": "it.exe"}, "optionalDependencies": {native: "1", "other": "1"}}
        (modules / name / "package.json").write_text(json.dumps(manifest))
        (modules / name / "it.exe").write_bytes(b"\x7fELF")
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    assert "has no package for this platform" in installation.missing("coders")
    (modules / native).mkdir()
    (modules / native / "package.json").touch()
    assert not installation.missing("coders")
    (modules / name / "it.exe").write_text('echo "Error: native binary not installed." >&2\n')
    assert "is a placeholder" in installation.missing("coders")
    assert all(client.command() is None for client in CLIENTS if client.environment == "coders")
    (modules / name / "it.exe").unlink()
    assert "half installed" in installation.missing("coders")
