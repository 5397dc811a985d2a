"""Pages that people write are easy to read. The rules and their words are in `support/style.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.style import faults

ROOT = Path(__file__).parents[2]
# Written by programs: their sentences are fixed where the program is.
GENERATED = {"chaos.md", "hostile-commands.md", "limits.md", "performance.md", "reference.md", "soak.md"}
PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_have_short_sentences_in_common_words(page: Path) -> None:
    if page.name not in GENERATED:
        assert list(faults(page.read_text())) == []


@pytest.mark.parametrize(
    "sentence",
    [
        "What operates writes one line.",
        "The next start goes on where it was.",
        "Whoever dies is out.",
        "It is no pairing code.",
        "A word " + "and a word " * 10 + "more.",
    ],
)
def test_sentences_that_readers_stumbled_over_are_found(sentence: str) -> None:
    assert list(faults(f"# A page\n\n- {sentence} It ends.\n"))
    assert not list(faults(f"# {sentence}\n\nA short sentence with `{sentence}` in it.\n"))
