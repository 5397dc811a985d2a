"""The tools `tool_search` and `tool_call`: the way to tools whose schemas a session is not shown."""

from __future__ import annotations

import hashlib
import logging
import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import nsmallest
from pathlib import Path
from typing import Final

import msgspec

from talaria.core.errors import ToolError
from talaria.core.specs import AgentSpec
from talaria.core.tools import MOST_WRAPPED, TOOL_CALL, TOOL_SEARCH, ToolSpec
from talaria.core.whole_files import replace_file
from talaria.search.words import terms
from talaria.tools.function import Arguments, FunctionTool, parameters, text
from talaria.tools.settings import FAMILIES
from talaria.tools.tool import Findable, Tool, ToolContext
from talaria.tools.toolset import ToolFamily, ToolSet, spec_digest

SEARCH_BYTES: Final = 1200
"""Room for both tools in a request."""
_MOST_FOUND: Final = 8
_MOST_BYTES: Final = 8 << 10  # of a result, unless its first tool alone is longer
_MOST_DESCRIPTION: Final = 1000
_MOST_FAMILIES: Final = 12  # that are named
_MOST_QUERY: Final = 500
_MOST_TERMS: Final = 24
_INDEXED_CHARS: Final = 400  # of a description
_NAMED, _OF_ORIGIN, _DESCRIBED = 3, 2, 1  # what a word counts by where it stands
_WEIGHT_BITS: Final = 2
_IDLE_WORDS: Final = frozenset({"mcp", "plugin", "tool"})  # in so many names that they tell nothing
_WEAK: Final = 0.3  # of the best score; a hit with less is left out
_WORD: Final = re.compile(r"[^\W_]+")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_CALL_SPEC = ToolSpec(
    name=TOOL_CALL,
    description=f"Run a tool that {TOOL_SEARCH} found.",
    parameters=parameters(
        {
            "name": text("The tool."),
            "arguments": {"type": "object", "description": "As its parameters say."},
        },
        ["name"],
    ),
)


class ToolFinder:
    """Finds the tools of a set, and what is found beside them, by words of their names and descriptions. The
    index is made with the first search."""

    def __init__(self, tools: ToolSet) -> None:
        self._tools = tools
        self._items: tuple[ToolSpec | Findable, ...] = (*tools.specs, *tools.findables)

    @cached_property
    def _postings(self) -> dict[str, array[int]]:
        """The items of each term, as numbers whose lowest bits are what the term counts there."""
        postings: defaultdict[str, array[int]] = defaultdict(lambda: array("I"))
        known: dict[str, list[str]] = {}

        def split(text: str) -> Iterator[str]:
            for word in _WORD.findall(text.lower()):
                if word not in known:
                    known[word] = terms(word)
                yield from known[word]

        for number, item in enumerate(self._items):
            origin = self._tools.origin(item.name) if isinstance(item, ToolSpec) else item.tool
            weights = dict.fromkeys(split(item.description[:_INDEXED_CHARS]), _DESCRIBED)
            weights |= dict.fromkeys(split(origin), _OF_ORIGIN)
            weights |= dict.fromkeys(split(_CAMEL.sub(" ", item.name)), _NAMED)
            for term, weight in weights.items():
                postings[term].append(number << _WEIGHT_BITS | weight)
        return dict(postings)

    def find(self, query: str, names: Collection[str]) -> list[ToolSpec | Findable]:
        """Return the best items, the best first, among the tools with these names and what they take.

        Makes the index if there is none. Blocks; one thread at a time.
        """
        scores: defaultdict[int, float] = defaultdict(float)
        wanted = list(dict.fromkeys(terms(_CAMEL.sub(" ", query[:_MOST_QUERY]))))[:_MOST_TERMS]
        for term in wanted:
            if term in _IDLE_WORDS:
                continue
            posted = self._postings.get(term, ())
            rarity = math.log1p(len(self._items) / max(1, len(posted)))
            for packed in posted:
                weight = packed & ((1 << _WEIGHT_BITS) - 1)
                scores[packed >> _WEIGHT_BITS] += rarity * weight / (weight + 1)
        said = set(query[:_MOST_QUERY].lower().split())

        def order(number: int) -> tuple[bool, float, str]:
            name = self._items[number].name
            return name.lower() not in said, -scores[number], name

        usable = (number for number in scores if _is_usable(self._items[number], names))
        best = nsmallest(_MOST_FOUND, usable, order)
        least = _WEAK * max((scores[number] for number in best), default=0.0)
        return [self._items[number] for number in best if scores[number] >= least]


def _is_usable(item: ToolSpec | Findable, names: Collection[str]) -> bool:
    return (item.name if isinstance(item, ToolSpec) else item.tool) in names


def search_tools(finder: ToolFinder, usable: ToolSet, found: ToolSet) -> Iterator[Tool]:
    """Yield the tools for searching: `tool_search` finds the tools `found`, and what the tools that are
    `usable` take by name. Without tools to find there is no `tool_call`."""
    kinds = Counter(each.tool for each in usable.findables)
    names = {*found.names, *kinds}
    families = ", ".join(_family_lines(found, kinds))

    async def search(arguments: Arguments, context: ToolContext) -> str:
        hits = await context.resources.computing(finder.find, arguments["query"], names)
        return "\n\n".join(_describe(hits)) or f"Nothing fits these words. There are: {families}."

    about = f"Find more tools by what they do, with their parameters. There are: {families}."
    query = {"query": text("Words for what the tool should do, or its name.")}
    spec = ToolSpec(
        TOOL_SEARCH, about, parameters(query, ["query"]), idempotent=True, read_only=True, uses_files=False
    )
    yield FunctionTool(spec, search)
    if found:
        yield FunctionTool(_CALL_SPEC, _refuse)


async def _refuse(arguments: Arguments, context: ToolContext) -> str:
    """Only calls that could not be unwrapped get here."""
    raise ToolError(
        f"{TOOL_CALL} runs another tool, named as {TOOL_SEARCH} names it, with at most {MOST_WRAPPED} "
        "characters of arguments."
    )


def _family_lines(found: ToolSet, kinds: Counter[str]) -> Iterator[str]:
    families = found.families()
    for family in families[:_MOST_FAMILIES]:
        yield f"{family.origin} ({_plural(len(family.names), 'tool')})"
    if len(families) > _MOST_FAMILIES:
        rest = sum(len(family.names) for family in families[_MOST_FAMILIES:])
        yield f"{_plural(rest, 'tool')} of others"
    yield from (f"{_plural(count, 'name')} for {tool}" for tool, count in sorted(kinds.items()))


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _describe(hits: list[ToolSpec | Findable]) -> Iterator[str]:
    """Yield a paragraph for each hit, whole or not at all. Hits without room are named at the end."""
    room, left = _MOST_BYTES, []
    for hit in hits:
        told = f"{hit.name}: {hit.description[:_MOST_DESCRIPTION]}"
        if isinstance(hit, Findable):
            told += f"\nuse: {hit.tool}(name={hit.name!r})"
        else:
            told += f"\nparameters: {hit.parameters}"
        size = len(told.encode(errors="replace"))
        if size > room and hit is not hits[0]:
            left.append(hit.name)
            continue
        room -= size
        yield told
    if any(isinstance(hit, ToolSpec) for hit in hits):
        yield f"Run one with {TOOL_CALL}(name, arguments)."
    if left:
        yield f"Also: {', '.join(left)}. Search for one of these names to see its parameters."


# -- which tools a session is shown, and which it finds with `tool_search` --------------------------------
# The choice is made for a new session or an explicit change, and is frozen with its spec. A family, the
# tools of one origin, is shown or hidden as a whole.


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools of a new session: a model is told `direct`, and finds those that `searched` has with the
    digests of what they are now."""

    direct: ToolSet
    searched: tuple[tuple[str, str], ...] = ()

    @property
    def fingerprint(self) -> str:
        """A digest of everything that the session is told or can find."""
        if not self.searched:
            return self.direct.fingerprint
        digest = hashlib.sha256(self.direct.fingerprint.encode())
        for name, told in self.searched:
            digest.update(f"{name} {told}\n".encode())
        return digest.hexdigest()


class SessionTools(msgspec.Struct, frozen=True):
    """The tools of a session as they are now: `tools` can be called, and `changed` names those that are not
    any more what the session would find."""

    tools: ToolSet
    changed: frozenset[str] = frozenset()


def choose_shown(
    families: Sequence[ToolFamily], most_bytes: int, rank: Callable[[str], int]
) -> frozenset[str]:
    """Return the origins of the families that are shown: all if they fit in `most_bytes`.

    Otherwise built-in families go first and then the most used ones, each if there is room for it beside the
    two tools for searching. The order between equals is fixed. Pure.
    """
    if sum(family.size for family in families) <= most_bytes:
        return frozenset(family.origin for family in families)

    def order(family: ToolFamily) -> tuple[bool, int, int, str]:
        place = FAMILIES.index(family.origin) if family.is_builtin else 0
        return not family.is_builtin, -rank(family.origin), place, family.origin

    shown, room = set(), most_bytes - SEARCH_BYTES
    for family in sorted(families, key=order):
        if family.size <= room:
            room -= family.size
            shown.add(family.origin)
    return frozenset(shown)


def make_offer(tools: ToolSet, shown: frozenset[str]) -> ToolOffer:
    """Return the offer in which the families of these origins are shown."""
    hidden = {name for family in tools.families() if family.origin not in shown for name in family.names}
    if not hidden and not tools.findables:
        return ToolOffer(tools)
    direct = tools.only([name for name in tools.names if name not in hidden])
    found = tools.only(hidden)
    searched = tuple((spec.name, spec_digest(spec)) for spec in found.specs)
    return ToolOffer(direct.with_tools(search_tools(ToolFinder(tools), tools, found)), searched)


def bind_offer(
    spec: AgentSpec, current: ToolSet, finder: ToolFinder, only: tuple[str, ...] | None
) -> SessionTools:
    """Return the tools of a session as they are now, of which a turn may use `only` some.

    A tool that the session was told stays, whatever became of its schema. A tool that it finds is left out
    if it is not what it was when the session was pinned.
    """
    now = {name: tool for name, _ in spec.searched if (tool := current.get(name)) is not None}
    found = {name for name, told in spec.searched if name in now and spec_digest(now[name].spec) == told}
    names = {*spec.tools, *found}
    if only is not None:
        names &= set(only)
    tools = current.only(names)
    if TOOL_SEARCH in spec.tools:
        tools = tools.with_tools(search_tools(finder, tools, tools.only(found)))
    changed = frozenset(name for name, _ in spec.searched if name not in found)
    return SessionTools(tools, changed if only is None else changed & set(only))


# -- how often the tools of each origin are called --------------------------------------------------------


USAGE_FILE: Final = "tool-usage.json"
_MOST_CALLS: Final = 4096  # of all origins; then every count is halved, so that old calls are forgotten
_MOST_ORIGINS: Final = 1000
_log = logging.getLogger("talaria.tools")


class ToolUsage:
    """Counts of calls by origin. They are kept in a file, which is written each time that a count has
    doubled, so that a kill costs less than half of it. Without a path they are kept in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._counts = {} if path is None else _load(path)

    def rank(self, origin: str) -> int:
        """Return how much an origin is used, by powers of two: a few calls more do not change an order."""
        return self._counts.get(origin, 0).bit_length()

    def add(self, origin: str) -> bool:
        """Count a call. Return whether the counts should be saved."""
        before = self.rank(origin)
        self._counts[origin] = self._counts.get(origin, 0) + 1
        is_full = sum(self._counts.values()) > _MOST_CALLS or len(self._counts) > _MOST_ORIGINS
        if is_full:
            self._counts = {each: count // 2 for each, count in self._counts.items() if count > 1}
        return self._path is not None and (is_full or self.rank(origin) != before)

    def save(self) -> None:
        """Write the file. Blocks; a file that cannot be written costs no call."""
        if self._path is None:
            return
        try:
            counts = msgspec.json.encode(dict(self._counts), order="sorted")
            replace_file(self._path, counts, is_durable=False)
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._path, error.strerror)


def _load(path: Path) -> dict[str, int]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}
