"""The blocks of the source, and code that notes which of them it enters.

A block is a row of statements that are entered together: in the body of a function, of a branch, of a loop or
of a handler, up to a statement that may leave it. Blocks are named by file, function and number
("turns/lanes.py:Lanes.take#2.0"), so that a record stays of use when lines move.
"""

from __future__ import annotations

import ast
import hashlib
import marshal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "talaria"
HITS = "_mutants_hits_"
_LISTS = ("body", "orelse", "finalbody")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Block:
    """The statements `first` to `last` of a list. `name` changes with the text of the function."""

    name: str
    statements: list[ast.stmt]
    first: int
    last: int


def source_files() -> list[Path]:
    """Return the files of the product: everything in src/talaria except `testing`."""
    return [path for path in sorted(SOURCE.rglob("*.py")) if path.relative_to(SOURCE).parts[0] != "testing"]


def blocks(path: Path, tree: ast.Module) -> Iterator[Block]:
    """Yield the blocks of all functions. A statement belongs to the innermost block around it."""
    place = path.relative_to(SOURCE).as_posix()
    for qualname, function in functions(tree):
        name = f"{place}:{qualname}"
        digest = hashlib.sha256(ast.unparse(function).encode()).hexdigest()[:8]
        for number, statements in enumerate(_lists(function)):
            starts = [0, *(at + 1 for at, one in enumerate(statements[:-1]) if _may_leave(one))]
            for part, (first, last) in enumerate(pairwise([*starts, len(statements)])):
                yield Block(f"{name}#{number}.{part} {digest}", statements, first, last)


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield all functions with their qualified names, inner ones too."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, Function):
            yield prefix + child.name, child
            yield from functions(child, f"{prefix}{child.name}.")
        else:
            yield from functions(
                child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix
            )


def _lists(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for field in _LISTS:
        statements = getattr(node, field, None)
        if isinstance(statements, list) and statements:
            yield statements
            for statement in statements:
                if not isinstance(statement, Function | ast.ClassDef):
                    yield from _lists(statement)
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield from _lists(part)


def _may_leave(statement: ast.stmt) -> bool:
    """Return whether the statements behind this one may not be entered."""
    if isinstance(statement, Function | ast.ClassDef):
        return False
    return any(
        isinstance(node, ast.Return | ast.Raise | ast.Break | ast.Continue | ast.Await)
        for node in ast.walk(statement)
    )


def write_recording(folder: Path, files: Sequence[Path]) -> list[Block]:
    """Write code of these modules that notes its blocks. Return the blocks in the order of the map."""
    found: list[Block] = []
    for path in files:
        tree = ast.parse(path.read_text())
        own = list(blocks(path, tree))
        for number, block in reversed(list(enumerate(own, len(found)))):
            _insert(block, number)
        found += own
        write_code(folder, path, tree)
    return found


def _insert(block: Block, number: int) -> None:
    """Put a probe before the block. Blocks of a list are to be given from the last to the first."""
    place = block.statements[block.first]
    probe = ast.parse(f"{HITS}[{number}] = 1").body[0]
    for node in ast.walk(probe):
        ast.copy_location(node, place)
    is_docstring = isinstance(place, ast.Expr) and isinstance(place.value, ast.Constant)
    block.statements.insert(block.first + 1 if is_docstring else block.first, probe)


def write_code(folder: Path, path: Path, source: ast.Module | str) -> None:
    """Write the code of one module to where `site/sitecustomize.py` looks for it."""
    relative = path.relative_to(SOURCE.parent).with_suffix("")
    parts = relative.parts[:-1] if relative.name == "__init__" else relative.parts
    code = compile(source, str(path), "exec", dont_inherit=True)
    (folder / ".".join(parts)).write_bytes(marshal.dumps(code))
