"""The descriptor of a channel: a part that people write to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from talaria.core.parts import Part, S
from talaria.gateway import Gateway, OpenChannel


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel(Part[S]):
    """`open` starts the channel, until its context is left; it raises `ConfigError` if the settings do not
    allow that. `is_on` tells from the settings whether the channel is wanted at all. With `has_pairing`,
    strangers are paired: see docs/access.md."""

    open: Callable[[Gateway, S], AbstractAsyncContextManager[OpenChannel]]
    is_on: Callable[[S], bool] = lambda settings: True
    has_pairing: bool = False
