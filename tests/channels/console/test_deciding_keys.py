"""The approval requests that are open in the terminal chat."""

from __future__ import annotations

from typing import cast

from talaria.console.deciding_keys import OpenQuestions
from talaria.console.gateway_client import GatewayClient
from talaria.core.events import Done, QuestionAsked, QuestionDecided
from talaria.core.ids import QuestionId
from talaria.core.questions import APPROVE, DENY, QuestionKind, Span


class Gateway:
    """Takes every decision."""

    def __init__(self) -> None:
        self.decided: list[tuple[str, str]] = []

    async def decide(self, event: QuestionAsked, text: str, span: Span) -> None:
        self.decided.append((event.question_id, text))


def asked(name: str) -> QuestionAsked:
    return QuestionAsked(QuestionId(name), QuestionKind.APPROVAL, f"danger {name}", (), "c", "danger")


async def test_a_key_for_a_request_that_was_decided_elsewhere_does_not_decide_the_next_one() -> None:
    gateway, notices = Gateway(), list[str]()
    questions = OpenQuestions(cast(GatewayClient, gateway), notices.append)
    questions.take(asked("q_1"))
    assert questions.opened.is_set()
    questions.take(QuestionDecided(QuestionId("q_1"), DENY, Span.ONCE, "operator"))
    assert not questions.opened.is_set()
    assert not await questions.decide("a"), "nothing is open"
    questions.take(asked("q_2"))
    assert await questions.decide("a")  # the person was still reading q_1
    assert "another request" in notices[-1] and gateway.decided == []
    assert not await questions.decide("hello"), "it decides nothing"
    assert await questions.decide("a"), "it is still asked"
    questions.take(QuestionDecided(QuestionId("q_2"), APPROVE, Span.ONCE, "terminal"))
    questions.take(asked("q_3"))
    assert await questions.decide("d"), "its own decision before needs no second key"
    assert gateway.decided == [("q_2", "approve"), ("q_3", "deny")]


async def test_questions_are_decided_in_their_order_until_the_turn_ends() -> None:
    gateway = Gateway()
    questions = OpenQuestions(cast(GatewayClient, gateway), lambda text: None)
    for name in ("q_1", "q_2", "q_3"):
        questions.take(asked(name))
    questions.take(QuestionDecided(QuestionId("q_2"), DENY, Span.ONCE, "operator"))
    assert await questions.decide("a")
    assert questions.first == asked("q_3")
    questions.take(Done("over"))
    assert not await questions.decide("a")
    assert gateway.decided == [("q_1", "approve")]
