"""The tools of MCP servers as the operator approved them: the file `mcp/pins.json` in the home.

Sessions are offered the approved tools, whether a server is up or not. The first listing of a server that the
operator added counts as approved. A later change (a new tool, another text or schema) is kept as *proposed*
and counts after `approve`. A tool that a server no longer lists is not offered; it needs no approval if it
comes back unchanged.

The gateway and the command line write the same file: each change is made under a lock on `mcp/pins.lock`. All
functions block.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NoReturn

import msgspec

from talaria.core.errors import ConfigError
from talaria.core.whole_files import JsonFile, Stamp, stamp_of
from talaria.mcp.texts import offered_name

FOLDER = "mcp"
PINS_FILE = "pins.json"
READER = ""  # stands for the tool that reads a server's resources and prompts, which no server lists


class PinnedTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool as a server lists it. `name` is what agents call it; `parameters` is a JSON schema as canonical
    text. The server says of itself that it `only_reads` or `destroys`, which is a hint and no proof."""

    description: str
    parameters: str
    only_reads: bool = False
    destroys: bool = False
    name: str = ""
    is_gone: bool = False

    @property
    def hash(self) -> str:
        """The hash of everything that approval is about."""
        told = msgspec.json.encode((self.description, self.parameters, self.only_reads, self.destroys))
        return hashlib.sha256(told).hexdigest()[:16]


class ServerPins(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tools of one server by the names that the server gives them. `identity` is that of its settings."""

    identity: str
    approved: dict[str, PinnedTool] = {}
    proposed: dict[str, PinnedTool] = {}

    def offered(self) -> dict[str, PinnedTool]:
        return {tool: pinned for tool, pinned in self.approved.items() if not pinned.is_gone}


class ToolChange(msgspec.Struct, frozen=True):
    """A proposed change of one tool, whose hash will be `hash`. `lines` is a unified diff of its text and
    schema."""

    tool: str
    name: str
    kind: Literal["new", "changed"]
    lines: tuple[str, ...]
    hash: str


def _file(home: Path) -> JsonFile[dict[str, ServerPins]]:
    return JsonFile(home / FOLDER / PINS_FILE, dict[str, ServerPins], _damaged, lock="pins.lock")


def _damaged(path: Path, error: Exception) -> NoReturn:
    why = getattr(error, "strerror", None) or error
    raise ConfigError(
        f"The approved tools of MCP servers cannot be read: {path}: {why}.",
        "Remove the file: the tools that the servers list next count as approved then.",
    ) from error


def read_pins(home: Path) -> dict[str, ServerPins]:
    """Return the pins of all servers. Raises `ConfigError`."""
    return _file(home).read()


def note_listing(home: Path, server: str, identity: str, listed: Mapping[str, PinnedTool]) -> ServerPins:
    """Compare what a server lists with what is approved, keep the outcome and return it. Raises `ConfigError`
    and `OSError`."""
    with _file(home).changing() as pins:
        old = pins.get(server)
        is_first = old is None or old.identity != identity
        known = {} if old is None else old.approved
        taken = {each.name for found in pins.values() for each in found.approved.values()}
        others = (found for name, found in pins.items() if name != server)
        taken |= {each.name for found in others for each in found.proposed.values()}
        named = {tool: _named(server, tool, listed[tool], known, taken) for tool in _in_order(server, listed)}
        if is_first:
            pins[server] = ServerPins(identity, named)
        else:
            new = {tool: each for tool, each in named.items() if _differs(known.get(tool), each)}
            marked = {
                tool: msgspec.structs.replace(each, is_gone=tool not in named) for tool, each in known.items()
            }
            pins[server] = ServerPins(identity, marked, new)
        return pins[server]


def proposed(home: Path, server: str) -> tuple[ToolChange, ...]:
    """Return the changes that wait for approval."""
    pins = read_pins(home).get(server)
    return () if pins is None else tuple(diff(pins))


def diff(pins: ServerPins) -> Iterator[ToolChange]:
    """Yield the proposed changes of a server, in the order of their names."""
    for tool, new in sorted(pins.proposed.items()):
        old = pins.approved.get(tool)
        lines = difflib.unified_diff([] if old is None else _lines(old), _lines(new), lineterm="", n=2)
        yield ToolChange(tool, new.name, "new" if old is None else "changed", tuple(lines)[2:], new.hash)


def approve(home: Path, server: str, seen: Iterable[ToolChange]) -> tuple[ToolChange, ...]:
    """Let the changes that a person has seen count, and return those that did: a server may have changed its
    tools again since. A running gateway takes them up within seconds; sessions that exist keep their tools
    until `/reload`."""
    with _file(home).changing() as pins:
        old = pins.get(server)
        if old is None:
            return ()
        hashes = {change.tool: change.hash for change in seen}
        counted = {tool: new for tool, new in old.proposed.items() if hashes.get(tool) == new.hash}
        left = {tool: new for tool, new in old.proposed.items() if tool not in counted}
        pins[server] = ServerPins(old.identity, {**old.approved, **counted}, left)
        return tuple(change for change in diff(old) if change.tool in counted)


def forget(home: Path, server: str) -> None:
    """Remove the pins of a server that the operator has removed."""
    with _file(home).changing() as pins:
        pins.pop(server, None)


def pins_stamp(home: Path) -> Stamp:
    """Return a value that changes with the file; None without one."""
    return stamp_of(home / FOLDER / PINS_FILE)


def _in_order(server: str, listed: Mapping[str, PinnedTool]) -> list[str]:
    """Return the tools so that those whose names need no change get them, in whatever order they came."""

    def is_changed(tool: str) -> bool:
        return tool == READER or offered_name(server, tool, ()) != f"mcp_{server}_{tool}"

    return sorted(listed, key=lambda tool: (is_changed(tool), tool))


def _named(
    server: str, tool: str, listed: PinnedTool, known: Mapping[str, PinnedTool], taken: set[str]
) -> PinnedTool:
    """Return the tool with its name, which it keeps if it has one."""
    old = known.get(tool)
    name = old.name if old is not None else offered_name(server, tool or "resources", taken)
    taken.add(name)
    return msgspec.structs.replace(listed, name=name, is_gone=False)


def _differs(old: PinnedTool | None, new: PinnedTool) -> bool:
    return old is None or old.hash != new.hash


def _lines(tool: PinnedTool) -> list[str]:
    schema = msgspec.json.format(tool.parameters, indent=2)
    hints = [word for word, holds in (("only reads", tool.only_reads), ("destroys", tool.destroys)) if holds]
    said = [f"It says of itself: {', '.join(hints)}."] if hints else []
    return [*tool.description.splitlines(), *said, *schema.splitlines()]
