"""Histories that front ends send: which of a session's exchanges they still have, and which are new.

A front end keeps its chats itself and sends the whole chat with each message. An *exchange* is a message of
the user and the answer to it. `find_place` compares the sent exchanges with those of the session's log:

1. All of the session's exchanges are there, and no others: the message continues the session.
2. The first ones are there: the user has edited or repeated a later message. The session branches there.
3. The last ones are there: the front end has cut its chat off at the beginning. The message continues the
   session, or branches before its last exchange.
4. An exchange in between differs: the session branches before it, and the sent ones are taken over.

A front end changes what it sends: white space, text that it puts before the user's own (documents), blocks
of reasoning, an answer that was stopped while it was shown. Such exchanges count as the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from talaria.agent.redaction import redact_message
from talaria.core.entries import Entry, EntryBody, hidden_seqs
from talaria.core.ids import ChatKey
from talaria.core.ledger import Binding, BranchPoint, Fresh
from talaria.core.limits import Limits
from talaria.core.messages import AssistantMessage, File, Message, Text, UserMessage
from talaria.core.redaction import Redactor
from talaria.core.sessions import Session
from talaria.core.shown import settled_bodies
from talaria.core.specs import PinnedSpec
from talaria.store.store import Store
from talaria.turns.agents import Agents
from talaria.turns.slash import ExtraCommands, canonical

_REWRITES: Final = frozenset({"new", "resume", "branch", "undo", "retry"})
_MESSAGES: Final = frozenset({"queue", "steer"})  # commands whose argument is a message
_BLOCKS: Final = (("<details", "</details>"), ("<think>", "</think>"))
_BREAK: Final = "\n\n"  # between the texts of two model calls, as callers of `/v1` get them
_NO_EXTRA: Final = ExtraCommands()
_LONG: Final = 128 << 10  # characters; longer histories are compared in a thread


class SentExchange(msgspec.Struct, frozen=True):
    """An exchange of a front end's chat. `said` is None if the chat begins with an answer; `answer` is None
    if there is none."""

    said: UserMessage | None
    answer: str | None = None

    def without_secrets(self, redactor: Redactor) -> SentExchange:
        """Return the exchange as the log has it, which never held a secret."""
        said = None if self.said is None else redact_message(self.said, redactor)
        return SentExchange(said, None if self.answer is None else redactor(self.answer))

    def distrusted(self) -> SentExchange:
        """Return the exchange as one that may repeat untrusted content."""
        said = self.said or UserMessage(())
        return SentExchange(msgspec.structs.replace(said, untrusted=True), self.answer)

    def messages(self) -> Iterator[Message]:
        if self.said is not None:
            yield self.said
        if self.answer:
            yield AssistantMessage(_without_blocks(self.answer).strip())


def sent_exchanges(spoken: Iterable[UserMessage | str]) -> list[SentExchange]:
    """Return the exchanges of a chat: messages of the user, and texts of the assistant."""
    found: list[SentExchange] = []
    said: UserMessage | None = None
    texts: list[str] = []
    for message in spoken:
        if isinstance(message, str):
            texts.append(message)
            continue
        if said is not None or texts:
            found.append(SentExchange(said, _BREAK.join(texts) if texts else None))
        said, texts = message, []
    if said is not None or texts:
        found.append(SentExchange(said, _BREAK.join(texts) if texts else None))
    return found


def messages_of(exchanges: Iterable[SentExchange]) -> tuple[Message, ...]:
    return tuple(message for exchange in exchanges for message in exchange.messages())


class KnownExchange(msgspec.Struct, frozen=True):
    """An exchange of a log. `last` is the seq of its last entry that was read. The answer of a turn that
    runs, failed or was stopped is not `is_whole`. `is_cut`: the message was too long, and `said` is its
    beginning."""

    said: str
    answer: str
    last: int
    is_whole: bool
    is_cut: bool = False


class HistoryPlace(msgspec.Struct, frozen=True):
    """Of the known exchanges the first `kept` stay; the first `taken` of the sent ones are among them."""

    kept: int
    taken: int


def known_exchanges(entries: Sequence[Entry]) -> list[KnownExchange]:
    """Return the exchanges of messages that the model sees."""
    hidden = hidden_seqs(entries)
    found: list[KnownExchange] = []
    said: UserMessage | None = None
    texts: list[str] = []
    last, is_whole = 0, False

    def end() -> None:
        if said is not None:
            is_cut = any(isinstance(part, File) and part.is_message for part in said.parts)
            found.append(KnownExchange(said.text, _BREAK.join(texts), last, is_whole, is_cut))

    for entry in entries:
        if entry.seq in hidden:
            continue
        match entry.body:
            case UserMessage() as message:
                end()
                said, texts, last, is_whole = message, [], entry.seq, False
            case AssistantMessage() as message:
                last, is_whole = entry.seq, not (message.tool_calls or message.interrupted)
                if message.text:
                    texts.append(message.text)
    end()
    return found


def after_commands(
    sent: Iterable[SentExchange], extra: ExtraCommands = _NO_EXTRA
) -> tuple[list[SentExchange], bool]:
    """Return the exchanges as the log has them: without commands and their replies. The second value is True
    if a command has changed the log itself (`/new`, `/undo`, …); then the exchanges behind it are returned,
    and cannot be compared."""
    kept: list[SentExchange] = []
    is_rewritten = False
    for exchange in sent:
        command = extra.parse(exchange.said.text) if exchange.said is not None else None
        if command is None:
            kept.append(exchange)
        elif command.name in _MESSAGES and command.args:
            kept.append(msgspec.structs.replace(exchange, said=UserMessage((Text(command.args),))))
        elif canonical(command.name) in _REWRITES:
            kept, is_rewritten = [], True
        elif (text := extra.message_of(command)) is not None:
            kept.append(msgspec.structs.replace(exchange, said=UserMessage((Text(text),))))
    return kept, is_rewritten


async def locate(
    sent: Sequence[SentExchange], known: Sequence[KnownExchange], *, is_from_start: bool
) -> HistoryPlace:
    """Return what `find_place` returns. A long history is compared in a thread."""
    length = sum(len(each.answer or "") + len(each.said.text if each.said else "") for each in sent)
    if length > _LONG:
        return await asyncio.to_thread(find_place, sent, known, is_from_start=is_from_start)
    return find_place(sent, known, is_from_start=is_from_start)


def find_place(
    sent: Sequence[SentExchange], known: Sequence[KnownExchange], *, is_from_start: bool = True
) -> HistoryPlace:
    """Compare the exchanges before the new message with those of the log. `is_from_start` is False if only
    the end of a very long log was read."""
    matching = _count_matching(sent, known) if is_from_start else 0
    if matching == len(sent) and is_from_start:
        return HistoryPlace(matching, matching)
    for end in (len(known), len(known) - 1):
        start = end - len(sent)
        if start >= 0 and _count_matching(sent, known[start:end]) == len(sent):
            return HistoryPlace(end, len(sent))
    return HistoryPlace(matching, matching)


def _count_matching(sent: Sequence[SentExchange], known: Sequence[KnownExchange]) -> int:
    """Return how many of the first exchanges are the same."""
    count = 0
    for one, other in zip(sent, known, strict=False):
        if not (_is_same_said(one.said, other) and _is_same_answer(one.answer, other)):
            break
        count += 1
    return count


def _is_same_said(sent: UserMessage | None, known: KnownExchange) -> bool:
    if sent is None or sent.text == known.said:
        return True
    one, other = _squeezed(sent.text), _squeezed(known.said)
    if known.is_cut and one.startswith(other):
        return True
    return one == other or _is_put_before(one, other) or _is_put_before(other, one)


def _is_put_before(longer: str, shorter: str) -> bool:
    """Return whether a front end has put a block, such as the documents of its user, before a message."""
    return bool(shorter) and longer.endswith(shorter) and longer[-len(shorter) - 1 : -len(shorter)] == ">"


def _is_same_answer(sent: str | None, known: KnownExchange) -> bool:
    if sent is None or not known.is_whole or sent == known.answer:
        return True
    return _squeezed(_without_blocks(known.answer)).startswith(_squeezed(_without_blocks(sent)))


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _without_blocks(text: str) -> str:
    """Return the text without the blocks in which front ends keep the reasoning of a model. A block that does
    not end stays."""
    for opening, closing in _BLOCKS:
        at = text.find(opening)
        if at < 0:
            continue
        pieces, done = list[str](), 0
        while at >= 0 and (end := text.find(closing, at)) >= 0:
            pieces.append(text[done:at])
            done = end + len(closing)
            at = text.find(opening, done)
        text = "".join((*pieces, text[done:]))
    return text


# -- sessions that begin with a part of another one -------------------------------------------------------


_ENTRIES_OF_MESSAGE = 4  # are looked at for each message that a history may have


class Branching:
    """Makes the sessions that are to begin with what the model sees of a chat's current session."""

    def __init__(self, store: Store, agents: Agents, limits: Limits) -> None:
        self._store = store
        self._agents = agents
        self._limits = limits

    async def copy(self, chat_key: ChatKey, fresh: Fresh, before: int | None = None) -> Fresh:
        """Return a session that begins with what the model sees of the chat's current session: all of it, or
        up to the entry `before`."""
        current = await self._store.current_session(chat_key)
        if current is None:
            return fresh
        head = current.revision.seq
        place = BranchPoint(current.id, head if before is None else min(head, max(0, before - 1)))
        spec = await self._spec_of(current, fresh)
        log = await self._log_to(place)
        context = settled_bodies(current.id, log, _first_seq(spec), place.seq)
        return Fresh(fresh.session_id, spec, context, parent=place)

    async def _log_to(self, place: BranchPoint) -> Sequence[Entry]:
        """Return the log from which a branch at this place is made: all of it if a summary stands for the
        place."""
        log = await self._store.shown_log(place.session_id)
        if not log or log[0].seq > place.seq:
            return await self._store.log(place.session_id, 0)
        return log

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
            log = await self._log_to(parent)
            context = settled_bodies(current.id, log, _first_seq(spec), parent.seq)
        context = (*context, *messages_of(sent[place.taken :]))
        return Fresh(fresh.session_id, spec, context, parent=parent), Binding.NEW


def _first_seq(spec: PinnedSpec | None) -> int:
    """Return the number of the first entry of a session's context, which stands behind the spec."""
    return 1 if spec is None else 2
