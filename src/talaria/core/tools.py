"""What a tool is: a frozen description and a handler."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import msgspec

from talaria.core.ids import SessionId, TurnId

SEND_FILE = "send_file"  # its calls that went well are files of the reply
MAX_SENT_BYTES = 50 << 20


class Risk(StrEnum):
    """How much a call can do: `NONE` reads, `FILES` writes in the chat's folder, `HIGH` needs a person."""

    NONE = "none"
    FILES = "files"
    HIGH = "high"


class ToolSpec(msgspec.Struct, frozen=True):
    """`parameters` is a JSON schema as canonical JSON text, so that nobody can change it in place."""

    name: str
    description: str
    parameters: str
    risk: Risk = Risk.NONE
    idempotent: bool = False
    read_only: bool = False


class ToolContext(msgspec.Struct, frozen=True):
    """What one call may know and touch."""

    session_id: SessionId
    turn_id: TurnId
    call_id: str
    folder: Path


class Tool(Protocol):
    """`run` returns the text for the model; `ToolError` is a failure the model should read."""

    @property
    def spec(self) -> ToolSpec: ...

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> str: ...
