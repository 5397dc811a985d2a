from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from talaria.core.errors import ConfigError
from talaria.mcp import pins
from talaria.mcp.launch import install_folders
from talaria.mcp.pins import READER, PinnedTool
from talaria.mcp.texts import MAX_NAME, clean, clean_schema, offered_name

SCHEMA = '{"properties":{},"type":"object"}'


def tools(*names: str, text: str = "Does it.") -> dict[str, PinnedTool]:
    return {name: PinnedTool(text, SCHEMA) for name in names}


def test_the_first_listing_is_approved_and_later_ones_are_proposed(tmp_path: Path) -> None:
    first = pins.note_listing(tmp_path, "s", "id", tools("a", "b"))
    assert {tool: pinned.name for tool, pinned in first.offered().items()} == {"a": "mcp_s_a", "b": "mcp_s_b"}
    later = pins.note_listing(tmp_path, "s", "id", {**tools("a", text="Other."), **tools("c")})
    assert set(later.offered()) == {"a"}
    assert later.offered()["a"].description == "Does it."
    assert set(later.proposed) == {"a", "c"}
    seen = pins.proposed(tmp_path, "s")
    assert [change.tool for change in pins.approve(tmp_path, "s", seen)] == ["a", "c"]
    now = pins.read_pins(tmp_path)["s"]
    assert (set(now.offered()), now.proposed) == ({"a", "c"}, {})
    assert now.offered()["a"].description == "Other."
    assert pins.note_listing(tmp_path, "s", "id", tools("b")).offered().keys() == {"b"}  # it is back


def test_a_change_that_nobody_has_seen_is_not_approved(tmp_path: Path) -> None:
    pins.note_listing(tmp_path, "s", "id", tools("a"))
    pins.note_listing(tmp_path, "s", "id", tools("a", "b", "c", text="Shown."))
    seen = pins.proposed(tmp_path, "s")
    pins.note_listing(tmp_path, "s", "id", {**tools("a", "d", text="Swapped."), **tools("b", text="Shown.")})
    assert [change.tool for change in pins.approve(tmp_path, "s", seen)] == ["b"]
    now = pins.read_pins(tmp_path)["s"]
    assert {tool: each.description for tool, each in now.offered().items()} == {
        "a": "Does it.",
        "b": "Shown.",
    }
    assert set(now.proposed) == {"a", "d"}


def test_a_hint_that_changes_waits_for_approval_too(tmp_path: Path) -> None:
    pins.note_listing(tmp_path, "s", "id", {"a": PinnedTool("Does it.", SCHEMA)})
    later = pins.note_listing(tmp_path, "s", "id", {"a": PinnedTool("Does it.", SCHEMA, only_reads=True)})
    assert not later.offered()["a"].only_reads
    assert "+It says of itself: only reads." in pins.proposed(tmp_path, "s")[0].lines


def test_another_command_is_another_server(tmp_path: Path) -> None:
    pins.note_listing(tmp_path, "s", "id", tools("a"))
    again = pins.note_listing(tmp_path, "s", "other", tools("a", text="Other."))
    assert again.offered()["a"].description == "Other."
    pins.forget(tmp_path, "s")
    assert pins.read_pins(tmp_path) == {}


def test_names_are_unique_over_servers_fit_and_never_change(tmp_path: Path) -> None:
    long = "x" * 100
    first = pins.note_listing(tmp_path, "a", "id", {**tools("b_c", "b.c", "b c", long), **tools(READER)})
    second = pins.note_listing(tmp_path, "a_b", "id", tools("c", "resources"))
    names = [each.name for found in (first, second) for each in found.approved.values()]
    assert len(set(names)) == len(names)
    assert all(len(name) <= MAX_NAME and name.isascii() and " " not in name for name in names)
    assert first.approved["b_c"].name == "mcp_a_b_c"
    assert first.approved[READER].name == "mcp_a_resources"
    assert second.approved["c"].name != "mcp_a_b_c"
    again = pins.note_listing(tmp_path, "a", "id", {**tools("b c", "b.c", long, "b_c"), **tools(READER)})
    assert again == first
    assert offered_name("a", long, ()) == offered_name("a", long, ())


def test_a_name_that_waits_for_approval_is_not_given_to_another_server(tmp_path: Path) -> None:
    pins.note_listing(tmp_path, "a", "id", tools("x"))
    pins.note_listing(tmp_path, "a", "id", tools("x", "b_c"))
    pins.note_listing(tmp_path, "a_b", "id", tools("c"))
    assert pins.note_listing(tmp_path, "a", "id", tools("x", "b_c")).proposed["b_c"].name == "mcp_a_b_c"
    pins.approve(tmp_path, "a", pins.proposed(tmp_path, "a"))
    names = [tool.name for found in pins.read_pins(tmp_path).values() for tool in found.approved.values()]
    assert len(set(names)) == len(names) == 3


def test_a_broken_file_of_pins_is_named(tmp_path: Path) -> None:
    (tmp_path / "mcp").mkdir()
    (tmp_path / "mcp/pins.json").write_text("{")
    with pytest.raises(ConfigError, match=r"pins\.json"):
        pins.read_pins(tmp_path)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\nline", "plain\ttext\nline"),
        ("a\r\nb\rc\u2028d", "a\nb\nc\nd"),
        ("\x1b[31mred\x1b[0m\x1b]8;;http://x\x07link", "redlink"),
        ("\u202eabc\u202c\u2066\u200b\ufeff\x00\x9b", "abc"),
        ("tag\U000e0041\U000e007f, half\ud800", "tag, half"),
        ("family \U0001f468\u200d\U0001f469 \u2764\ufe0f", "family \U0001f468\u200d\U0001f469 \u2764\ufe0f"),
    ],
)
def test_text_is_shown_as_it_reads(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_schemas_are_cleaned_and_hidden_names_are_refused() -> None:
    schema = {"$schema": "x", "type": "object", "properties": {"a": {"description": "\x1b[1mb\u202e"}}}
    assert clean_schema(schema) == {"type": "object", "properties": {"a": {"description": "b"}}}
    words = {name: {"description": "\x1b[1mb\u202e"} for name in ("const", "enum", "required")}
    assert clean_schema({"properties": words}) == {
        "properties": {name: {"description": "b"} for name in words}
    }  # names of properties like any other
    hidden: tuple[dict[str, object], ...] = (
        {"properties": {"a\u200b": {}}},
        {"enum": ["\u202e"]},
        {"const": "\x1b[1m"},
        {"enum": [["a", ["\u202e"]]]},
        {"required": "\u202e"},
    )
    for bad in hidden:
        with pytest.raises(ValueError, match="hidden"):
            clean_schema(bad)


def test_an_environment_reads_an_interpreter_and_no_other_folder(tmp_path: Path) -> None:
    """A server that may write its own environment must not choose by it what it reads."""
    program, keys, python = (tmp_path / name for name in ("env/bin/serve", "keys", "python/bin"))
    for folder in (program.parent, keys, python):
        folder.mkdir(parents=True)
    (python / "python3.11").touch()
    settings = tmp_path / "env/pyvenv.cfg"
    settings.write_text(f"home = {python}\n")
    assert install_folders(program) == [tmp_path / "env", python]
    settings.write_text(f"home = {keys}\n")
    assert install_folders(program) == [tmp_path / "env"]


def test_the_file_is_for_this_user_alone(tmp_path: Path) -> None:
    pins.note_listing(tmp_path, "s", "id", tools("a"))
    path = tmp_path / "mcp/pins.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert msgspec.json.decode(path.read_bytes())["s"]["identity"] == "id"
