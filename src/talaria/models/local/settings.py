"""`[local]`: the built-in model."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec


class LocalSettings(msgspec.Struct, frozen=True):
    """`idle_after`: how long after the last answer the model leaves memory. `threads` generate; two that spin
    on a busy machine are slower than one."""

    idle_after: timedelta = timedelta(minutes=10)
    threads: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
