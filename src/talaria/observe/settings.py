"""`[log]`: what is written to stderr."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from talaria.core.setting_marks import Mark


class LogSettings(msgspec.Struct, frozen=True):
    """`auto` is text on a terminal and JSON lines otherwise."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Mark.LIVE] = "info"
    format: Literal["auto", "json", "text"] = "auto"
