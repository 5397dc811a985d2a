"""`[tools] env`: the variables of commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from talaria.config.edit import shown_values
from talaria.config.load import held_secrets, load_text, named_variables, read_secrets
from talaria.core.errors import ConfigError
from talaria.core.settings import Examination
from talaria.parts import PARTS
from talaria.tools.checks import check_environment
from talaria.tools.settings import ToolSettings, command_environ

GATEWAY = {"GITHUB_TOKEN": "ghp_0123456789", "OPENROUTER_API_KEY": "sk-or-0123456789", "EMPTY": ""}
TEXT = """
[tools.env]
GH_TOKEN = "${GITHUB_TOKEN}"
MISSING = "${NOT_THERE}"
EMPTY = "${EMPTY}"
CI = "1"
NODE_ENV = "production"
DEPLOY_KEY = "written-here-0123"
"""


def settings(text: str = TEXT) -> ToolSettings:
    return load_text(Path("/home"), text, GATEWAY, PARTS).settings.tools


def test_commands_get_the_named_variables_and_no_other() -> None:
    assert command_environ(settings(), GATEWAY) == {
        "GH_TOKEN": "ghp_0123456789",
        "EMPTY": "",
        "CI": "1",
        "NODE_ENV": "production",
        "DEPLOY_KEY": "written-here-0123",
    }
    assert command_environ(ToolSettings(), GATEWAY) == {}


def test_a_variable_that_is_not_set_is_reported_with_its_place() -> None:
    loaded = load_text(Path("/home"), TEXT, GATEWAY, PARTS)
    assert loaded.warnings == ("config.toml line 4: tools.env.MISSING names NOT_THERE, which is not set.",)


def test_values_are_secrets_and_not_shown() -> None:
    loaded = load_text(Path("/home"), TEXT, GATEWAY, PARTS)
    assert read_secrets(loaded.settings.tools, Path("/home"), GATEWAY) == {
        ("GITHUB_TOKEN", "ghp_0123456789"),
        ("DEPLOY_KEY", "written-here-0123"),
    }
    assert held_secrets(loaded.settings) == [("tools", "env", "DEPLOY_KEY")]
    assert {"GITHUB_TOKEN", "NOT_THERE", "EMPTY"} <= set(named_variables(loaded.settings))
    shown = {each.path[-1]: each.plain for each in shown_values(loaded.settings, TEXT, {})}
    assert shown["DEPLOY_KEY"] == "(not shown)"
    assert shown["GH_TOKEN"] == "${GITHUB_TOKEN}"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('A = "Bearer ${TOKEN}"', "with nothing around it"),
        ('A = "${}"', "with nothing around it"),
        ('A = "a\\u0000b"', "with nothing around it"),
        ('"A B" = "x"', "the name of a variable that a shell can have"),
        ('PS4 = "$(date)"', "the name of a variable that a shell can have"),
        ("A = 1", "a text in quotes"),
    ],
)
def test_bad_lines_are_refused_without_their_value(line: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        settings(f"[tools.env]\n{line}")
    assert "Bearer" not in str(caught.value)


async def test_doctor_warns_of_a_value_that_stands_in_the_file() -> None:
    examination = Examination(Path("/home"), settings(), GATEWAY)
    (finding,) = [finding async for finding in check_environment(examination)]
    assert "tools.env.DEPLOY_KEY stands in config.toml" in finding.text
    assert finding.command == "talaria config set tools.env.DEPLOY_KEY '${DEPLOY_KEY}'"
    assert "written-here" not in str(finding)
