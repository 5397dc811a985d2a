"""Runs a module in a process whose wall clock is an hour ahead: `wrong_clock.py -m talaria serve`."""

from __future__ import annotations

import runpy
import sys
import time

_read_time = time.time


def _read_ahead() -> float:
    return _read_time() + 3600.0


if __name__ == "__main__":
    time.time = _read_ahead
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
