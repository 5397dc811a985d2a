"""The immutable set of tools of one agent: sorted, with unique names and a fingerprint."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from talaria.core.errors import ConfigError
from talaria.core.tools import Tool, ToolSpec

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True, init=False, eq=False)
class ToolSet:
    """Tools sorted by name. Nothing about it can change: a set with more tools is another set.

    Raises `ConfigError` for a name that appears twice or that no provider takes, and for parameters that
    are not a JSON schema of an object.
    """

    tools: tuple[Tool, ...]
    specs: tuple[ToolSpec, ...]
    names: tuple[str, ...]
    fingerprint: str
    _by_name: Mapping[str, Tool]

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        ordered = tuple(sorted(tools, key=lambda tool: tool.spec.name))
        specs = tuple(tool.spec for tool in ordered)
        _check(specs)
        by_name = {tool.spec.name: tool for tool in ordered}
        object.__setattr__(self, "tools", ordered)
        object.__setattr__(self, "specs", specs)
        object.__setattr__(self, "names", tuple(by_name))
        object.__setattr__(self, "fingerprint", _fingerprint(specs))
        object.__setattr__(self, "_by_name", MappingProxyType(by_name))

    def get(self, name: str) -> Tool | None:
        return self._by_name.get(name)

    def with_tools(self, tools: Iterable[Tool]) -> ToolSet:
        """A new set with these as well; this one stays as it is."""
        return ToolSet((*self.tools, *tools))

    def only(self, names: Collection[str]) -> ToolSet:
        """A set of those of its tools that are named; names that it lacks are passed over."""
        return ToolSet(tool for tool in self.tools if tool.spec.name in names)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools)

    def __len__(self) -> int:
        return len(self.tools)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToolSet) and self.tools == other.tools

    def __hash__(self) -> int:
        return hash(self.fingerprint)


def _check(specs: tuple[ToolSpec, ...]) -> None:
    seen: set[str] = set()
    for spec in specs:
        if not _NAME.fullmatch(spec.name):
            raise ConfigError(
                f"{spec.name!r} is not a name for a tool.",
                "Use 1 to 64 letters, digits, underscores and hyphens.",
            )
        if spec.name in seen:
            raise ConfigError(f"Two tools are named {spec.name!r}.", "Tool names must be unique: rename one.")
        seen.add(spec.name)
        if not _is_object_schema(spec.parameters):
            raise ConfigError(f"The parameters of the tool {spec.name!r} are not a JSON schema of an object.")


def _is_object_schema(text: str) -> bool:
    try:
        schema = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return isinstance(schema, dict) and schema.get("type") == "object"


def _fingerprint(specs: tuple[ToolSpec, ...]) -> str:
    """SHA-256 over all that a model is told, each part with its length so that no two lists look alike."""
    digest = hashlib.sha256()
    for spec in specs:
        for part in (spec.name, spec.description, spec.parameters):
            encoded = part.encode()
            digest.update(len(encoded).to_bytes(8, "big"))
            digest.update(encoded)
    return digest.hexdigest()
