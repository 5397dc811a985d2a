from __future__ import annotations

import dataclasses

import pytest

from talaria.core.errors import ConfigError
from talaria.core.tools import ToolSpec
from talaria.tools.function import FunctionTool
from talaria.tools.toolset import ToolSet
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
