"""Sessions that begin with a part of another one: branches, and chats whose history a front end rewrote."""

from __future__ import annotations

from collections.abc import Sequence

from talaria.core.entries import EntryBody
from talaria.core.ids import ChatKey
from talaria.core.ledger import Binding, BranchPoint, Fresh
from talaria.core.limits import Limits
from talaria.core.sessions import Session
from talaria.core.shown import settled_bodies
from talaria.core.specs import PinnedSpec
from talaria.store.store import Store
from talaria.turns.agents import Agents
from talaria.turns.histories import SentExchange, after_commands, known_exchanges, locate, messages_of

_ENTRIES_OF_MESSAGE = 4  # are looked at for each message that a history may have


class Branching:
    """Makes the sessions that are to begin with what the model sees of a chat's current session."""

    def __init__(self, store: Store, agents: Agents, limits: Limits) -> None:
        self._store = store
        self._agents = agents
        self._limits = limits

    async def copy(self, chat_key: ChatKey, fresh: Fresh) -> Fresh:
        """Return a session that begins with what the model sees of the chat's current session."""
        current = await self._store.current_session(chat_key)
        if current is None:
            return fresh
        spec, log = await self._spec_of(current, fresh), await self._store.shown_log(current.id)
        context = settled_bodies(current.id, log, _first_seq(spec))
        place = BranchPoint(current.id, current.revision.seq)
        return Fresh(fresh.session_id, spec, context, parent=place)

    async def _spec_of(self, session: Session, fresh: Fresh) -> PinnedSpec | None:
        return await self._agents.builder.pinned(session.spec_id) if session.spec_id else fresh.spec

    async def follow(
        self, chat_key: ChatKey, history: Sequence[SentExchange], fresh: Fresh
    ) -> tuple[Fresh, Binding]:
        """Return the session for the next message of a chat that a front end keeps, and how it is bound.

        If the chat has no session, a new one begins with the history. Answers in it may repeat untrusted
        content of the session before, so what is taken over is untrusted then.
        """
        sent, is_rewritten = after_commands(history, self._agents.commands)
        current = await self._store.current_session(chat_key)
        if current is not None and not is_rewritten and await self._store.recall.is_tainted(current.id):
            sent = [exchange.distrusted() for exchange in sent]
        imported = Fresh(fresh.session_id, fresh.spec, messages_of(sent))
        if is_rewritten or current is None or current.ended_at is not None:
            return imported, Binding.CURRENT
        most = self._limits.now.completion_messages * _ENTRIES_OF_MESSAGE
        entries = await self._store.spoken(current.id, most)
        known = known_exchanges(entries)
        place = await locate(sent, known, is_from_start=len(entries) < most)
        if (place.kept, place.taken) == (len(known), len(sent)):
            return imported, Binding.CURRENT
        context: tuple[EntryBody, ...] = ()
        parent, spec = None, await self._spec_of(current, fresh)
        if place.kept:
            parent = BranchPoint(current.id, known[place.kept - 1].last)
            log = await self._store.shown_log(current.id)
            if not log or log[0].seq > parent.seq:  # a summary stands for the place
                log = await self._store.log(current.id, 0)
            context = settled_bodies(current.id, log, _first_seq(spec), parent.seq)
        context = (*context, *messages_of(sent[place.taken :]))
        return Fresh(fresh.session_id, spec, context, parent=parent), Binding.NEW


def _first_seq(spec: PinnedSpec | None) -> int:
    """Return the number of the first entry of a session's context, which stands behind the spec."""
    return 1 if spec is None else 2
