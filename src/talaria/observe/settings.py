"""`[log]`: what is written to stderr."""

from __future__ import annotations

from typing import Literal

import msgspec


class LogSettings(msgspec.Struct, frozen=True):
    """`auto` is text on a terminal and JSON lines otherwise."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"
