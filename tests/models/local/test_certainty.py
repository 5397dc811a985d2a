"""A tiny model's answer is shown if the model is sure of its words."""

from __future__ import annotations

import re

import pytest

from support.complexity import assert_linear
from talaria.core.specs import ModelDelta, ScoredTextDelta, TextDelta, ThoughtDelta
from talaria.models.local.certainty import JUDGED_PIECES, HeldAnswer


def judge(question: str, answer: str) -> tuple[bool, str]:
    """Return whether the answer was kept back, and the text that was shown.

    The model gives a word in the answer `WORD/0.3` that probability, and other words 0.99.
    """
    shown: list[ModelDelta] = []
    held = HeldAnswer(question, shown.append)
    for word, probability, end in re.findall(r"(\s*[^\s/]+)(?:/(0\.\d+))?([.]?)", answer):
        held(ScoredTextDelta(word + end, float(probability or "0.99")))
    held.end()
    return held.is_unsure, "".join(delta.text for delta in shown if isinstance(delta, TextDelta))


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is the capital of France?", "The capital of France is Paris."),
        ("who wrote hamlet", "Hamlet was written by William/0.43 Shakespeare."),
        ("how many legs has a dog", "A dog has four/0.62 legs."),
        ("9 times 6", "9/0.2 times 6 equals 54."),  # a sentence may begin in many ways
        ("another word for big", "You can say large/0.3 or huge."),
        ("say good morning in Spanish", 'In Spanish it is "Buenos/0.3 días".'),
        ("how are you?", "I am fine. Thanks/0.2 for asking."),
        ("Put it in capitals: hello world", "HELLO WORLD"),
        ("two fruits", "Here are some:\n\n1./0.2 Apple/0.3\n2. Pear"),
        ("write add in python", "Sure! Here/0.05 it is:\n\n```python\ndef Add/0.01 (a, b): return 7/0.01"),
        ("tell me a story", "Once upon/0.05 a time " + "there was a cat" * JUDGED_PIECES),
    ],
)
def test_an_answer_that_it_is_sure_of_is_shown_as_it_is(question: str, answer: str) -> None:
    is_unsure, shown = judge(question, answer)
    assert not is_unsure
    assert shown == re.sub(r"/0\.\d+", "", answer)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("C'est quoi la capitale de l'Italie ?", "La capitale de l'Italie est Paris/0.34."),
        ("How many legs does a spider have?", "A spider has four/0.46 legs."),
        ("15% of 80?", "15% of 80 is 120/0.41."),
        ("i pay 48 with a 50 note", "You get back 48/0.3 euros."),
        ("the fastest land animal?", "It is the elephant/0.06."),
        ("Was ist die Hauptstadt von Spanien?", "Die Hauptstadt von Spanien ist Spanien."),
        ("three words for happy", "1. Joyful\n2. Cheerful\n3. Cheerful"),
        ("who was on the moon?", "It was James/0.07 Bond." + " And then he went home" * JUDGED_PIECES),
    ],
)
def test_an_answer_that_it_guesses_is_kept_back_whole(question: str, answer: str) -> None:
    assert judge(question, answer) == (True, "")


def test_other_deltas_pass_at_once_and_text_without_a_probability_is_sure() -> None:
    shown: list[ModelDelta] = []
    held = HeldAnswer("who?", shown.append)
    held(TextDelta("It was "))
    held(ThoughtDelta("hm"))
    assert shown == [ThoughtDelta("hm")]
    held(TextDelta("Ada."))
    held.end()
    assert shown == [ThoughtDelta("hm"), TextDelta("It was "), TextDelta("Ada.")]


@pytest.mark.parametrize("piece", ["A ", "\n- "])
def test_a_hostile_answer_is_judged_in_linear_time(piece: str) -> None:
    def judge_many(pieces: list[str]) -> None:
        held = HeldAnswer(pieces[0], lambda delta: None)
        for each in pieces:
            held(ScoredTextDelta(each, 0.9))
        held.end()

    assert_linear(lambda size: [piece * (size // 8)] * 2, judge_many)
