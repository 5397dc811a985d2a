"""Every error text for a chat is one sentence with one action."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from talaria.core import errors
from talaria.core.errors import ModelError, TalariaError
from talaria.core.redaction import Redactor
from talaria.models.failures import ErrorBody, ProviderErrors

SOURCE = Path(errors.__file__).parents[1]
# Where a turn or a command can fail. The HTTP API's own errors are for programs, the program's for shells.
PACKAGES = ("access", "agent", "commands", "models", "store", "turns")
# Never told to people: they are for the model, for programs, or for the code around them.
SILENT = {"ToolError", "StaleFence", "LeaseHeld", "NoSession", "SteerWaiting", "IllegalMove", "StoreLocked"}
KINDS = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, TalariaError) and name not in SILENT
}
# Errors there end a start or a command of the shell, or tell of a mistake in our own code; never a turn.
APART = {
    "store/archive.py",
    "store/home_lock.py",
    "store/sql/rules.py",
    "store/sqlite/schema.py",
    "store/sqlite/writer.py",
}
ANOTHER = re.compile(r"[.!?] +[A-Z]")
QUESTION = re.compile(r" Did you mean [^?]*\?$")  # belongs to what was not found


def is_one_sentence(text: str) -> bool:
    text = QUESTION.sub("", text)
    return text.endswith((".", "!", "?", "…")) and not ANOTHER.search(text[:-1])


def written(node: ast.expr) -> str | None:
    """Return a text of the source with an x for each placeholder, or None if it is built elsewhere."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            parts = [written(value) if isinstance(value, ast.Constant) else "x" for value in values]
            return "".join(part or "" for part in parts)
        case _:
            return None


def errors_of(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
            yield f"{path.relative_to(SOURCE)}:{node.lineno} {node.func.id}", node


def test_an_error_is_one_sentence_and_one_action() -> None:
    calls = [
        found
        for package in PACKAGES
        for path in sorted((SOURCE / package).rglob("*.py"))
        if str(path.relative_to(SOURCE)) not in APART
        for found in errors_of(path)
    ]
    assert len(calls) > 40
    for where, call in calls:
        said = [written(argument) for argument in call.args]
        assert said, f"{where}: an error without words"
        if said[0] is not None and "x" not in said[0][-3:]:
            assert is_one_sentence(said[0]), (where, said[0])
        assert len(call.args) > 1, f"{where}: what should one do? {said[0]}"
        if said[1] is not None and "x" not in said[1][-3:]:
            assert is_one_sentence(said[1]), (where, said[1])


ERRORS = ProviderErrors("acme", "gpt-x", Redactor())
MODEL_ERRORS: dict[str, ModelError] = {
    **{
        f"status {code}": ERRORS.from_status(code, {}, b"")
        for code in (307, 400, 401, 403, 404, 429, 500, 529)
    },
    "retry after": ERRORS.from_status(429, {"Retry-After": "90"}, b""),
    "too long": ERRORS.from_status(400, {}, b'{"error": {"code": "context_length_exceeded"}}'),
    "in stream": ERRORS.in_stream(ErrorBody("Overloaded")),
    "cut off": ERRORS.cut_off(),
    "malformed": ERRORS.malformed("no JSON"),
    "unreachable": ERRORS.unreachable("http://127.0.0.1:9/v1", "Connection refused"),
    "untrusted": ERRORS.untrusted("https://x", "self-signed certificate"),
    "disconnected": ERRORS.disconnected(),
    "resting": ERRORS.resting(5, 30),
    "no_first_token": ERRORS.no_first_token(30),
    "silent": ERRORS.stalled(30),
    "unconnected": ERRORS.connect_timed_out("http://x", 10),
    "too slow": ERRORS.timed_out(600),
}


@pytest.mark.parametrize("name", MODEL_ERRORS)
def test_a_failed_call_is_told_in_one_sentence_and_one_action(name: str) -> None:
    error = MODEL_ERRORS[name]
    assert is_one_sentence(error.user_text.replace("config.toml", "file")), error.user_text
    assert is_one_sentence(error.hint.replace("config.toml", "file")), error.hint
    assert len(error.user_text) + len(error.hint) < 300


def test_a_refused_key_says_how_to_go_on() -> None:
    error = MODEL_ERRORS["status 401"]
    assert str(error) == (
        "acme (model gpt-x) did not accept the key (HTTP 401). "
        "Send `/model local`, or run `talaria setup` to set another key."
    )
