"""The tools `tool_search` and `tool_call`: the way to tools whose schemas a session is not shown."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from functools import cached_property
from heapq import nsmallest
from typing import Final

from talaria.core.errors import ToolError
from talaria.core.tools import TOOL_CALL, TOOL_SEARCH, ToolSpec
from talaria.core.wrapped_calls import MOST_WRAPPED
from talaria.search.words import terms
from talaria.tools.function import Arguments, FunctionTool, parameters, text
from talaria.tools.tool import Findable, Tool, ToolContext
from talaria.tools.toolset import ToolSet

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
