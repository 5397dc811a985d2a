"""The immutable set of tools of one agent, and how it is resolved from the sources of tools."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from talaria.core.errors import ConfigError
from talaria.core.tools import Tool, ToolSource, ToolSpec

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_log = logging.getLogger("talaria.tools")


@dataclass(frozen=True, slots=True, init=False, eq=False)
class ToolSet:
    """Tools sorted by name, with a fingerprint of all that a model is told. A set never changes.

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
        by_name: dict[str, Tool] = {}
        for tool in ordered:
            if problem := _problem(tool.spec, by_name):
                raise problem
            by_name[tool.spec.name] = tool
        object.__setattr__(self, "tools", ordered)
        object.__setattr__(self, "specs", specs)
        object.__setattr__(self, "names", tuple(by_name))
        object.__setattr__(self, "fingerprint", _fingerprint(specs))
        object.__setattr__(self, "_by_name", MappingProxyType(by_name))

    def get(self, name: str) -> Tool | None:
        return self._by_name.get(name)

    def with_tools(self, tools: Iterable[Tool]) -> ToolSet:
        """Return another set that has these tools as well."""
        return ToolSet((*self.tools, *tools))

    def only(self, names: Collection[str]) -> ToolSet:
        """Return another set with the tools that are named; unknown names are passed over."""
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


@dataclass(frozen=True, slots=True)
class Family:
    """A built-in source, whose tools never change."""

    name: str
    members: tuple[Tool, ...]
    is_builtin: bool = True

    def tools(self) -> tuple[Tool, ...]:
        return self.members

    def subscribe(self, changed: Callable[[], None]) -> None:
        pass


def resolve(
    sources: Sequence[ToolSource], enabled: Collection[str], warn: Callable[[str], None] = _log.warning
) -> ToolSet:
    """Return the tools of all sources, as of now.

    Of built-in sources only those that `enabled` names count. Raises `ConfigError` for a name that no
    built-in source has, and for two built-in tools that share a name, whether they are enabled or not.

    A tool of another source is left out, and `warn` is told why, if its name is taken or its spec is faulty.
    The names of all built-in tools are taken, because some of them mean something to the gateway.
    """
    builtin = {source.name: source.tools() for source in sources if source.is_builtin}
    unknown = sorted(set(enabled) - builtin.keys())
    if unknown:
        raise ConfigError(
            f"No tools are called {', '.join(map(repr, unknown))}.",
            f"tools.enabled may name: {', '.join(sorted(builtin)) or 'nothing yet'}.",
        )
    taken = set(ToolSet(tool for tools in builtin.values() for tool in tools).names)
    chosen = [tool for name in sorted(set(enabled)) for tool in builtin[name]]
    for source in sources:
        for tool in () if source.is_builtin else source.tools():
            problem = _problem(tool.spec, taken)
            if problem is None:
                taken.add(tool.spec.name)
                chosen.append(tool)
            else:
                warn(f"A tool of {source.name} is left out: {problem.user_text} {problem.hint}".strip())
    return ToolSet(chosen)


def _problem(spec: ToolSpec, taken: Collection[str]) -> ConfigError | None:
    """Return why a tool cannot be offered beside those whose names are taken; None if it can."""
    if not _NAME.fullmatch(spec.name):
        return ConfigError(
            f"{spec.name[:100]!r} is not a name for a tool.",
            "Use 1 to 64 letters, digits, underscores and hyphens.",
        )
    if spec.name in taken:
        return ConfigError(f"Two tools are named {spec.name!r}.", "Tool names must be unique: rename one.")
    try:
        schema = msgspec.json.decode(spec.parameters)
    except msgspec.DecodeError:
        schema = None
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return ConfigError(f"The parameters of the tool {spec.name!r} are not a JSON schema of an object.")
    return None


def _fingerprint(specs: tuple[ToolSpec, ...]) -> str:
    """Return the SHA-256 of all that a model is told, each part with its length so that no two lists look
    alike."""
    digest = hashlib.sha256()
    for spec in specs:
        for part in (spec.name, spec.description, spec.parameters):
            encoded = part.encode()
            digest.update(len(encoded).to_bytes(8, "big"))
            digest.update(encoded)
    return digest.hexdigest()
