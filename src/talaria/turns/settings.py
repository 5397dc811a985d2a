"""`[shutdown]` and `[retention]`: how turns end and how long their rows stay."""

from __future__ import annotations

from datetime import timedelta

import msgspec


class ShutdownSettings(msgspec.Struct, frozen=True):
    """`deadline`: how long running turns may finish before they are left for the next start."""

    deadline: timedelta = timedelta(seconds=10)


class RetentionSettings(msgspec.Struct, frozen=True):
    """`ephemeral`: when sessions of stateless API calls are deleted."""

    ephemeral: timedelta = timedelta(hours=24)
