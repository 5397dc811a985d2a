"""Titles from the first words of a message."""

from __future__ import annotations

import pytest

from talaria.core.messages import File, Image, Part, Text, UserMessage
from talaria.core.sessions import LONGEST_TITLE, first_words, shorten_title

LONG = "How do I repot a large monstera without breaking its aerial roots in the process of doing so"


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Buy milk", "Buy milk"),
        ("  \n\n  two\tlines\nhere", "two lines"),
        (LONG, "How do I repot a large monstera without breaking its aerial…"),
        ("日本語の長い文章" * 20, "日本語の長い文章" * 7 + "日本語…"),
        ("[Forwarded message]\nThe train is late", "The train is late"),
        ("[In reply to Ann:]\n> earlier words\nI agree", "I agree"),
        ("Ann says:\nHello all", "Hello all"),
        ("# A heading\ntext", "A heading"),
        ("```python\nprint(1)\n```", "print(1)"),
        ("[just a note]", "[just a note]"),
        ("\x1b[31mred\x07 and \u202egnp", "[31mred and gnp"),
        ("", ""),
    ],
)
def test_a_title_is_the_first_line_that_a_person_wrote(text: str, title: str) -> None:
    assert first_words(UserMessage((Text(text),))) == title
    assert len(title) <= LONGEST_TITLE


def test_a_message_without_words_is_titled_by_its_file() -> None:
    parts: tuple[Part, ...] = (File("report.pdf", "report.pdf", "application/pdf", 9), Image("data:,"))
    assert first_words(UserMessage(parts)) == "report.pdf"
    assert first_words(UserMessage(parts[1:])) == ""


def test_a_megabyte_is_not_read_for_a_title() -> None:
    assert first_words(UserMessage((Text("x" * (1 << 20)),))) == "x" * (LONGEST_TITLE - 1) + "…"
    assert shorten_title("word " * 100).endswith("word…")
