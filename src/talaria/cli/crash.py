"""What is said about an error that nobody expected, and where its traceback goes."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

from talaria import __version__
from talaria.cli.options import Invocation
from talaria.core.errors import TalariaError
from talaria.observe.lines import escape

_KEPT = 20


def describe_crash(error: Exception, invocation: Invocation, environ: Mapping[str, str]) -> str:
    """One line for people. The traceback goes to the home's logs, or with TALARIA_DEBUG=1 is part of it."""
    trace = "".join(traceback.format_exception(error))
    what = f"talaria: unexpected {type(error).__name__}: {escape(str(error)) or 'no details'}. This is a bug."
    if environ.get("TALARIA_DEBUG") == "1":
        return f"{trace}\n{what}"
    path = _write(trace, invocation)
    if path is None:
        return f"{what}\n  Run it again with TALARIA_DEBUG=1 to see where, and please report it."
    return f"{what}\n  Where it happened is in {path}; please report it."


def _write(trace: str, invocation: Invocation) -> Path | None:
    """Only into a home that is there already: a crash makes no folders where none were wanted."""
    try:
        home = invocation.home()
        if not home.path.is_dir():
            return None
        home.logs.mkdir(mode=0o700, exist_ok=True)
        path = home.logs / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"talaria {__version__}\n{trace}")
        for old in sorted(home.logs.glob("crash-*.txt"))[:-_KEPT]:  # a service is started again and again
            old.unlink(missing_ok=True)
    except (OSError, TalariaError):
        return None
    return path
