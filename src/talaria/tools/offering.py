"""Which tools a session is shown, and which it finds with `tool_search`.

The choice is made for a new session or an explicit change, and is frozen with its spec. A family, the tools
of one origin, is shown or hidden as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from talaria.core.specs import AgentSpec
from talaria.core.tools import TOOL_SEARCH
from talaria.tools.settings import FAMILIES
from talaria.tools.tool_search import SEARCH_BYTES, ToolFinder, search_tools
from talaria.tools.toolset import ToolFamily, ToolSet, spec_digest


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
