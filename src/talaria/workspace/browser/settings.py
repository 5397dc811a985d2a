"""`[browser]`: the program, when an unused one is closed, and its limits. And how the program is found."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Annotated, Final

import msgspec

from talaria.core.settings import Check, Mark, Unset
from talaria.core.units import Size

# The programs themselves: the script that Debian puts before Chromium needs files that no sandbox has.
PROGRAMS: Final = (
    "/usr/lib/chromium/chromium-headless-shell",
    "/usr/lib/chromium/chromium",
    "/usr/lib64/chromium-browser/chromium-browser",
    "/usr/lib/chromium-browser/chromium-browser",
    "/opt/google/chrome/chrome",
    "/opt/chromium.org/chromium/chromium",
)


def _program(path: str) -> str | None:
    return None if not path or path.startswith("/") else "the absolute path of a Chromium"


class BrowserSettings(msgspec.Struct, frozen=True):
    """`executable` is the Chromium to run. A browser is closed when no call has used it for `idle_close`, and
    when its processes take more than `max_memory`; the next call opens it again. `evaluate` adds a tool that
    runs the model's own JavaScript in pages."""

    executable: Annotated[str, Check(_program), Unset("the one that is installed")] = ""
    idle_close: Annotated[timedelta, Mark.LIVE] = timedelta(minutes=10)
    max_memory: Annotated[Size, Mark.LIVE] = Size(1 << 30)
    evaluate: bool = False


def find_program(settings: BrowserSettings) -> str | None:
    """Return the path of the Chromium to run; None if there is none."""
    paths = (settings.executable,) if settings.executable else PROGRAMS
    return next((path for path in paths if os.access(path, os.X_OK)), None)
