"""Views: structs that show records to people and programs, with the names and types of an answer."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

V = TypeVar("V", bound=msgspec.Struct)


def view_of(kind: type[V], *sources: object, **own: Any) -> V:
    """Return a view. Its fields are those in `own`, and attributes of the same name of the first source that
    has them. Raises `TypeError` if a field without a default is in none."""
    names = kind.__struct_fields__
    found = {
        name: getattr(source, name) for source in reversed(sources) for name in names if hasattr(source, name)
    }
    return kind(**found | own)
