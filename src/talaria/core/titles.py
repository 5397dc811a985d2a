"""Titles of sessions from their first words, without a model."""

from __future__ import annotations

import re
from typing import Final

from talaria.core.messages import File, UserMessage
from talaria.core.text import clean_line

LONGEST_TITLE: Final = 60  # characters
_LOOKED_AT: Final = 4_000
# Lines that channels put before a person's words: notes in brackets, quotes, the name of the speaker.
_PREFACE: Final = re.compile(r"\[[^\[\]]{1,80}\]|>.*|.{1,64} says:|```.*|[-=#*_\s]*")


def first_words(message: UserMessage) -> str:
    """Return the beginning of the message as a title; the name of its file if it has no words; else empty."""
    text = message.text[:_LOOKED_AT]
    lines = [line for line in text.splitlines() if not _PREFACE.fullmatch(line.strip())]
    title = shorten_title(lines[0] if lines else text)
    if title:
        return title
    names = [part.name for part in message.parts if isinstance(part, File)]
    return shorten_title(names[0]) if names else ""


def shorten_title(text: str) -> str:
    """Return one line of at most `LONGEST_TITLE` characters, without marks of Markdown in front. It is cut at
    the end of a word, if there is one not too far away."""
    line = clean_line(text, _LOOKED_AT).lstrip("#>*-` ")
    if len(line) <= LONGEST_TITLE:
        return line
    end = line.rfind(" ", LONGEST_TITLE // 2, LONGEST_TITLE)
    return line[: end if end > 0 else LONGEST_TITLE - 1].rstrip(" ,;:.") + "…"
