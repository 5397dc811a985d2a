"""Memory in turns: what new sessions are told, and how running ones hear of changes.

A session knows what its prefix remembers, what notes have told it since, and what it wrote itself: its spec
and its log have all of that. So a change is told once, over kills and restarts, and an undo that hides a
note lets it be told again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from talaria.access.people import People, place_of
from talaria.agent.warm import WarmAgent
from talaria.core.entries import MEMORY_NOTE, MEMORY_TOOL, Entry, Note, SpecSet, hidden_seqs
from talaria.core.errors import TalariaError
from talaria.core.ids import ChatKey, SessionId, asking_chat
from talaria.core.limits import BoundedDict
from talaria.core.memory import FAMILY, MemoryPlace, TurnMemory
from talaria.core.messages import Message, ToolOutcome, ToolResults, UserMessage
from talaria.core.shown import ShownLog
from talaria.core.tasks import Tasks
from talaria.core.turns import Turn
from talaria.memory.pages import FactChanges, compare, facts
from talaria.models.local.local_chat import LocalChat
from talaria.store.store import Store
from talaria.tools.execution import ToolRunner
from talaria.tools.tool import MemoryProvider, ToolSource

_log = logging.getLogger("talaria.turns")
_HEARD: Final = "[Note: the memory was changed outside of this conversation:\n"
_RECALLED: Final = "[Note: from memory, about this message:\n"
_KnownMark: TypeAlias = tuple[int, int]  # an epoch of the session, and a hash of the memory
_KEPT: Final = 4096  # sessions of which it is known what they know
_PREFETCH_SECONDS: Final = 5.0
_SYNC_SECONDS: Final = 30.0
_MOST_SYNCS: Final = 64


class Memories(msgspec.Struct, eq=False, dict=True):
    """The memory of all chats, by the provider that is in use. Without one, or while the family `memory` is
    not enabled, nothing is remembered. `_stamp` writes a time for the model. A `NoteSource`."""

    _sources: Sequence[ToolSource]
    _people: People
    _tools: ToolRunner
    _store: Store
    _stamp: Callable[[float], str]
    # The state of memory that sessions know, and the one that they are being told.
    _known: BoundedDict[SessionId, _KnownMark] = msgspec.field(default_factory=lambda: BoundedDict(_KEPT))
    _telling: BoundedDict[SessionId, _KnownMark] = msgspec.field(default_factory=lambda: BoundedDict(_KEPT))
    _syncs: Tasks = msgspec.field(default_factory=Tasks)

    def __post_init__(self) -> None:
        """The provider is the first one among the sources of tools."""
        found = (source for source in self._sources if isinstance(source, MemoryProvider))
        self._provider = next(found, None)

    @property
    def provider(self) -> MemoryProvider | None:
        """The provider, if memory is in use."""
        return self._provider if FAMILY in self._tools.enabled else None

    def place(self, key: ChatKey) -> MemoryPlace:
        return place_of(self._people, asking_chat(key))

    def prompt(self, key: ChatKey) -> str:
        """Return what a new session of a chat is told."""
        provider = self.provider
        return "" if provider is None else provider.prompt(self.place(key))

    # -- notes ----------------------------------------------------------------------------------------------

    async def waiting(self, turn: Turn, agent: WarmAgent, *, is_first: bool) -> Sequence[Note]:
        """A turn is told of changes once, before its first answer."""
        provider = self.provider
        if not is_first or provider is None or agent.pinned.spec.api == LocalChat.name:
            return ()
        try:
            changed = await self._find_change(turn, agent)
        except TalariaError as error:
            _log.warning("turn %s does not hear of changes in memory: %s", turn.id, error)
            return ()
        recalled = await self._find_recalled(provider, turn) if provider.follows_turns else None
        return [note for note in (changed, recalled) if note is not None]

    async def told(self, turn: Turn, notes: Sequence[Note]) -> None:
        is_told = any(note.key.startswith(MEMORY_NOTE) for note in notes)
        if is_told and (mark := self._telling.pop(turn.session_id, None)) is not None:
            self._known[turn.session_id] = mark

    async def _find_change(self, turn: Turn, agent: WarmAgent) -> Note | None:
        """Return what the session of a turn is to be told of changes. Raises store errors."""
        spec, current = agent.pinned.spec, self.prompt(turn.chat_key)
        mark = (agent.revision.epoch, hash(current))
        if self._known.get(turn.session_id) == mark:
            return None
        if current != spec.remembered or agent.has_heard:
            known = known_facts(spec.remembered, await self._store.shown_log(turn.session_id))
            changes = compare(known, facts(current))
            if changes != FactChanges():
                self._telling[turn.session_id] = mark
                text = f"{_HEARD}{changes.describe()}\n]"
                return self._note(f"{MEMORY_NOTE}{turn.id}", text, turn)
        self._known[turn.session_id] = mark
        return None

    async def _find_recalled(self, provider: MemoryProvider, turn: Turn) -> Note | None:
        """Return what a provider that follows turns has to say about this one."""
        text = await self._prefetch(provider, turn)
        return self._note(f"recalled:{turn.id}", f"{_RECALLED}{text}\n]", turn) if text else None

    def _note(self, key: str, text: str, turn: Turn) -> Note:
        return Note(key, text, self._stamp(turn.accepted_at))

    # -- providers that follow turns ------------------------------------------------------------------------

    async def _prefetch(self, provider: MemoryProvider, turn: Turn) -> str:
        """Ask the provider. A provider that fails or hangs does not keep the turn from its answer."""
        try:
            async with asyncio.timeout(_PREFETCH_SECONDS):
                return await provider.prefetch(self._turn(turn))
        except Exception as error:
            _log.warning("memory %s has nothing for turn %s: %r", provider.name, turn.id, error)
            return ""

    def _turn(self, turn: Turn) -> TurnMemory:
        place = self.place(turn.chat_key)
        return TurnMemory(place, turn.session_id, turn.id, turn.inbound.text, turn.accepted_at)

    def note_end(self, turn: Turn, answer: str) -> None:
        """Tell the provider of a turn that was answered, beside the turns. Returns at once."""
        provider = self.provider
        if provider is None or not provider.follows_turns or turn.inbound.is_unattended is True:
            return
        if len(self._syncs) >= _MOST_SYNCS:
            _log.warning("memory %s is slow: turn %s is not taken in", provider.name, turn.id)
            return
        self._syncs.start(self._sync(provider, turn, answer), f"memory of {turn.id}")

    async def _sync(self, provider: MemoryProvider, turn: Turn, answer: str) -> None:
        try:
            if ShownLog(await self._store.shown_log(turn.session_id)).has_untrusted():
                return
            async with asyncio.timeout(_SYNC_SECONDS):
                await provider.sync(self._turn(turn), answer)
        except Exception as error:
            _log.warning("memory %s did not take turn %s in: %r", provider.name, turn.id, error)

    async def close(self) -> None:
        """Wait for what providers are told, for a while each. To be called when no turn runs."""
        await asyncio.gather(*self._syncs, return_exceptions=True)


def known_facts(remembered: str, log: Iterable[Entry]) -> Counter[str]:
    """Return the facts that a session knows: those of its prefix, of later notes, and of its own edits. Only
    what the model sees counts."""
    entries = tuple(log)
    pinned = [entry.seq for entry in entries if isinstance(entry.body, SpecSet)]
    hidden = hidden_seqs(entries)
    known = Counter(facts(remembered))
    for entry in entries:
        if entry.seq in hidden or entry.message is None or entry.seq < (pinned[-1] if pinned else 0):
            continue
        for text in _told(entry.message):
            changes = FactChanges.read(text)
            known += Counter(changes.added)
            known -= Counter(changes.removed)
    return known


def _told(message: Message) -> Iterable[str]:
    """Return the texts of a message that tell of changes. In a branch, notes are plain messages."""
    match message:
        case UserMessage(text=text) if text.startswith(_HEARD):
            yield text
        case ToolResults(results=results):
            for result in results:
                if result.name == MEMORY_TOOL and result.outcome is ToolOutcome.OK:
                    yield result.text
        case _:
            pass
