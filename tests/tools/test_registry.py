from __future__ import annotations

import itertools

import msgspec
import pytest

from talaria.core.errors import ConfigError
from talaria.core.tools import Risk
from talaria.tools.registry import Registry, builtin_registry
from talaria.tools.settings import FAMILIES, ToolSettings
from tools.conftest import tool

TEN = {f"family{n}": (tool(f"tool{n}"),) for n in range(10)}


def test_neither_order_nor_repetition_of_families_matters() -> None:
    registry = Registry(TEN)
    sets = {id(registry.resolve(wish)) for wish in itertools.permutations(["family1", "family2", "family3"])}
    assert sets == {id(registry.resolve(["family3", "family1", "family2", "family1"]))}


def test_an_unknown_family_is_an_error_that_names_the_known_ones() -> None:
    registry = Registry({"files": (tool("a"),), "web": (tool("b"),)})
    with pytest.raises(ConfigError) as error:
        registry.resolve(["files", "nope"])
    assert str(error.value) == "No tools are called 'nope'. tools.enabled may name: files, web."


def test_a_name_in_two_families_is_an_error_before_anything_is_resolved() -> None:
    with pytest.raises(ConfigError, match="'same'"):
        Registry({"one": (tool("same"),), "two": (tool("same"),)})


def test_no_families_are_an_empty_set() -> None:
    assert Registry(TEN).resolve([]).names == ()


def test_only_the_sets_used_last_are_kept() -> None:
    registry = Registry(TEN)
    first = registry.resolve(["family0"])
    second = registry.resolve(["family1"])
    for n in range(2, 8):
        registry.resolve([f"family{n}"])
    assert registry.resolve(["family0"]) is first  # eight are kept, and this one is now the newest
    registry.resolve(["family8"])
    assert registry.resolve(["family0"]) is first
    again = registry.resolve(["family1"])
    assert again is not second
    assert again == second


def test_the_built_in_families_are_the_ones_that_config_may_name() -> None:
    assert builtin_registry(ToolSettings()).families == tuple(sorted(FAMILIES))


def test_the_built_in_tools_say_rightly_what_they_do() -> None:
    tools = builtin_registry(ToolSettings()).resolve(FAMILIES)
    flags = {spec.name: (spec.risk, spec.idempotent, spec.read_only) for spec in tools.specs}
    reads = (Risk.NONE, True, True)
    assert flags == {
        "edit_file": (Risk.FILES, False, False),
        "list_files": reads,
        "read_file": reads,
        "search_files": reads,
        "send_file": (Risk.NONE, True, False),
        "todo": (Risk.NONE, True, False),
        "write_file": (Risk.FILES, True, False),
    }


def test_the_built_in_parameters_are_canonical_and_the_contracts() -> None:
    contract = {
        "edit_file": {"path", "old", "new"},
        "list_files": {"path", "pattern"},
        "read_file": {"path", "offset", "limit", "column"},
        "search_files": {"pattern", "path"},
        "send_file": {"path"},
        "todo": {"items"},
        "write_file": {"path", "content"},
    }
    specs = builtin_registry(ToolSettings()).resolve(FAMILIES).specs
    assert {spec.name for spec in specs} == set(contract)
    for spec in specs:
        schema = msgspec.json.decode(spec.parameters)
        assert msgspec.json.encode(schema, order="sorted").decode() == spec.parameters
        assert set(schema["properties"]) == contract[spec.name]
        assert spec.description
        assert all(inner["description"] for inner in schema["properties"].values())


def test_a_set_built_again_has_the_same_bytes() -> None:
    one, other = (builtin_registry(ToolSettings()).resolve(FAMILIES) for _ in range(2))
    assert one.fingerprint == other.fingerprint
