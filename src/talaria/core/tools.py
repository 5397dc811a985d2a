"""The frozen description of a tool."""

from __future__ import annotations

import re
from datetime import timedelta
from enum import StrEnum
from typing import Final

import msgspec

from talaria.core.ids import ChatKey, SessionId
from talaria.core.messages import ToolCall
from talaria.core.turns import Sender

DELEGATE = "delegate"  # hands tasks to child sessions, and waits for their results
SEND_FILE = "send_file"  # its calls that went well are files of the reply
SKILL_TOOL = "skill"  # reads skills; a session without it is not told of them
TOOL_SEARCH, TOOL_CALL = "tool_search", "tool_call"  # the way to tools that a session is not shown
MAX_SENT_BYTES = 50 << 20
NO_CHAT, NOBODY, NO_SESSION = ChatKey(""), Sender(""), SessionId("")  # of a call outside of a turn


class Risk(StrEnum):
    """How much a call can do: `NONE` reads, `FILES` writes in the chat's folder, `HIGH` runs only after a
    person has approved it."""

    NONE = "none"
    FILES = "files"
    HIGH = "high"


class ToolSpec(msgspec.Struct, frozen=True):
    """The description of a tool.

    The model is told `name`, `description` and `parameters`, which is a JSON schema as canonical JSON text,
    so that it cannot be changed in place. `timeout` is the time limit of a call; None means
    `[tools] call_timeout`. If a tool `asks`, see `Tool.question`. Results of an `untrusted` tool are
    untrusted content. A tool that `runs_commands` needs an approval where there is no sandbox. A tool that
    `reaches_out` (it writes to memory, makes a job, writes to another chat) needs one after untrusted content
    has entered the conversation. A tool that does not use files leaves the workspace alone, so a chat
    that calls no other can move to another machine. Results of a tool that `reads_files` may contain what is
    in files or what a command printed, so they are untrusted in a tainted folder. `origin` says where the
    tool comes from, such as `mcp:files`; the name of its source if it is empty. A model is not told it.
    """

    name: str
    description: str
    parameters: str
    risk: Risk = Risk.NONE
    idempotent: bool = False
    read_only: bool = False
    timeout: timedelta | None = None
    asks: bool = False
    untrusted: bool = False
    runs_commands: bool = False
    reaches_out: bool = False
    origin: str = ""
    uses_files: bool = True
    reads_files: bool = True

    @property
    def writes_files(self) -> bool:
        """Whether a call may change files of the workspace, so that they are copied before it."""
        return self.risk is not Risk.NONE and not self.read_only


# -- calls through `tool_call`: the call of another tool in the arguments of a call -----------------------
# Pure.
#
# The log keeps a call as the model wrote it. Steps, questions, events and results are about the inner call.


MOST_WRAPPED: Final = 1 << 20
"""The characters of a call's arguments. They are looked through on the event loop."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class _Wrapped(msgspec.Struct, frozen=True):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


def inner_call(call: ToolCall) -> ToolCall:
    """Return the call that a call of `tool_call` is about, under the same id; any other call itself.

    A call that names no tool, or `tool_call` again, is returned as it is: it fails when it is run.
    """
    if call.name != TOOL_CALL or len(call.arguments) > MOST_WRAPPED:
        return call
    try:
        wrapped = msgspec.json.decode(call.arguments, type=_Wrapped)
        arguments = bytes(wrapped.arguments).decode()
        if arguments.startswith('"'):  # some models write them as a text
            arguments = msgspec.json.decode(arguments, type=str)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return call
    if wrapped.name == TOOL_CALL or not _NAME.fullmatch(wrapped.name):
        return call
    return ToolCall(call.id, wrapped.name, "{}" if arguments == "null" else arguments)
