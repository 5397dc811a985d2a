"""Memory in turns: what new sessions are told, and how running ones hear of changes.

A session knows what its prefix remembers, what notes have told it since, and what it wrote itself: its spec
and its log have all of that. So a change is told once, over kills and restarts, and an undo that hides a
note lets it be told again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from talaria.agent.context import TurnNotes
from talaria.agent.warm import WarmAgent
from talaria.core.entries import MEMORY_NOTE, MEMORY_TOOL, Entry, Note, SpecSet, hidden_seqs
from talaria.core.errors import TalariaError
from talaria.core.ids import ChatKey, SessionId, asking_chat
from talaria.core.memory import FAMILY, MemoryPlace, MemoryProvider, TurnMemory, place_of
from talaria.core.messages import Message, Text, ToolOutcome, ToolResults, UserMessage
from talaria.core.people import KnownPeople
from talaria.core.shown import has_untrusted
from talaria.core.store_ports import Store
from talaria.core.tools import ToolSource
from talaria.core.turns import Turn
from talaria.memory.pages import FactChanges, compare, facts
from talaria.models.local.local_chat import LocalChat
from talaria.tools.execution import ToolRunner
from talaria.turns.settings import TurnSettings

_log = logging.getLogger("talaria.turns")
_HEARD: Final = "[Note: the memory was changed outside of this conversation:\n"
_RECALLED: Final = "[Note: from memory, about this message:\n"
KnownMark: TypeAlias = tuple[int, int]  # an epoch of the session, and a hash of the memory
_KEPT: Final = 4096  # sessions of which it is known what they know
_PREFETCH_SECONDS: Final = 5.0
_SYNC_SECONDS: Final = 30.0
_MOST_SYNCS: Final = 64


class Memories:
    """The memory of all chats, by the provider that is in use. Without one, or while the family `memory` is
    not enabled, nothing is remembered."""

    def __init__(
        self,
        sources: Sequence[ToolSource],
        people: KnownPeople,
        tools: ToolRunner,
        store: Store,
        settings: TurnSettings,
    ) -> None:
        """The provider is the first one among the sources of tools."""
        self._provider = next((source for source in sources if isinstance(source, MemoryProvider)), None)
        self._people = people
        self._tools = tools
        self._store = store
        self._settings = settings
        self._known: OrderedDict[SessionId, KnownMark] = OrderedDict()
        self._syncs: set[asyncio.Task[None]] = set()

    @property
    def provider(self) -> MemoryProvider | None:
        """The provider, if memory is in use."""
        return self._provider if FAMILY in self._tools.enabled else None

    def place(self, key: ChatKey) -> MemoryPlace:
        return place_of(self._people, asking_chat(key))

    def prompt(self, key: ChatKey) -> str:
        """Return what a new session of a chat is told."""
        return "" if self.provider is None else self.provider.prompt(self.place(key))

    def of(self, turn: Turn, agent: WarmAgent) -> TurnNotes:
        is_told = self.provider is not None and agent.pinned.spec.api != LocalChat.name
        return _TurnNotes(self, turn, agent) if is_told else _NO_NOTES

    # -- notes ----------------------------------------------------------------------------------------------

    async def find_change(self, turn: Turn, agent: WarmAgent) -> tuple[Note | None, KnownMark]:
        """Return what the session of a turn is to be told of changes, and a mark for `know`, which takes the
        state of memory that this is about. Raises store errors."""
        spec, current = agent.pinned.spec, self.prompt(turn.chat_key)
        mark = (agent.revision.epoch, hash(current))
        if self._known.get(turn.session_id) == mark:
            return None, mark
        if current != spec.remembered or agent.has_heard:
            known = known_facts(spec.remembered, await self._store.shown_log(turn.session_id))
            changes = compare(known, facts(current))
            if changes != FactChanges():
                text = f"{_HEARD}{changes.describe()}\n]"
                return self._note(f"{MEMORY_NOTE}{turn.id}", text, turn), mark
        self.know(turn.session_id, mark)
        return None, mark

    async def find_recalled(self, turn: Turn) -> Note | None:
        """Return what a provider that follows turns has to say about this one."""
        provider = self.provider
        if provider is None or not provider.follows_turns:
            return None
        text = await self._prefetch(provider, turn)
        return self._note(f"recalled:{turn.id}", f"{_RECALLED}{text}\n]", turn) if text else None

    def _note(self, key: str, text: str, turn: Turn) -> Note:
        message = self._settings.user_message((Text(text),), turn.accepted_at)
        return Note(key, text, message.stamp if message else "")

    def know(self, session_id: SessionId, mark: KnownMark) -> None:
        """The session knows this state of memory."""
        self._known[session_id] = mark
        self._known.move_to_end(session_id)
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)

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
        task = asyncio.create_task(self._sync(provider, turn, answer), name=f"memory of {turn.id}")
        self._syncs.add(task)
        task.add_done_callback(self._syncs.discard)

    async def _sync(self, provider: MemoryProvider, turn: Turn, answer: str) -> None:
        try:
            if has_untrusted(await self._store.shown_log(turn.session_id)):
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


class _TurnNotes:
    """Implements `agent.context.TurnNotes`. A turn is told once, before its first answer."""

    __slots__ = ("_agent", "_is_asked", "_mark", "_memories", "_turn")

    def __init__(self, memories: Memories, turn: Turn, agent: WarmAgent) -> None:
        self._memories = memories
        self._turn = turn
        self._agent = agent
        self._is_asked = False
        self._mark: KnownMark | None = None

    async def waiting(self) -> Sequence[Note]:
        if self._is_asked:
            return ()
        self._is_asked = True
        try:
            changed, self._mark = await self._memories.find_change(self._turn, self._agent)
        except TalariaError as error:
            _log.warning("turn %s does not hear of changes in memory: %s", self._turn.id, error)
            return ()
        recalled = await self._memories.find_recalled(self._turn)
        return [note for note in (changed, recalled) if note is not None]

    async def told(self, notes: Sequence[Note]) -> None:
        if self._mark is not None and any(note.key.startswith(MEMORY_NOTE) for note in notes):
            self._memories.know(self._turn.session_id, self._mark)


class _NoNotes:
    async def waiting(self) -> Sequence[Note]:
        return ()

    async def told(self, notes: Sequence[Note]) -> None:
        pass


_NO_NOTES: Final = _NoNotes()
