"""The limits of one answer and of all answers together, at their edges."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from talaria.core.errors import AnswerMemoryFull, AnswerTooLarge
from talaria.core.limits import Limits, LimitSettings
from talaria.core.units import Size
from talaria.models.answer_budget import (
    MAX_DOCUMENT_BYTES,
    MAX_NAME,
    SMALL_DOCUMENT,
    AnswerBudget,
    AnswerMemory,
    is_costly,
)
from talaria.models.failures import ProviderErrors

LIMITS = LimitSettings(
    answer_bytes=Size(1000),
    answer_pieces=10,
    answer_text=Size(100),
    answer_cpu=timedelta(seconds=2),
    call_arguments=Size(50),
    answer_calls=3,
    answer_memory=Size(5000),
)


def make_budget(memory: AnswerMemory | None = None) -> AnswerBudget:
    errors = ProviderErrors("p", "m")
    return AnswerBudget(errors, memory or AnswerMemory(Limits(LIMITS)))


def at(name: str, value: float) -> Callable[[AnswerBudget], None]:
    def change(budget: AnswerBudget) -> None:
        setattr(budget, name, value)

    return change


@pytest.mark.parametrize(
    ("fits", "too_much", "key"),
    [
        (at("received", 1000), at("received", 1001), "answer_bytes"),
        (at("pieces", 10), at("pieces", 11), "answer_pieces"),
        (at("lines", 40), at("lines", 41), "answer_pieces"),
        (lambda b: b.keep("x" * 100), lambda b: b.keep("x" * 101), "answer_text"),
        (lambda b: b.keep("ü" * 50), lambda b: b.keep("ü" * 51), "answer_text"),
        (lambda b: b.keep_bytes(100), lambda b: b.keep_bytes(101), "answer_text"),
        (at("cpu", 2.0), at("cpu", 2.1), "answer_cpu"),
    ],
)
def test_each_limit_of_an_answer_is_kept_at_its_edge(
    fits: Callable[[AnswerBudget], None], too_much: Callable[[AnswerBudget], None], key: str
) -> None:
    memory = AnswerMemory(Limits(LIMITS))
    budget = make_budget(memory)
    fits(budget)
    budget.check()
    assert memory.limits.readings()[key].refused == 0
    budget = make_budget(memory)
    too_much(budget)
    with pytest.raises(AnswerTooLarge) as error:
        budget.check()
    assert f"limits.{key}" in error.value.hint
    assert memory.limits.readings()[key].refused == 1


def test_calls_their_arguments_and_their_names_are_limited() -> None:
    budget = make_budget()
    for _ in range(3):
        budget.add_call()
    with pytest.raises(AnswerTooLarge, match="has more than 3 tool calls"):
        budget.add_call()
    budget.check_arguments(50)
    with pytest.raises(AnswerTooLarge, match="with more than 50"):
        budget.check_arguments(51)
    budget.check_name("x" * MAX_NAME)
    with pytest.raises(AnswerTooLarge, match="with a name of"):
        budget.check_name("x" * (MAX_NAME + 1))


def test_all_answers_share_one_memory_and_give_it_back() -> None:
    memory = AnswerMemory(Limits(LIMITS))
    one, other = make_budget(memory), make_budget(memory)
    one.hold(3000)
    one.check()
    assert memory.limits.readings()["answer_memory"].used == 3000
    one.unread = 500
    one.check()
    assert memory.held == 3500
    other.hold(1500)
    other.check()
    assert memory.held == 5000
    other.hold(1)
    with pytest.raises(AnswerMemoryFull):
        other.check()
    one.close()
    other.close()
    assert memory.held == 0
    later = make_budget(memory)
    later.hold(4000)
    later.check()
    later.unread = 0
    later.close()
    assert memory.held == 0


def test_texts_are_counted_once_and_in_bytes() -> None:
    budget = make_budget()
    budget.keep("abc")
    budget.keep("ü")
    assert budget.text_bytes() == budget.text_bytes() == 5
    budget.keep("\ud800")
    assert budget.text_bytes() == 8
    budget.count_texts(["a", "b"])
    assert budget.text_bytes() == 10
    budget.received = 70
    budget.check()
    assert budget.check_at > 70


@pytest.mark.parametrize(
    ("data", "costly"),
    [
        (b"", False),
        (b"," * SMALL_DOCUMENT, False),
        (b"x" * (MAX_DOCUMENT_BYTES + 1), True),
        (b"x" * (SMALL_DOCUMENT + 1), False),
        (b"[" * 500_000, True),
        (b"{" * 500_000, True),
        (b"," * 500_000, True),
        (b"\\n" * 200_000, False),
        (b"\\n" * 300_000, True),
        (b"\\\\" * 200_000, False),
    ],
)
def test_a_document_is_costly_by_its_size_and_its_signs(data: bytes, costly: bool) -> None:
    assert is_costly(data) is costly
    budget = make_budget()
    if costly:
        with pytest.raises(AnswerTooLarge, match=f"a single piece of {len(data)} bytes"):
            budget.check_document(data)
    else:
        budget.check_document(data)


@pytest.mark.parametrize(
    ("data", "fits"),
    [
        (b"[" + b"{}," * 10 + b"{}]", False),
        (b"[" + b"{}," * 9 + b"{}]" + b" " * 100_000, True),
        (b"[" + b"{}," * 10 + b"{}]" + b" " * 100_000, False),
        (b'["' + b"{},{}" * 100 + b'"]' + b" " * 100_000, True),
        (b'["\\"' + b"{},{}" * 100 + b'"]' + b" " * 100_000, True),
        (b"[" + b"1," * 21 + b"1]" + b" " * 100_000, False),
        (b"[" + b"1," * 20 + b"1]" + b" " * 100_000, True),
    ],
)
def test_values_are_counted_outside_of_texts(data: bytes, fits: bool) -> None:
    budget = make_budget()
    if fits or len(data) < 1000:
        budget.check_shape(data, max_objects=10, max_values=20)
    else:
        with pytest.raises(AnswerTooLarge, match="too many values"):
            budget.check_shape(data, max_objects=10, max_values=20)
