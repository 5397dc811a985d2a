"""Which tests a change can reach, for `./dev test --changed`.

Prints the files and tests for pytest, one on a line, and says on stderr how they were chosen. For the source,
the records of `mutants.reach` are used. A test file without a record is chosen by its imports.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mutants.blocks import ROOT, SOURCE, functions
from mutants.reach import TESTS, Reach, RecordedTest, all_test_files, imported, kept

_SECONDS = 100  # of tests, as recorded; two cores need a minute for them
_TESTS_THAT_READ_SOURCE = ("tests/docs", "tests/golden/test_texts.py")
_ROOTS = (SOURCE.parent, TESTS, ROOT)
_UNRECORDED = SOURCE / "testing"


@dataclass(frozen=True, slots=True)
class Change:
    """A changed file, relative to the clone. `old` and `new` are its texts, empty if there is none."""

    path: str
    old: str
    new: str


@dataclass(slots=True)
class Selection:
    """Test files that run whole, by the change or `by_import` only, and tests of other files.

    `left_out` tests did not fit into the time.
    """

    files: set[str] = field(default_factory=set)
    tests: list[RecordedTest] = field(default_factory=list)
    by_import: set[str] = field(default_factory=set)
    left_out: int = 0

    def arguments(self) -> list[str]:
        """Return what pytest is to run. A test function runs with all of its parameters."""
        names = (test.node.partition("[")[0] for test in self.tests)
        return sorted(self.files | self.by_import) + list(dict.fromkeys(names))


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev test --changed", description=__doc__)
    parser.add_argument("base", nargs="?", help="compare with this commit (default: where main was left)")
    changes = list(read_changes(parser.parse_args().base or _base()))
    known, unrecorded = kept()
    selection = select(changes, known, unrecorded)
    print("\n".join(selection.arguments()))
    print(f"dev: {len(changes)} files changed: {_summary(selection, unrecorded)}", file=sys.stderr)


def _summary(selection: Selection, unrecorded: Sequence[str]) -> str:
    said = f"running {len(selection.files)} test files and {len(selection.tests)} tests of other files"
    if selection.left_out:
        said += f"; {selection.left_out} tests reach the change too, but do not fit into a minute"
    if selection.by_import:
        said += (
            f"; {len(selection.by_import)} files only because of their imports, since {len(unrecorded)} test "
            "files have no record of what they reach (./dev mutants --record makes it)"
        )
    return said


def _base() -> str:
    """Return the commit where this branch left main, or HEAD."""
    return _git("merge-base", "HEAD", "main").strip() or "HEAD"


def read_changes(base: str, root: Path = ROOT) -> Iterator[Change]:
    """Yield the files of the work tree that differ from a commit, new ones too."""
    if not _git("rev-parse", "--verify", "--quiet", f"{base}^{{commit}}", root=root):
        raise SystemExit(f"dev: {base} is not a commit")
    changed = _git("diff", "--name-only", "--no-renames", "-z", base, root=root)
    new = _git("ls-files", "--others", "--exclude-standard", "-z", root=root)
    for path in filter(None, (changed + new).split("\0")):
        file = root / path
        is_code = path.endswith(".py")
        old = _git("show", f"{base}:{path}", root=root) if is_code else ""
        yield Change(path, old, file.read_text() if is_code and file.exists() else "")


def _git(*arguments: str, root: Path = ROOT) -> str:
    """Return the output of a git command, empty if it failed."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def select(changes: Sequence[Change], known: Reach, unrecorded: Collection[str]) -> Selection:
    """Choose the tests that the changes can reach, the nearest first if not all fit into a minute."""
    selection = Selection()
    near: list[RecordedTest] = []
    others: list[RecordedTest] = []
    source: set[Path] = set()
    code: set[Path] = set()
    for change in changes:
        path = ROOT / change.path
        if path.is_relative_to(SOURCE) and not path.is_relative_to(_UNRECORDED):
            modules = _modules(path)
            source |= modules
            changed = differing(change.old, change.new) if path.suffix == ".py" else (None, set())
            for module in modules:
                nearer, further = known.touching(module.relative_to(SOURCE).as_posix(), *changed)
                near += nearer
                others += further
        elif path.suffix == ".py":
            code.add(path)
        else:
            selection.files |= _readers(path)
    selection.files |= _importing(code)
    if source:
        selection.files |= {file for file in all_test_files() if file.startswith(_TESTS_THAT_READ_SOURCE)}
        selection.by_import = _importing(source) & set(unrecorded) - selection.files
    reached = {test.node: test for test in (*near, *others)}
    waiting = [test for test in reached.values() if test.node.partition("::")[0] not in selection.files]
    seconds = 0.0
    for test in waiting:
        if seconds + test.seconds <= _SECONDS:
            seconds += test.seconds
            selection.tests.append(test)
    selection.left_out = len(waiting) - len(selection.tests)
    return selection


def _modules(path: Path) -> set[Path]:
    """Return the module, or for another file of the source the modules of its folder or of one above."""
    if path.suffix == ".py":
        return {path}
    return next(found for folder in path.parents if (found := set(folder.glob("*.py"))))


def _readers(path: Path) -> set[str]:
    """Return the test files that may read a file: of its folder in tests/, of the docs, or that name it."""
    if path.is_relative_to(TESTS):
        folder = next(folder for folder in path.parents if folder == TESTS or any(folder.glob("test_*.py")))
        return {file for file in all_test_files() if (ROOT / file).is_relative_to(folder)}
    named = {file for file in all_test_files() if f'"{path.name}"' in (ROOT / file).read_text()}
    is_page = path.suffix == ".md" or path.is_relative_to(ROOT / "docs")
    return named | {file for file in all_test_files() if is_page and file.startswith("tests/docs/")}


def _importing(changed: Collection[Path]) -> set[str]:
    """Return the test files that import one of these files, directly or not, or have it as a conftest."""
    tests = set(all_test_files())
    importers: dict[Path, set[Path]] = defaultdict(set)
    for path in [file for package in _packages() for file in package.rglob("*.py")] if changed else ():
        conftests = (folder / "conftest.py" for folder in path.parents if folder.is_relative_to(TESTS))
        for used in (*imported(path, *_ROOTS), *conftests):
            importers[used].add(path)
    found: set[Path] = set()
    waiting = list(changed)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += importers[path]
    return {path.relative_to(ROOT).as_posix() for path in found} & tests


def _packages() -> list[Path]:
    return [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]


def differing(old: str, new: str) -> tuple[set[str], set[str]]:
    """Return the functions of a module whose text differs, and names of changed statements outside of them.

    Of a changed import, the functions that use it are returned: other modules do not see it.
    """
    before, after = ast.parse(old), ast.parse(new)
    changed = {name for name, _ in _texts(before) ^ _texts(after)}
    names: set[str] = set()
    for statement in _outside(before, after):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            aliases = {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
            changed |= {name for name, function in functions(after) if _names(function) & aliases}
        else:
            names |= _names(statement, ast.Store) or _names(statement)
    return changed, names


def _texts(tree: ast.Module) -> set[tuple[str, str]]:
    return {(name, ast.unparse(function)) for name, function in functions(tree)}


def _outside(before: ast.Module, after: ast.Module) -> list[ast.stmt]:
    """Return the statements outside of functions that only one of both has."""
    old, new = ({ast.unparse(one): one for one in _statements(tree.body)} for tree in (before, after))
    return [one for text, one in (old | new).items() if (text in old) != (text in new)]


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Expr(value=ast.Constant()):
                continue
            case ast.ClassDef(name=name, bases=bases, keywords=keywords, decorator_list=decorators):
                head = ast.Call(ast.Name(name, ast.Store()), [*bases, *decorators], keywords)
                yield ast.Expr(head)
                yield from _statements(statement.body)
            case _:
                yield statement


def _names(tree: ast.AST, context: type[ast.expr_context] = ast.expr_context) -> set[str]:
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return {node.id for node in found if isinstance(node.ctx, context)}


if __name__ == "__main__":
    main()
