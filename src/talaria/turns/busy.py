"""What becomes of a message that comes while a turn of its chat runs: one pure rule."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from talaria.commands.slash import Command
from talaria.core.messages import Part, Text
from talaria.core.turns import Inbound


class Busy(StrEnum):
    """`QUEUE`: it waits its turn. `STEER`: the running turn reads it before its next model call, if nothing
    else waits. `INTERRUPT`: the running turn is stopped, and this one is next."""

    QUEUE = "queue"
    STEER = "steer"
    INTERRUPT = "interrupt"


class Manner(msgspec.Struct, frozen=True):
    """How a message wants to be taken. `is_wish`: its sender said so, and so it may pass what waits."""

    inbound: Inbound
    command: Command | None = None
    busy: Busy = Busy.QUEUE
    is_wish: bool = False


def manner(inbound: Inbound, command: Command | None, usual: Busy) -> Manner:
    """`/queue TEXT` and `/steer TEXT` are messages that say it themselves; every other command is carried out
    by its own route, and waits if it has to."""
    if command is None:
        return Manner(inbound, busy=usual)
    if command.name in (Busy.QUEUE, Busy.STEER) and command.args:
        said = msgspec.structs.replace(inbound, parts=_with_text(inbound.parts, command.args))
        return Manner(said, busy=Busy(command.name), is_wish=True)
    return Manner(inbound, command)


def _with_text(parts: tuple[Part, ...], text: str) -> tuple[Part, ...]:
    return (Text(text), *(part for part in parts if not isinstance(part, Text)))
