"""`python -m bench.counted FILE COMMAND…`: run a command of the gateway and count the calls that it makes.

The words of COMMAND up to `talaria` are skipped, so that this program can wrap `python -m talaria serve`. For
each SIGUSR1, the process writes the calls since the last signal to FILE and starts again at zero. The counts
are exact: `sys.setprofile` reports each call of a Python function, each resumption of a coroutine, and each
call of a C function from Python.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Profile = Callable[[FrameType, str, Any], None]
# The called function and "" for a Python function; the calling function and the called name for a C function.
Calls = Counter[tuple[CodeType, str]]

_threads: list[Calls] = []  # one for each thread, so that none loses counts to another


def _counter() -> Profile:
    calls: Calls = Counter()
    _threads.append(calls)

    def count(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            calls[frame.f_code, ""] += 1
        elif event == "c_call":
            calls[frame.f_code, arg.__qualname__] += 1

    return count


def _count_thread(frame: FrameType, event: str, arg: Any) -> None:
    """Start to count in a new thread, whose first call this is."""
    counter = _counter()
    sys.setprofile(counter)
    counter(frame, event, arg)


def main() -> None:
    path, command = Path(sys.argv[1]), sys.argv[2:]
    count = _counter()

    def write(*_: object) -> None:
        sys.setprofile(None)
        total: Calls = Counter()
        for calls in _threads:
            total.update(dict.copy(calls))  # in one step: another thread may count meanwhile
            calls.clear()
        rows = [(code.co_filename, code.co_qualname, called, n) for (code, called), n in total.items()]
        new = path.with_suffix(".new")
        new.write_text(json.dumps(rows))
        os.replace(new, path)
        sys.setprofile(count)

    signal.signal(signal.SIGUSR1, write)
    threading.setprofile(_count_thread)
    sys.argv = command[command.index("talaria") :]
    runpy.run_module("talaria", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
