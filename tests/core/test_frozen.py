"""Nothing in core can be changed after it was made."""

from __future__ import annotations

import importlib
import pkgutil

import msgspec

import talaria.core


def core_structs() -> set[type[msgspec.Struct]]:
    found: set[type[msgspec.Struct]] = set()
    for info in pkgutil.iter_modules(talaria.core.__path__, "talaria.core."):
        module = importlib.import_module(info.name)
        found |= {
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == info.name
        }
    return found


def test_every_struct_is_frozen() -> None:
    structs = core_structs()
    assert len(structs) > 40
    assert [kind for kind in structs if not kind.__struct_config__.frozen] == []


def test_no_struct_holds_a_list_that_a_reader_could_change() -> None:
    held = {
        f"{kind.__name__}.{field.name}"
        for kind in core_structs()
        for field in msgspec.structs.fields(kind)
        if getattr(field.type, "__origin__", field.type) in (list, set)
    }
    assert held == set()
