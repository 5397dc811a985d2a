"""The names and the docstrings of the source."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "talaria"

PUBLIC_CLASS = re.compile(r" *class ([^\W_]\w*)\b")
ODD_BEGINNING = re.compile(r' *(?:"""|#) *(?:Who|Whoever|What|One|Those) [a-z]')


@cache
def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def files() -> list[Path]:
    found = sorted(SOURCE.rglob("*.py"))
    assert len(found) > 100
    return found


def named(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_a_public_class_name_exists_once() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in files():
        for found in filter(None, map(PUBLIC_CLASS.match, lines_of(path))):
            places[found[1]].append(named(path))
    assert len(places) > 500
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_docstrings_and_comments_begin_with_a_noun_or_a_verb() -> None:
    odd = [
        f"{named(path)}:{number}: {line.strip()}"
        for path in files()
        for number, line in enumerate(lines_of(path), 1)
        if ODD_BEGINNING.match(line)
    ]
    assert odd == []
