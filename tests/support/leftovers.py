"""Checks at the end of every test: nothing is left in its process, and its databases are consistent."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from support.ledger_rules import check_databases
from talaria.workspace.sandbox.process import SPAWNER

_ENDING = 250  # looks
_SERVER = "postgres"  # ends with its fixture; some tests restart it
_CANARY = "talaria-canary-"  # stays if a gateway is killed while it tries its sandbox
_FEW_TURNS, _MOST_TURNS = 5, 100  # of the loop, in which tasks that were cancelled end


_stays: set[str] = set()


@contextmanager
def staying() -> Iterator[None]:
    """What starts in this block may stay when the test ends."""
    before = find_things()
    yield
    _stays.update(find_things() - before)


class Leftovers:
    """A pytest plugin. A test that breaks a database on purpose has the mark `broken_database`."""

    def __init__(self) -> None:
        if sys.platform == "linux":
            SPAWNER.start()  # it ends with this process, whichever test needs it first

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """What fixtures of modules and sessions start stays until they end."""
        if fixturedef.scope == "function":
            return (yield)
        with staying():
            return (yield)

    @pytest.fixture(autouse=True)
    def nothing_is_left(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """Ends after the other fixtures of the test."""
        folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
        loop = _own_loop(request)
        before = find_things()
        yield
        if loop is None and inspect.iscoroutinefunction(request.function):
            return  # the module's tests share a loop, and connections to its gateway
        left = find_tasks(loop) if loop is not None else set()
        left |= self._new_things(before)
        assert not left, f"left behind: {sorted(left)}"
        if folder is not None and request.node.get_closest_marker("broken_database") is None:
            check_databases(folder)

    def _new_things(self, before: set[str]) -> set[str]:
        """Return what the test has left. Processes and threads that are ending get some time for it."""
        for _ in range(_ENDING):
            left = find_things() - before - _stays
            if not left:
                break
            time.sleep(0.02)
        return left


def _own_loop(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoop | None:
    mark = request.node.get_closest_marker("asyncio")
    if not inspect.iscoroutinefunction(request.function) or (mark and mark.kwargs.get("loop_scope")):
        return None
    loop: asyncio.AbstractEventLoop = request.getfixturevalue("_function_scoped_runner").get_loop()
    return loop


def find_things() -> set[str]:
    """Return the children, sockets and temporary folders of this process, as texts."""
    names = os.listdir(tempfile.gettempdir())
    folders = {f"folder {name}" for name in names if not name.startswith(_CANARY)}
    return folders if sys.platform != "linux" else {*folders, *_children(), *_sockets()}


def find_tasks(loop: asyncio.AbstractEventLoop) -> set[str]:
    """Return the tasks that do not end by themselves at once. The loop must not be running. Connections that
    are being closed are closed then."""
    for turn in range(_MOST_TURNS):
        if turn >= _FEW_TURNS and not asyncio.all_tasks(loop):
            return set()
        loop.run_until_complete(asyncio.sleep(0))
    return {f"task {task.get_name()}: {task.get_coro()}" for task in asyncio.all_tasks(loop)}


def _children() -> Iterator[str]:
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):  # the thread has ended
            numbers = Path(f"/proc/self/task/{thread}/children").read_text()
            yield from (f"child {name}" for name in map(_running, numbers.split()) if name)


def _running(number: str) -> str:
    """Return the number and the name of a process that has not ended."""
    with suppress(OSError):
        name, state = re.findall(r"^(?:Name|State):\t(.*)", Path(f"/proc/{number}/status").read_text(), re.M)
        return "" if state.startswith("Z") or name == _SERVER else f"{number} ({name})"
    return ""


def _sockets() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of this list
            if (target := os.readlink(f"/proc/self/fd/{name}")).startswith("socket:"):
                yield target
