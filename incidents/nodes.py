"""Names of tests in documents: `tests/pool/test_pool.py::test_x`, `…::TestClass::test_x`."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parent.parent
_QUOTED = re.compile(r"`(tests/[^`\s]+\.py(?:::\w+)+)`")


def node_ids(text: str) -> tuple[str, ...]:
    """Return the tests that a text names in backquotes."""
    return tuple(_QUOTED.findall(text))


def exists(node_id: str) -> bool:
    """Return whether the test exists. Imports and runs nothing."""
    path, _, name = node_id.partition("::")
    return name in _tests_in(ROOT / path)


@cache
def _tests_in(path: Path) -> frozenset[str]:
    if not path.is_file():
        return frozenset()
    names = set()
    for node in ast.parse(path.read_text()).body:
        if _is_test(node):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names.update(f"{node.name}::{inner.name}" for inner in node.body if _is_test(inner))
    return frozenset(names)


def _is_test(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
