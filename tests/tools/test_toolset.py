from __future__ import annotations

import dataclasses
import itertools

import msgspec
import pytest

from talaria.core.errors import ConfigError
from talaria.core.tools import ToolSpec
from talaria.testing.changing_tools import ChangingSource
from talaria.tools.function import FunctionTool
from talaria.tools.tool import Findable
from talaria.tools.toolset import MOST_OF_ORIGIN, Family, ToolSet, resolve
from tools.conftest import tool


def test_tools_are_sorted_by_name_whatever_their_order() -> None:
    one, two = tool("beta"), tool("alpha")
    tools = ToolSet([one, two])
    assert tools.names == ("alpha", "beta")
    assert tools.specs == (two.spec, one.spec)
    assert tools == ToolSet([two, one])
    assert tools.fingerprint == ToolSet([two, one]).fingerprint
    assert (len(tools), list(tools), "beta" in tools, "gamma" in tools) == (2, [two, one], True, False)


def test_a_tool_is_found_by_its_name() -> None:
    one = tool("one")
    assert ToolSet([one]).get("one") is one
    assert ToolSet([one]).get("two") is None


def test_two_tools_with_one_name_are_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match="Two tools are named 'same'"):
        ToolSet([tool("same", "a"), tool("same", "b")])
    with pytest.raises(ConfigError, match="'same'"):
        ToolSet([tool("same")]).with_tools([tool("same")])


@pytest.mark.parametrize("name", ["", "with space", "dots.no", "ü", "x" * 65, "a/b"])
def test_a_name_that_no_provider_takes_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match="not a name"):
        ToolSet([tool(name)])


@pytest.mark.parametrize("schema", ["", "nonsense", "[]", '{"type":"string"}', "{}"])
def test_parameters_must_be_the_schema_of_an_object(schema: str) -> None:
    broken = FunctionTool(ToolSpec("broken", "", schema), tool("x").handler)
    with pytest.raises(ConfigError, match="broken"):
        ToolSet([broken])


def test_nobody_who_reads_a_set_can_change_it() -> None:
    tools = ToolSet([tool("one")])
    before = tools.fingerprint
    for name in ("tools", "specs", "names", "fingerprint", "_by_name", "other"):
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
            setattr(tools, name, ())
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
            delattr(tools, name)
    with pytest.raises(TypeError):
        tools._by_name["two"] = tool("two")  # type: ignore[index]
    with pytest.raises(AttributeError):
        tools.specs[0].name = "other"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        tools.tools[0].spec = tools.specs[0]  # type: ignore[misc]
    assert all(type(getattr(tools, name)) is tuple for name in ("tools", "specs", "names"))
    assert not hasattr(tools, "__dict__")
    assert (tools.names, tools.fingerprint) == (("one",), before)


def test_with_tools_is_another_set_and_leaves_the_first_alone() -> None:
    small = ToolSet([tool("one")])
    large = small.with_tools([tool("two")])
    assert (small.names, large.names) == (("one",), ("one", "two"))
    assert small.fingerprint != large.fingerprint


@pytest.mark.parametrize(
    "other",
    [
        [tool("other", "d")],
        [tool("name", "other")],
        [tool("name", "d", '{"type":"object"}')],
        [tool("named", "")],  # the same letters, otherwise divided
        [tool("name", "d"), tool("name2", "d")],
        [],
    ],
)
def test_all_that_a_model_is_told_decides_the_fingerprint(other: list[FunctionTool]) -> None:
    assert ToolSet(other).fingerprint != ToolSet([tool("name", "d")]).fingerprint


def test_equal_sets_are_interchangeable_as_keys() -> None:
    one = tool("one")
    assert {ToolSet([one]): 1}[ToolSet([one])] == 1


# -- resolved from sources ----------------------------------------------------------------------------------

FAMILIES = [Family(f"family{n}", (tool(f"tool{n}"),)) for n in range(3)]


def source(*tools: FunctionTool, name: str = "plug-in") -> ChangingSource:
    made = ChangingSource(name)
    made.offer(*tools)
    return made


def test_neither_order_nor_repetition_of_families_matters() -> None:
    wishes = itertools.permutations(["family0", "family1", "family2"])
    sets = [resolve(FAMILIES, [*wish, "family1"]) for wish in wishes]
    assert all(each == sets[0] for each in sets)
    assert sets[0].names == ("tool0", "tool1", "tool2")
    assert resolve(FAMILIES, []).names == ()


def test_an_unknown_family_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ConfigError) as error:
        resolve([Family("web", (tool("b"),)), Family("files", (tool("a"),)), source()], ["files", "nope"])
    assert str(error.value) == "No tools are called 'nope'. tools.enabled may name: files, web."


def test_a_name_in_two_families_is_an_error_even_if_one_of_them_is_not_enabled() -> None:
    with pytest.raises(ConfigError, match="'same'"):
        resolve([Family("one", (tool("same"),)), Family("two", (tool("same"),))], ["one"])


def test_another_source_counts_without_being_enabled_and_as_of_now() -> None:
    plug_in = source(tool("extra"))
    before = resolve([*FAMILIES, plug_in], ["family0"])
    plug_in.offer(tool("extra", "changed"), tool("more"))
    after = resolve([*FAMILIES, plug_in], ["family0"])
    assert (before.names, after.names) == (("extra", "tool0"), ("extra", "more", "tool0"))
    assert before.fingerprint != after.fingerprint


def test_a_tool_of_another_source_that_cannot_be_offered_is_left_out_with_a_reason() -> None:
    broken = FunctionTool(ToolSpec("broken", "", "[]"), tool("x").handler)
    one = source(tool("tool1"), tool("fine"), tool("no spaces"), broken, name="one")
    two = source(tool("fine"), tool("also"), name="two")
    told: list[str] = []
    resolved = resolve([*FAMILIES, one, two], ["family0"], told.append)
    assert resolved.names == ("also", "fine", "tool0")
    assert resolved.get("fine") is one.tools()[1]
    assert told == [
        "A tool of one is left out: Two tools are named 'tool1'. Tool names must be unique: rename one.",
        "A tool of one is left out: 'no spaces' is not a name for a tool. "
        "Use 1 to 64 letters, digits, underscores and hyphens.",
        "A tool of one is left out: The parameters of the tool 'broken' are not a JSON schema of an object.",
        "A tool of two is left out: Two tools are named 'fine'. Tool names must be unique: rename one.",
    ]


def tool_from(origin: str, name: str, description: str = "") -> FunctionTool:
    made = tool(name, description)
    return dataclasses.replace(made, spec=msgspec.structs.replace(made.spec, origin=origin))


def test_each_tool_has_the_origin_of_its_spec_or_the_name_of_its_source() -> None:
    server = source(tool_from("mcp:git", "git_log"), tool("plain"), tool_from("family0", "false"), name="mcp")
    tools = resolve([*FAMILIES, server], ["family0"])
    origins = {name: tools.origin(name) for name in (*tools.names, "unknown")}
    assert origins == {
        "git_log": "mcp:git",
        "plain": "mcp",
        "false": "mcp",
        "tool0": "family0",
        "unknown": "",
    }
    assert [(each.origin, each.names) for each in tools.only(("git_log", "tool0")).families()] == [
        ("family0", ("tool0",)),
        ("mcp:git", ("git_log",)),
    ]


def test_a_source_that_floods_with_tools_gets_no_more_than_its_share() -> None:
    told: list[str] = []
    flood = source(
        *(tool_from("mcp:flood", f"flood_{n % 5000}") for n in range(10_000)),
        tool("tool_search"),
        tool("tool_call"),
        tool_from("mcp:other", "fine"),
        tool_from("mcp:other", "long", "x" * 70_000),
        tool_from("mcp:other", "fine"),
        name="mcp",
    )
    tools = resolve([*FAMILIES, flood], ["family0"], told.append)
    assert {each.origin: len(each.names) for each in tools.families()} == {
        "family0": 1,
        "mcp:flood": MOST_OF_ORIGIN,
        "mcp:other": 1,
    }
    assert len(set(tools.names)) == len(tools.names) == MOST_OF_ORIGIN + 2
    assert len(told) == 6
    assert told[-1] == "8999 more tools of mcp are left out."


class FindingSource(ChangingSource):
    def findables(self) -> tuple[Findable, ...]:
        return (Findable("pdf", "Reads PDF files.", "skill"),)


def test_what_can_be_found_goes_with_the_tool_that_takes_its_name() -> None:
    skills = FindingSource("skills")
    skills.offer(tool("skill"))
    tools = resolve([*FAMILIES, skills], ["family0"])
    assert [each.name for each in tools.findables] == ["pdf"]
    assert tools.only(("skill",)).findables == tools.findables
    assert tools.only(("tool0",)).findables == ()
