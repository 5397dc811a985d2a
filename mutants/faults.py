"""The faults that can be planted in a statement, found in its syntax tree.

A fault replaces one stretch of the source text, so that its diff shows just that. Wording is left alone: log
lines, docstrings, messages, names of tasks, `__all__`, annotations and assertions have no faults.
docs/mutants.md lists the kinds.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from mutants.blocks import Function, blocks

_COMPARE: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
}
_OPPOSITE = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LOGGER = re.compile(r"_?\w*log(ger)?", re.IGNORECASE)
_WORDING = (
    "help", "hint", "text", "title", "label", "reason", "detail", "message", "metavar", "description",
    "short_help", "epilog", "name", "doc", "prog", "strict", "user_text", "what", "why", "encoding",
)  # fmt: skip
_TEXTS = ("text", "hint", "title", "label", "reason", "detail", "message", "what", "why")
_TIME = re.compile(
    r"seconds|timeout|patience|interval|delay|grace|pause|wait|every|ttl|deadline", re.IGNORECASE
)
_BUFFER = re.compile(
    r"read|recv\w*|\w*(buffer|chunk|slice|piece|batch|cached|kept|remembered)\w*", re.IGNORECASE
)  # these trade time for memory, and change no result
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
_SYNC = re.compile(r"_?(f|fdata)?sync(_\w+)?")  # makes a difference only when the power fails
_WORD = re.compile(r"[A-Za-z_][\w./:-]*")
_SMALL = 16
Change = tuple[str, int, int, str]


@dataclass(frozen=True, slots=True)
class Fault:
    """A replacement of the text between two offsets of a file.

    `block` is the name of the block around the statement. Outside of functions it is empty, and `subject` is
    the name that the statement binds.
    """

    path: Path
    kind: str
    line: int
    start: int
    end: int
    new: str
    block: str = ""
    subject: str = ""

    def apply(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]

    def is_code(self, text: str) -> bool:
        """Return whether Python accepts the changed text and sees a difference."""
        try:
            return ast.dump(ast.parse(self.apply(text))) != ast.dump(ast.parse(text))
        except SyntaxError:
            return False

    def lines(self, text: str) -> tuple[str, str]:
        """Return the changed line before and after, without indentation."""
        begin = text.rfind("\n", 0, self.start) + 1
        end = text.find("\n", self.end)
        old = text[begin : end if end >= 0 else len(text)]
        new = text[begin : self.start] + self.new + text[self.end : end if end >= 0 else len(text)]
        return " ".join(old.split()), " ".join(new.split())


def statements(path: Path, text: str) -> list[list[Fault]]:
    """Return the possible faults of each statement; statements without any are left out.

    A handler (`except X:`) and the defaults of a function count as statements of their own.
    """
    tree = ast.parse(text)
    finder = _Finder(text)
    found: list[list[Fault]] = []

    def add(changes: Sequence[Change], block: str, subject: str = "") -> None:
        if changes:
            found.append(
                [
                    Fault(path, kind, _line(text, at), at, end, new, block, subject)
                    for kind, at, end, new in changes
                ]
            )

    own: dict[int, str] = {}
    for block in blocks(path, tree):
        own.setdefault(id(block.statements), block.name)
        if ".__repr__#" in block.name:
            continue
        for statement in block.statements[block.first : block.last]:
            add(list(finder.changes(statement)), block.name)
            for handler in getattr(statement, "handlers", ()):
                add(list(finder.of_handler(handler)), block.name)
    for statement in _outside_functions(tree):
        if isinstance(statement, Function):
            add(list(finder.of_defaults(statement)), own[id(statement.body)])
        else:
            add(list(finder.of_constants(statement)), "", _subject(statement))
    return found


def _outside_functions(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of the module and of its classes."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If):
            continue  # TYPE_CHECKING, and what depends on the system
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, ast.ClassDef):
            yield from _outside_functions(child)


def _subject(statement: ast.stmt) -> str:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return ""


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _is_left_out(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant()) | ast.Assert() | ast.Import() | ast.ImportFrom() | ast.Pass():
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called))) if (
            called == "assert_never" or _SYNC.fullmatch(called)
        ):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name)))):
            return _LOGGER.fullmatch(name) is not None
        case ast.Expr(
            value=ast.Await(value=ast.Call(func=ast.Attribute(attr="gather"), keywords=[only]))
        ) if only.arg == "return_exceptions":
            return True  # waits for tasks that end anyway, and drops what they return
        case ast.Delete(targets=[ast.Name()]):
            return True
        case ast.Raise(exc=ast.Name(id="NotImplementedError")):
            return True
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return True
        case ast.If(body=body, orelse=orelse) | ast.For(body=body, orelse=orelse):
            return all(map(_is_left_out, [*body, *orelse]))
    return False


class _Finder:
    def __init__(self, text: str) -> None:
        self._text = text
        self._starts = [0]
        for line in text.encode().splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._bytes = None if text.isascii() else text.encode()

    def changes(self, statement: ast.stmt) -> Iterator[Change]:
        """Yield the changes of one statement, without the statements inside it."""
        if isinstance(statement, Function):
            yield from self.of_defaults(statement)
        if _is_left_out(statement):
            return
        yield from self._of_statement(statement)
        for node, name in _own_expressions(statement):
            yield from self._of_expression(node, name)

    def of_handler(self, handler: ast.excepthandler) -> Iterator[Change]:
        """Yield changes that let an error pass the handler."""
        if not isinstance(handler, ast.ExceptHandler) or handler.type is None:
            return
        wanted = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        for node in wanted:
            yield "handler removed", *self._span(node), "ZeroDivisionError"

    def of_defaults(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Change]:
        arguments = function.args
        named = [*arguments.posonlyargs, *arguments.args]
        last = named[len(named) - len(arguments.defaults) :]
        pairs = [
            *zip(last, arguments.defaults, strict=True),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]
        for argument, default in pairs:
            if isinstance(default, ast.Constant):
                yield from self._of_constant(default, argument.arg)

    def of_constants(self, statement: ast.stmt) -> Iterator[Change]:
        """Yield changes of the values that a module or a class defines."""
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or _subject(statement).startswith("__"):
            return
        if (
            statement.value is not None
            and _CONSTANT.fullmatch(_subject(statement))
            and _is_number(statement.value)
        ):
            yield "number changed", *self._span(statement.value), "0"
            return
        for node, name in _own_expressions(statement):
            if isinstance(node, ast.Constant) or _is_operation(node):
                yield from self._of_expression(node, name or _subject(statement))

    def _of_statement(self, node: ast.stmt) -> Iterator[Change]:
        start, end = self._span(node)
        match node:
            case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call())):
                yield "call removed", start, end, "pass"
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
                yield "assignment removed", start, end, "pass"
            case ast.Assign(value=ast.JoinedStr()) if _subject(node) in _TEXTS:
                pass
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value) if not _is_nothing(value):
                yield "assigns None", *self._span(value), "None"
            case ast.Delete():
                yield "deletion removed", start, end, "pass"
            case ast.Raise(exc=ast.Call(func=raised) | (ast.Name() as raised)):
                yield "raise removed", start, end, "pass"
                yield "another error raised", *self._span(raised), "RuntimeError"
            case ast.Raise():
                yield "raise removed", start, end, "pass"
            case ast.Return(value=None):
                yield "return removed", start, end, "pass"
            case ast.Return(value=ast.expr() as value) if not _is_nothing(value):
                yield "returns None", start, end, "return None"
            case ast.Break():
                yield "break became continue", start, end, "continue"
            case ast.Continue():
                yield "continue became break", start, end, "break"
            case ast.If(test=test) | ast.While(test=test) if not isinstance(test, ast.Constant):
                yield from self._negate(test)
            case ast.For(iter=items) | ast.AsyncFor(iter=items):
                if isinstance(node, ast.For):
                    yield "loop removed", *self._span(items), "()"

    def _negate(self, test: ast.expr) -> Iterator[Change]:
        first, last = self._span(test)
        if not isinstance(test, ast.Compare | ast.UnaryOp) or (
            isinstance(test, ast.Compare) and len(test.ops) > 1
        ):
            yield "condition negated", first, last, f"not ({self._text[first:last]})"

    def _of_expression(self, node: ast.AST, name: str) -> Iterator[Change]:
        match node:
            case ast.Compare(left=left, ops=ops, comparators=rights):
                for op, before, right in zip(ops, [left, *rights], rights, strict=False):
                    yield from self._swap("comparison changed", before, right, *_COMPARE[type(op)])
            case ast.BoolOp(op=boolean, values=values):
                words = ("and", "or") if isinstance(boolean, ast.And) else ("or", "and")
                for before, after in pairwise(values):
                    yield from self._swap(f"{words[0]} became {words[1]}", before, after, *words)
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
                yield from self._swap("arithmetic changed", left, right, *_ARITHMETIC[type(operator)])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                first, last = self._span(operand)
                yield "not removed", *self._span(node), f"({self._text[first:last]})"
            case ast.Constant():
                yield from self._of_constant(node, name)
            case ast.IfExp(test=test) | ast.comprehension(ifs=[test]):
                yield from self._negate(test)
            case ast.Call():
                yield from self._of_call(node)

    def _of_call(self, node: ast.Call) -> Iterator[Change]:
        if isinstance(node.func, ast.Name) and node.func.id in _OPPOSITE:
            yield "opposite function", *self._span(node.func), _OPPOSITE[node.func.id]
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in _WORDING:
                start, end = self._span(keyword)
                comma = re.compile(r"\s*,[^\S\n]*").match(self._text, end)
                yield "argument removed", start, comma.end() if comma else end, ""

    def _of_constant(self, node: ast.Constant, name: str) -> Iterator[Change]:
        span = self._span(node)
        match node.value:
            case bool() as value:
                yield "constant flipped", *span, str(not value)
            case int() | float() as value:
                yield from (("number changed", *span, new) for new in _other_numbers(value, name))
            case str() as word if name == _KEY and _WORD.fullmatch(word):
                yield "word changed", *span, f'"{word}x"'

    def _swap(self, kind: str, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[Change]:
        """Replace an operator between two operands. Brackets around them stay."""
        begin, end = self._span(left)[1], self._span(right)[0]
        between = self._text[begin:end]
        if between.count(old) == 1:
            at = begin + between.index(old)
            yield kind, at, at + len(old), new

    def _span(self, node: ast.stmt | ast.expr | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[node.end_lineno - 1] + node.end_col_offset
        if self._bytes is None:
            return start, end
        return len(self._bytes[:start].decode()), len(self._bytes[:end].decode())


_KEY = "[key]"  # the name of strings that programs read: keys, compared words, patterns


def _is_nothing(node: ast.expr) -> bool:
    """Return whether None in its place is the same to most callers, or breaks only a chain of calls."""
    return (isinstance(node, ast.Constant) and not node.value) or (
        isinstance(node, ast.Name) and node.id == "self"
    )


def _is_number(node: ast.expr) -> bool:
    """Return whether the value is a number other than 0, or a calculation with numbers only."""
    inner = [part for part in ast.walk(node) if isinstance(part, ast.expr)]
    return all(
        isinstance(part, ast.BinOp) or (isinstance(part, ast.Constant) and type(part.value) in (int, float))
        for part in inner
    ) and not (isinstance(node, ast.Constant) and not node.value)


def _is_operation(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp)


def _other_numbers(value: float, name: str) -> list[str]:
    """A small number becomes its neighbour, a large one half. Time limits become 0, sizes of buffers stay."""
    if _TIME.search(name):
        return ["0"] if value else ["5"]
    if _BUFFER.fullmatch(name):
        return []
    if abs(value) <= _SMALL:
        return [repr(value + 1)]
    return [repr(value // 2 if isinstance(value, int) else value / 2)]


def _own_expressions(statement: ast.stmt) -> Iterator[tuple[ast.AST, str]]:
    """Yield the expressions of a statement with the name of their place: a keyword, a target, `_KEY`.

    Statements inside it, annotations and formatted strings are left out.
    """
    waiting: list[tuple[ast.AST, str]] = [(statement, _subject(statement))]
    while waiting:
        node, place = waiting.pop()
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Subscript) and _is_type(node)):
            continue
        if node is not statement and isinstance(node, ast.expr | ast.comprehension):
            yield node, place
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "handlers") or (
                node is statement and field == "body"
            ):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.stmt | ast.excepthandler):
                    waiting.append((child, _place(node, field, child, place)))


def _is_type(node: ast.Subscript) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("dict", "list", "set", "tuple", "type")


def _place(node: ast.AST, field: str, child: ast.AST, place: str) -> str:
    match node:
        case ast.keyword(arg=str() as name):
            return name
        case ast.Compare() | ast.MatchValue() | ast.Subscript():
            return _KEY
        case ast.Dict() if field == "keys":
            return _KEY
        case ast.Call(func=ast.Attribute(attr="get" | "pop" | "startswith" | "endswith" | "partition")) if (
            field == "args"
        ):
            return _KEY
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if field == "args":
            return name
        case ast.Tuple() | ast.Set() | ast.List() | ast.BinOp() | ast.UnaryOp() | ast.IfExp() | ast.BoolOp():
            return place
        case ast.match_case() | ast.MatchOr() | ast.Assign() | ast.AnnAssign() | ast.AugAssign():
            return place
    return ""
