"""The catalogue of texts that people can read: `texts.txt`, by module, in the order of the source.

A text is a string in the code with two words or more. Docstrings, lines of the log below the level warning,
patterns, SQL and the messages of assertions are left out. The docstring of a command is its help: a text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from golden.golden_files import Golden

SOURCE = Path(__file__).parents[2] / "src" / "talaria"
INTERNAL = ("testing",)  # shipped fakes and suites, for authors of plug-ins
_SENTENCE = re.compile(r"[A-Za-z’'`/{}_.-]{2,}[,;:)”]* +[(“\"]?[A-Za-z’'`/{}_.-]{2,}")
_SQL = re.compile(
    r"^\s*\(?(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|PRAGMA|WITH|FROM|JOIN|LEFT|WHERE|AND|OR|ORDER|GROUP"
    r"|LIMIT|ON CONFLICT|VALUES|SET|RETURNING|EXISTS|NOT EXISTS|CASE|UNION|LOCK|LISTEN|COPY|ATTACH|VACUUM)\b"
    r"| [=<>]=? ?['?:(]| IS (?:NOT )?NULL| DESC\b"
)
_COMMANDS = ("verb", "group")


def test_the_catalogue_of_texts(golden: Golden) -> None:
    parts = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE)
        if name.parts[0] not in INTERNAL and (found := list(texts(path.read_text()))):
            lines = [f"  {text}" for is_log, text in found if not is_log]
            lines += [f"  log: {text}" for is_log, text in found if is_log]
            parts.append("\n".join([str(name), *lines]) + "\n")
    golden.check("texts.txt", "\n".join(parts))


def test_which_strings_are_texts() -> None:
    source = '''
"""A docstring of a module."""
@verb("x", "talaria run --now")
def command(given: str) -> None:
    """Run the thing."""
    _log.info("this is not shown")
    _log.warning("could not open %s", given)
    assert given, "never shown to people"
    raise Oops(f"There is no {given.name} in {len(given)}.", "one two", hint="Try `talaria x`.")
async def other() -> None:
    """Return what is not a help."""
    run("SELECT a, b FROM c", re.compile("not a text"), "word", "a-b c_d")
'''
    assert list(texts(source)) == [
        (False, "talaria run --now"),
        (False, "Run the thing."),
        (True, "could not open %s"),
        (False, "There is no {name} in {len}."),
        (False, "one two"),
        (False, "Try `talaria x`."),
        (False, "a-b c_d"),
    ]


def texts(source: str) -> Iterator[tuple[bool, str]]:
    """Yield the texts of a module, each with whether it is a line of the log."""
    for _, is_log, text in sorted(_texts(ast.parse(source), is_log=False)):
        yield is_log, text


def _texts(node: ast.AST, *, is_log: bool) -> Iterator[tuple[tuple[int, int], bool, str]]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("debug", "info") or ast.unparse(node.func).startswith("re."):
            return
        is_log = is_log or (
            node.func.attr in ("warning", "error", "exception", "critical") and _is_log(node.func)
        )
    if isinstance(node, (ast.Assert, ast.arg)):
        return
    if isinstance(node, (ast.Constant, ast.JoinedStr)):
        text = _shown(node)
        if _SENTENCE.search(text) and not _SQL.search(text):
            yield (node.lineno, node.col_offset), is_log, text.strip("\n").replace("\n", "\\n")
        return
    for child in ast.iter_child_nodes(node):
        if not _is_docstring(child, node):
            yield from _texts(child, is_log=is_log)


def _is_log(function: ast.Attribute) -> bool:
    return "log" in ast.unparse(function.value).lower()


def _is_docstring(child: ast.AST, parent: ast.AST) -> bool:
    """Return whether the child is a docstring and not the help of a command."""
    if not isinstance(child, ast.Expr) or not isinstance(child.value, ast.Constant):
        return False
    calls = [each.func for each in getattr(parent, "decorator_list", ()) if isinstance(each, ast.Call)]
    return not any(ast.unparse(call).rpartition(".")[2] in _COMMANDS for call in calls)


def _shown(node: ast.Constant | ast.JoinedStr | ast.FormattedValue) -> str:
    """Return a string as it is written, with the names of its fields in braces."""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            _shown(part) for part in node.values if isinstance(part, (ast.Constant, ast.FormattedValue))
        )
    if isinstance(node, ast.FormattedValue):
        return f"{{{_field(node.value)}}}"
    return node.value if isinstance(node.value, str) else ""


def _field(value: ast.expr) -> str:
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return _field(inner)
        case _:
            return "…"
