"""Runs the checks of one client and prints a line of JSON for each. Needs the standard library only.

A script is called with the address and the token of a gateway and the address of its scripted model:
`python openai_python.py URL TOKEN MODEL_URL`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

URL, TOKEN, MODEL_URL = (*sys.argv[1:], "", "", "")[:3]
BASE = f"{URL}/v1"
SESSION = {"X-Talaria-Session": f"client-{os.getpid()}"}
WRONG_KEY = "wrong"
UNKNOWN = "nope/nothing"

# What the scripted model is told, and what the client must give back.
LOOP, SUNNY = '[[call weather {"city": "Rome"}]]', "Tool results: sunny in Rome"
CITY = '[[reply {"name": "Rome"}]]'
WORDS, SPOKEN = "[[chunks 3]][[reply one two three]]", "one two three"
LIMITED = "[[status 429]][[retry-after 7]]"
TOO_LONG = "[[status 400]][[code context_length_exceeded]]"
USED = "[[usage 9 4 3 2]]"
ENDLESS = "[[chunks 500]][[words 500]][[chunk-delay 0.1]]"
SEND = (
    '[[call write_file {"path": "a.txt", "content": "hi"}]][[call send_file {"path": "a.txt"}]][[reply sent]]'
)
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

_checks: dict[str, Callable[[], Any]] = {}
_loop = asyncio.Runner()


def check(feature: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Mark a function, plain or async, that fails if the client does not have the feature here."""

    def add(function: Callable[[], Any]) -> Callable[[], Any]:
        _checks[feature] = function
        return function

    return add


def cannot(reason: str, *features: str) -> None:
    """The client has no such features anywhere."""
    for feature in features:
        _checks.pop(feature, None)
        _tell(feature, cannot=reason)


def run(*packages: str, **versions: str) -> None:
    """Run all checks, in order. `versions` are those of what is no Python package."""
    _print({"versions": {name: version(name) for name in packages} | versions})
    only = os.environ.get("TALARIA_CLIENT_FEATURES", "")
    for feature, function in _checks.items():
        if only and feature not in only.split(","):
            continue
        began = time.monotonic()
        try:
            result = function()
            if asyncio.iscoroutine(result):
                _loop.run(result)
        except BaseException as error:  # a check may also end by SystemExit
            said = "".join(traceback.format_exception_only(error)).strip()
            where = traceback.extract_tb(error.__traceback__)
            line = next((f.lineno for f in reversed(where) if f.filename.endswith(sys.argv[0])), 0)
            _tell(feature, ok=False, why=f"line {line}: {said}")
        else:
            _tell(feature, ok=True, seconds=round(time.monotonic() - began, 2))


def _tell(feature: str, **more: Any) -> None:
    _print({"feature": feature, **more})


def _print(told: dict[str, Any]) -> None:
    print(json.dumps(told), file=sys.__stdout__, flush=True)


# -- what the gateway and the model saw -------------------------------------------------------------------


def get(path: str) -> Any:
    request = urllib.request.Request(URL + path, headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def recorded() -> str:
    """Return the requests that the model has received since the last call of this function."""
    request = urllib.request.Request(f"{MODEL_URL}/_recorded", method="DELETE")
    with urllib.request.urlopen(request) as answer:
        return str(answer.read().decode())


def cancelled() -> int:
    """Return how many calls were cancelled so far."""
    return int(get("/api/status")["turns"].get("cancelled", 0))


def until_cancelled(before: int) -> None:
    deadline = time.monotonic() + 60
    while cancelled() <= before:
        assert time.monotonic() < deadline, "the call goes on without its client"
        time.sleep(0.02)


def until_asked() -> None:
    """Wait until the model is asked. Call `recorded` before."""
    deadline = time.monotonic() + 60
    while recorded() == "[]":
        assert time.monotonic() < deadline, "the model was not asked"
        time.sleep(0.02)


def raises(kind: type[BaseException] | tuple[type[BaseException], ...], call: Callable[[], Any]) -> Any:
    """Return the error that the call ends with."""
    try:
        result = call()
        if asyncio.iscoroutine(result):
            result = _loop.run(result)
    except kind as error:
        return error
    raise AssertionError(f"no {kind}, but {result!r}")
