"""The check of a call's arguments against the whole JSON schema of a server's tool, with `$ref` and `oneOf`.

`tools/function.py` has checked the plain keywords before. Here `jsonschema`, which the SDK needs, checks the
rest. A schema may be hostile. So nothing is loaded, keywords with unbounded steps are skipped, and the whole
check has a limit of CPU time. The server checks the calls that are let through.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec
from jsonschema import Draft202012Validator, ValidationError, validators
from jsonschema.exceptions import best_match
from referencing import Registry

from talaria.core.errors import ToolError
from talaria.tools.mcp.texts import clean_line

_MAX_SECONDS: Final = 0.2  # of CPU time; a usual check takes a few milliseconds
_MAX_ERRORS: Final = 20
# Regular expressions can take exponential time. The others take steps that nothing counts.
_SKIPPED: Final = (
    *("pattern", "patternProperties", "uniqueItems", "$dynamicRef", "unevaluatedItems"),
    "unevaluatedProperties",
)


class _Unchecked(Exception):
    """The time is over."""


def check_arguments(name: str, parameters: str, arguments: dict[str, Any]) -> None:
    """Raise `ToolError` for the model if the arguments of the tool `name` break its schema. Return without a
    result for a schema that is broken, or takes too long. Blocks for a moment: call it in a thread."""
    deadline = time.thread_time() + _MAX_SECONDS

    def bounded(keyword: str, check: Callable[..., Any]) -> Callable[..., Iterator[ValidationError]]:
        def run(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
            if time.thread_time() > deadline:
                raise _Unchecked
            is_foreign = keyword == "$ref" and not value.startswith("#/") and value != "#"
            is_matched = keyword == "additionalProperties" and "patternProperties" in schema
            is_old = keyword.startswith("exclusive") and isinstance(value, bool)  # as in draft 4
            if not is_foreign and not is_matched and not is_old:
                yield from check(validator, value, instance, schema) or ()

        return run

    known = Draft202012Validator.VALIDATORS
    checks = {word: bounded(word, check) for word, check in known.items() if word not in _SKIPPED}
    kind: Any = validators.create({}, checks, type_checker=Draft202012Validator.TYPE_CHECKER)
    try:
        found = kind(msgspec.json.decode(parameters), registry=Registry()).iter_errors(arguments)
        wrong = best_match(islice(found, _MAX_ERRORS))
    except Exception:  # a broken schema raises anything
        return
    if wrong is not None:
        where = clean_line(wrong.json_path.replace("$", "arguments", 1), 100)
        raise ToolError(f"The arguments of {name} are wrong: {where}: {clean_line(wrong.message)}.")
