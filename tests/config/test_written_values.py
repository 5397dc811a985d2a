"""How values are written to config.toml, and how a person's text for a key is read."""

from __future__ import annotations

import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from talaria.config.decoder import read_text
from talaria.config.edit import edited, replace_config, shown_values, write_secret, write_value
from talaria.config.load import load_text
from talaria.core.errors import ConfigError
from talaria.core.units import Size
from talaria.models.settings import ProviderSettings
from talaria.parts import PARTS


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, ""),
        (True, "true"),
        (False, "false"),
        (5, "5"),
        (0.5, "0.5"),
        ('a "b"', '"a \\"b\\""'),
        (timedelta(minutes=5), '"5m"'),
        ((), "[]"),
        (("a", 2), '["a", 2]'),
    ],
)
def test_a_value_is_written_as_toml(value: object, written: str) -> None:
    assert write_value(value) == written


def test_a_table_is_written_on_one_line() -> None:
    text = write_value(ProviderSettings("http://x/v1"))
    assert text.startswith("{ base_url = ")
    assert text.endswith(" }")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (str, "plain", "plain"),
        (str, '"quoted"', "quoted"),
        (str, "'quoted'", "quoted"),
        (str, '"half', '"half'),
        (str, "[a]", "[a]"),
        (tuple[str, ...], '["a", "b"]', ["a", "b"]),
        (tuple[str, ...], "[a", "[a"),
        (dict[str, int], "{a = 1}", {"a": 1}),
        (dict[str, int], "a = 1", "a = 1"),
        (Size, "500", 500),
        (Size, "5 MiB", "5 MiB"),
    ],
)
def test_what_a_person_writes_for_a_key_is_read(kind: Any, text: str, value: object) -> None:
    assert read_text(kind, text) == value


@pytest.mark.parametrize(
    ("before", "table", "values", "after"),
    [
        ("", ("a",), {"b": 1}, {"a": {"b": 1}}),
        ("", ("a", "b"), {"c": [1, {"d": 2}]}, {"a": {"b": {"c": [1, {"d": 2}]}}}),
        ("[a]\nb = 1\nc = 2\n", ("a",), {"b": None}, {"a": {"c": 2}}),
        ("[a]\nb = 1\n", ("a",), {"b": None, "none": None}, {}),
        ("[a.b]\nc = 1\n", ("a", "b"), {"c": None}, {}),
        ("[a]\nx = 1\n[a.b]\nc = 1\n", ("a", "b"), {"c": None}, {"a": {"x": 1}}),
        ("[z]\nk = 1\n", ("a",), {"b": {"c": 1}}, {"z": {"k": 1}, "a": {"b": {"c": 1}}}),
    ],
)
def test_keys_are_set_and_removed_with_tables_that_become_empty(
    before: str, table: tuple[str, ...], values: dict[str, Any], after: dict[str, Any]
) -> None:
    text = edited(Path("config.toml"), before, table, values)
    assert tomllib.loads(text) == after
    assert text.startswith(before) or not after or None in values.values()


def test_a_table_with_a_comment_stays_and_a_value_is_no_table() -> None:
    text = edited(Path("c"), "[a]  # mine\nb = 1\n", ("a",), {"b": None})
    assert text == "[a]  # mine\n"
    with pytest.raises(ConfigError, match=r"a\.b is no table in c"):
        edited(Path("c"), "[a]\nb = 1\n", ("a", "b"), {"c": 1})


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        replace_config(tmp_path, "x = 1\n")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_secret(tmp_path / "config.toml", "x")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_secret(tmp_path / "none" / "file", "x")


def test_secrets_in_tables_of_plugins_are_not_shown_and_are_redacted(tmp_path: Path) -> None:
    text = """[plugins.weather]
api_key = "wk-1234567890"
botToken = "bt-1234567890"
token_env = "WEATHER_TOKEN"
monkey = "capuchin"
password = "${WEATHER_PASSWORD}"
max_tokens = 5
station = { name = "north", secret = "st-1234567890" }
"""
    loaded = load_text(tmp_path, text, {}, PARTS)
    shown = {
        value.path[2:]: value.toml
        for value in shown_values(loaded.settings, text, {})
        if value.path[0] == "plugins"
    }
    assert shown == {
        ("api_key",): '"(not shown)"',
        ("botToken",): '"(not shown)"',
        ("token_env",): '"WEATHER_TOKEN"',
        ("monkey",): '"capuchin"',
        ("password",): '"${WEATHER_PASSWORD}"',
        ("max_tokens",): "5",
        ("station", "name"): '"north"',
        ("station", "secret"): '"(not shown)"',
    }
    values = {"wk-1234567890", "bt-1234567890", "st-1234567890"}
    assert {secret.value for secret in loaded.secrets} == values
