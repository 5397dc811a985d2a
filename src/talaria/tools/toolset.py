"""The immutable set of tools of one agent, and how it is resolved from the sources of tools."""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from talaria.core.errors import ConfigError
from talaria.core.tools import TOOL_CALL, TOOL_SEARCH, ToolSpec
from talaria.tools.settings import FAMILIES
from talaria.tools.tool import BuiltinSource, Findable, Tool, ToolSource

MOST_OF_ORIGIN = 1000
_MOST_CHARS = 64 << 10  # of a description and its schema
_MOST_WARNINGS = 5  # of one source
_SPEC_BYTES = len(b',{"type":"function","function":{"name":"","description":,"parameters":}}')
_DIGEST_CHARS = 20
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_log = logging.getLogger("talaria.tools")


class ToolFamily(NamedTuple):
    """The tools of one origin, and how many bytes they take in a request."""

    origin: str
    names: tuple[str, ...]
    size: int
    is_builtin: bool


@dataclass(frozen=True, slots=True, init=False, eq=False)
class ToolSet:
    """Tools sorted by name, with a fingerprint of all that a model is told. A set never changes.

    `origins` has the origin of each tool whose spec has none, and `findables` is what `tool_search` finds
    beside them. Raises `ConfigError` for a name that appears twice or that no provider takes, and for
    parameters that are not a JSON schema of an object.
    """

    tools: tuple[Tool, ...]
    specs: tuple[ToolSpec, ...]
    names: tuple[str, ...]
    fingerprint: str
    findables: tuple[Findable, ...]
    _by_name: Mapping[str, Tool]
    _origins: Mapping[str, str]

    def __init__(
        self,
        tools: Iterable[Tool] = (),
        origins: Mapping[str, str] = MappingProxyType({}),
        findables: Iterable[Findable] = (),
    ) -> None:
        ordered = tuple(sorted(tools, key=lambda tool: tool.spec.name))
        by_name: dict[str, Tool] = {}
        for tool in ordered:
            if problem := _problem(tool.spec, by_name):
                raise problem
            by_name[tool.spec.name] = tool
        self._fill(by_name, MappingProxyType(dict(origins)), tuple(findables))

    def _fill(
        self, by_name: dict[str, Tool], origins: Mapping[str, str], findables: tuple[Findable, ...]
    ) -> None:
        specs = tuple(tool.spec for tool in by_name.values())
        object.__setattr__(self, "tools", tuple(by_name.values()))
        object.__setattr__(self, "specs", specs)
        object.__setattr__(self, "names", tuple(by_name))
        object.__setattr__(self, "fingerprint", _fingerprint(specs))
        object.__setattr__(self, "findables", findables)
        object.__setattr__(self, "_by_name", MappingProxyType(by_name))
        object.__setattr__(self, "_origins", origins)

    def get(self, name: str) -> Tool | None:
        return self._by_name.get(name)

    def origin(self, name: str) -> str:
        """Return where a tool comes from; an empty text for an unknown one."""
        tool = self._by_name.get(name)
        return "" if tool is None else self._origins.get(name) or tool.spec.origin

    def families(self) -> tuple[ToolFamily, ...]:
        """Return the tools by origin, in the order of origins."""
        members: dict[str, list[ToolSpec]] = {}
        for spec in self.specs:
            members.setdefault(self.origin(spec.name), []).append(spec)
        return tuple(
            ToolFamily(
                origin,
                tuple(spec.name for spec in specs),
                sum(map(spec_size, specs)),
                is_builtin=origin in FAMILIES,
            )
            for origin, specs in sorted(members.items())
        )

    def with_tools(self, tools: Iterable[Tool]) -> ToolSet:
        """Return another set that has these tools as well."""
        return ToolSet((*self.tools, *tools), self._origins, self.findables)

    def only(self, names: Collection[str]) -> ToolSet:
        """Return another set with the tools that are named; unknown names are passed over."""
        named = frozenset(names)
        chosen = ToolSet.__new__(ToolSet)
        chosen._fill(  # the tools were checked when this set was made
            {name: tool for name, tool in self._by_name.items() if name in named},
            self._origins,
            tuple(each for each in self.findables if each.tool in named),
        )
        return chosen

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools)

    def __len__(self) -> int:
        return len(self.tools)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToolSet) and self.tools == other.tools and self.findables == other.findables

    def __hash__(self) -> int:
        return hash(self.fingerprint)


@dataclass(frozen=True, slots=True)
class Family(BuiltinSource):
    """A source whose tools never change. `release` is called when it is closed."""

    name: str
    members: tuple[Tool, ...]
    is_builtin: bool = True
    release: Callable[[], None] | None = None

    def tools(self) -> tuple[Tool, ...]:
        return self.members

    def close(self) -> None:
        if self.release is not None:
            self.release()


def resolve(
    sources: Sequence[ToolSource], enabled: Collection[str], warn: Callable[[str], None] = _log.warning
) -> ToolSet:
    """Return the tools of all sources, as of now.

    Of built-in sources only those that `enabled` names count. Raises `ConfigError` for a name that no
    built-in source has, and for two built-in tools that share a name, whether they are enabled or not.

    A tool of another source is left out, and `warn` is told why, if its name is taken, its spec is faulty, or
    its origin has `MOST_OF_ORIGIN` tools already. The names of all built-in tools are taken, because some of
    them mean something to the gateway, and so are those of `tool_search` and `tool_call`.
    """
    builtin = {source.name: source.tools() for source in sources if source.is_builtin}
    unknown = sorted(set(enabled) - builtin.keys())
    if unknown:
        raise ConfigError(
            f"No tools are called {', '.join(map(repr, unknown))}.",
            f"tools.enabled may name: {', '.join(sorted(builtin)) or 'nothing yet'}.",
        )
    taken = {TOOL_SEARCH, TOOL_CALL, *ToolSet(tool for tools in builtin.values() for tool in tools).names}
    origins = {tool.spec.name: name for name in set(enabled) for tool in builtin[name]}
    chosen = [tool for name in sorted(set(enabled)) for tool in builtin[name]]
    for source in sources:
        if not source.is_builtin:
            for tool, origin in _foreign_tools(source, taken, builtin, warn):
                taken.add(tool.spec.name)
                origins[tool.spec.name] = origin
                chosen.append(tool)
    findables = [
        each
        for source in sources
        if not source.is_builtin or source.name in enabled
        for each in source.findables()
    ]
    return ToolSet(chosen, origins, findables)


def _foreign_tools(
    source: ToolSource, taken: Collection[str], builtin: Collection[str], warn: Callable[[str], None]
) -> Iterator[tuple[Tool, str]]:
    """Yield the tools that can be offered, with their origins. Faults beyond the first few are counted."""
    counts: Counter[str] = Counter()
    left_out = 0
    for tool in source.tools():
        origin = tool.spec.origin
        if not origin or origin in builtin:
            origin = source.name
        is_full = counts[origin] >= MOST_OF_ORIGIN
        full = ConfigError(f"{origin} has more than {MOST_OF_ORIGIN} tools.")
        problem = full if is_full else _problem(tool.spec, taken)
        if problem is None:
            counts[origin] += 1
            yield tool, origin
            continue
        left_out += 1
        if left_out <= _MOST_WARNINGS:
            warn(f"A tool of {source.name} is left out: {problem.user_text} {problem.hint}".strip())
    if left_out > _MOST_WARNINGS:
        warn(f"{left_out - _MOST_WARNINGS} more tools of {source.name} are left out.")


def _problem(spec: ToolSpec, taken: Collection[str]) -> ConfigError | None:
    """Return why a tool cannot be offered beside those whose names are taken; None if it can."""
    if not _NAME.fullmatch(spec.name):
        return ConfigError(
            f"{spec.name[:100]!r} is not a name for a tool.",
            "Use 1 to 64 letters, digits, underscores and hyphens.",
        )
    if spec.name in taken:
        return ConfigError(f"Two tools are named {spec.name!r}.", "Tool names must be unique: rename one.")
    if len(spec.description) + len(spec.parameters) > _MOST_CHARS:
        return ConfigError(f"The tool {spec.name!r} is described in more than {_MOST_CHARS} characters.")
    try:
        schema = msgspec.json.decode(spec.parameters)
    except (msgspec.DecodeError, RecursionError):
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


def spec_size(spec: ToolSpec) -> int:
    """Return the bytes of a tool in the tool list of a request, in the form of chat completions."""
    told = len(msgspec.json.encode(spec.description)) + len(spec.parameters.encode())
    return _SPEC_BYTES + len(spec.name) + told


def spec_digest(spec: ToolSpec) -> str:
    """Return a short fingerprint of what a model is told of one tool."""
    return _fingerprint((spec,))[:_DIGEST_CHARS]
