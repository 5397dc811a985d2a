"""Questions of turns that no person attends: put to the person who asked for the job or the delegate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from talaria.core.errors import TalariaError
from talaria.core.events import QuestionAsked
from talaria.core.ledger import ChatMessage
from talaria.core.questions import Question, QuestionKind
from talaria.core.tasks import Tasks
from talaria.core.text import clean_line
from talaria.core.turns import Sender, Turn
from talaria.turns.live import LiveTurn, LiveTurns
from talaria.turns.questions import HostQuestions
from talaria.turns.sending import ChatSender

_log = logging.getLogger("talaria.turns")
_NAME = 60


class RunQuestions:
    """Sends the open questions of a run that parks, and those about hosts, to the chat that asked for it."""

    def __init__(self, live: LiveTurns, hosts: HostQuestions, sender: ChatSender) -> None:
        self._live = live
        self._sender = sender
        self._tasks = Tasks()
        live.on_park.append(self._put_all)
        hosts.tell_owner = self.put

    async def close(self) -> None:
        """Wait until the questions are sent."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _put_all(self, live: LiveTurn) -> None:
        for question in live.questions.values():
            if question.decision is None:
                self.put(live.turn, question)

    def put(self, turn: Turn, question: Question) -> None:
        """Send a question. Its id is the message's key, so a restart does not ask twice."""
        order = turn.inbound.order
        if order is None or order.asked_in is None:
            return
        name = clean_line(order.job_name, _NAME)
        if order.descent is None:
            who, reach = f"The job {name}", ", also in later runs until the job is edited"
            sender = Sender(f"job:{order.job_id}", order.job_name)
        else:
            who, reach = f"The delegate “{name}”", ""
            sender = Sender(f"delegate:{order.descent.delegate}", order.job_name)
        text = (
            f"{who} asks:\n\n```\n{question.text}\n```\n\n"
            f"`/approve {question.id}` lets it{reach}. `/deny {question.id}` refuses it."
        )
        if question.kind is QuestionKind.HOST:
            text += (
                " It continues without it."
                if order.descent is not None
                else " This run continues without it."
            )
        place = order.asked_in
        if order.descent is not None and place.address is None:
            root = self._live.get(order.descent.root)
            if root is not None:  # its followers decide there
                root.emit(QuestionAsked.of(question, question.name))
        message = ChatMessage(place.chat_key, text, sender, key=question.id, place=place)
        self._spawn(self._send(message))

    async def _send(self, message: ChatMessage) -> None:
        try:
            await self._sender.send(message)
        except TalariaError as error:
            _log.warning("a question of %s could not be put: %s", message.sender.id, error.user_text)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work, "question of a run")
