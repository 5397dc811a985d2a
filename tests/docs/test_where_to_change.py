"""The table "To change X, open Y" of ARCHITECTURE.md: its files exist, and so do the names in it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from docs.test_docs import exists, rows, section

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "talaria"
MOST_ROWS = 40
TABLE = list(rows(section((ROOT / "ARCHITECTURE.md").read_text(), "To change X, open Y")))
PATH = re.compile(r"[\w./-]+(?:/|\.(?:py|md|js|toml|css|html))")
NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


@cache
def texts() -> dict[Path, str]:
    return {path: path.read_text() for path in SOURCE.rglob("*.py")}


@cache
def names_of(path: Path) -> frozenset[str]:
    """The names of the file, its packages, classes, functions, attributes and constants."""
    names = set(path.relative_to(SOURCE).with_suffix("").parts)
    for node in ast.walk(ast.parse(texts()[path])):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(names)


def is_known(name: str) -> bool:
    """Only files that may define the name are parsed."""
    begins = re.compile(rf"^ *(?:async )?(?:def |class )?{name}\b *[(:=]", re.MULTILINE)
    return any(
        name in names_of(path)
        for path, text in texts().items()
        if name in path.with_suffix("").parts or begins.search(text)
    )


def test_the_table_is_short_because_names_answer_most_questions() -> None:
    assert 10 <= len(TABLE) <= MOST_ROWS


def test_the_files_and_names_of_the_rows_exist() -> None:
    for what, where in TABLE:
        quoted = re.findall(r"`([^`]+)`", where)
        linked = re.findall(r"\]\(([^)#\s]+)", where) + re.findall(r"(?<![\w/(])docs/[\w/-]+\.md", where)
        assert quoted or linked, f"the row names no file: {what}"
        for text in [*quoted, *linked]:
            if PATH.fullmatch(text):
                assert exists(text), (what, text)
            elif NAME.fullmatch(text):
                assert all(map(is_known, text.split("."))), (what, text)
