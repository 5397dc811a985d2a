"""Calls through `tool_call`: the call of another tool in the arguments of a call. Pure.

The log keeps a call as the model wrote it. Steps, questions, events and results are about the inner call.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from talaria.core.messages import ToolCall
from talaria.core.tools import TOOL_CALL

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
