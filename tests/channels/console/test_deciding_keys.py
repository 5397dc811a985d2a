"""The terminal's prompts for approval requests."""

from __future__ import annotations

import asyncio
from typing import cast

from talaria.channels.console.deciding_keys import TerminalDecisions
from talaria.channels.console.gateway_client import GatewayClient
from talaria.core.events import QuestionAsked, QuestionDecided
from talaria.core.ids import QuestionId
from talaria.core.questions import DENY, QuestionKind, Span


class Screen:
    """A terminal whose person types the lines that are put in `typed`."""

    def __init__(self) -> None:
        self.typed: asyncio.Queue[str] = asyncio.Queue()
        self.prompts: asyncio.Queue[str] = asyncio.Queue()
        self.notices: list[str] = []
        self.decided: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def notice(self, text: str) -> None:
        self.notices.append(text)

    async def read(self, event: QuestionAsked) -> str | None:
        self.prompts.put_nowait(event.question_id)
        return await self.typed.get()

    async def decide(self, event: QuestionAsked, text: str, span: Span) -> None:
        self.decided.put_nowait((event.question_id, text))


def asked(name: str) -> QuestionAsked:
    return QuestionAsked(QuestionId(name), QuestionKind.APPROVAL, f"danger {name}", (), "c", "danger")


async def test_a_key_for_a_request_that_was_decided_elsewhere_does_not_decide_the_next_one() -> None:
    screen = Screen()
    decisions = TerminalDecisions(cast(GatewayClient, screen), screen, screen.read)
    decisions.take(asked("q_1"))
    assert await screen.prompts.get() == "q_1"
    decisions.take(QuestionDecided(QuestionId("q_1"), DENY, Span.ONCE, "operator"))
    decisions.take(asked("q_2"))
    assert await screen.prompts.get() == "q_2"
    screen.typed.put_nowait("a")  # the person was still reading q_1
    assert await screen.prompts.get() == "q_2", "it is asked again"
    assert "another request" in screen.notices[-1] and screen.decided.empty()
    screen.typed.put_nowait("a")
    assert await screen.decided.get() == ("q_2", "approve")
    decisions.take(asked("q_3"))
    assert await screen.prompts.get() == "q_3"
    screen.typed.put_nowait("d")
    assert await screen.decided.get() == ("q_3", "deny"), "its own decision before needs no second key"
    await decisions.close()
