"""Titles that a model writes, off the path of turns, where `context.summary_model` names one.

A session has its first words as its title. After its first turn a cheap call may find a better one. It is
made beside the turns, under the same caps, and given up at the first trouble: the first words stay.
"""

from __future__ import annotations

import logging
from typing import Final

from talaria.agent.side_calls import Purpose, SideCall, SideCalls
from talaria.core.entries import Revision
from talaria.core.errors import TalariaError
from talaria.core.sessions import Session, shorten_title
from talaria.core.tasks import Tasks, stop
from talaria.core.turns import Turn, TurnState
from talaria.store.store import Store
from talaria.turns.feed import RecordChange, StateFeed

_log = logging.getLogger("talaria.titles")

_INSTRUCTIONS: Final = (
    "Write a title for the conversation below: two to six words, in its language, no quotation marks and "
    "no period at the end. Answer with the title only."
)
_SAID_CHARS: Final = 2000
_REPLY_CHARS: Final = 1000
_MAX_OUTPUT: Final = 40
_SECONDS: Final = 30.0
_MOST_AT_ONCE: Final = 4
_FIRST_SEQ: Final = 1  # of a new session before its first message: the entry with its spec


class Titles:
    """Gives new sessions titles. `close` cancels what is under way."""

    def __init__(self, store: Store, calls: SideCalls, feed: StateFeed) -> None:
        self._store = store
        self._feed = feed
        self._calls = calls
        self._tasks = Tasks()

    def consider(self, session: Session, before: Revision, turn: Turn) -> None:
        """Begin to look for a title after the first turn of a session, which was at `before`, if a model for
        it is configured. Returns at once. While many sessions begin, some keep their first words."""
        if (
            before.seq > _FIRST_SEQ
            or session.ephemeral
            or turn.state is not TurnState.DONE
            or turn.inbound.is_unattended is True
            or len(self._tasks) >= _MOST_AT_ONCE
            or not self._calls.settings().summary_model
        ):
            return
        self._tasks.start(self._make(session, turn), f"title of {session.id}")

    async def close(self) -> None:
        await stop(*self._tasks)

    async def _make(self, session: Session, turn: Turn) -> None:
        said, reply = turn.inbound.text[:_SAID_CHARS], (turn.reply or "")[:_REPLY_CHARS]
        text = f"Person: {said}\n\nAssistant: {reply}"
        call = SideCall(Purpose.TITLE, _INSTRUCTIONS, text, max_output=_MAX_OUTPUT, seconds=_SECONDS)
        try:
            model = self._calls.catalog.resolve(self._calls.settings().summary_model)
            title = clean_title(await self._calls.beside(call, model, turn))
            if title and await self._store.retitle(session.id, session.title, title):
                now, key = self._store.clock.now(), turn.chat_key
                self._feed.note(RecordChange("session.titled", session.id, key, now, title=title))
        except TalariaError as error:
            _log.info("session %s keeps its first words as its title: %s", session.id, error)
        except Exception:
            _log.exception("no title for session %s", session.id)


def clean_title(answer: str) -> str:
    """Return the first line of a model's answer, without quotation marks, as a title."""
    line = next((line for line in answer.splitlines() if line.strip()), "")
    return shorten_title(line.strip().removeprefix("Title:")).strip(" \"'“”„«»「」*_`.")
