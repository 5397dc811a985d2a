"""Shortening a full memory page by a model: what is asked, and what is taken of the answer. Pure."""

from __future__ import annotations

import re
from typing import Final

from talaria.core.errors import ToolError
from talaria.core.memory import EditOrigin, MemoryPage
from talaria.memory.pages import fact_line, split, words_of

MAX_OUTPUT: Final = 4096  # tokens
_WANTED: Final = 0.6  # of the page
_MOST: Final = 0.8
_LEAST: Final = 0.15  # less than that has lost too much
_DATE: Final = re.compile(r" \((\d{4}-\d\d-\d\d)\)$")


def instructions(page: MemoryPage) -> str:
    return (
        "It is the memory of an assistant, a list of facts with their dates, and it is too long. Write it "
        f"again in at most {int(page.max_bytes * _WANTED)} bytes. Keep every fact that may still matter, and "
        "its date; join facts that belong together; leave out repetitions, and what a later fact has "
        "overtaken. Write one fact on each line, as `- FACT (DATE)`, in the language of the facts, and "
        "nothing else."
    )


def read_answer(answer: str, page: MemoryPage, wanted: str, origin: EditOrigin) -> str:
    """Return the shortened page. Facts that the answer has in the same words keep their origin. `wanted` is
    the page that was too long. Raises `ToolError` if the answer is no such list, too long, or much too
    short."""
    lines = [line.strip() for line in answer.strip().splitlines() if line.strip()]
    if not lines or not all(line.startswith("- ") for line in lines):
        raise ToolError("The model did not answer with a list of facts.")
    known = {words_of(line): line for line in split(wanted)[0]}
    written = []
    for line in lines:
        words = _DATE.sub("", words_of(line))
        date = _DATE.search(line)
        written.append(known.get(words) or fact_line(words, origin, date[1] if date else ""))
    text = "\n".join(written)
    size = len(text.encode())
    if size > page.max_bytes * _MOST:
        raise ToolError(f"The model's shorter text has {size} bytes, which is too long.")
    if size < page.max_bytes * _LEAST:
        raise ToolError(f"The model's shorter text has only {size} bytes, so facts would be lost.")
    return text
