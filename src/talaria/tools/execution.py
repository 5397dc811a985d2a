"""Running one tool call: whatever happens, the model gets a result it can act on."""

from __future__ import annotations

import asyncio
import difflib
import functools
import logging
from typing import Any

import msgspec

from talaria.core.errors import ToolError
from talaria.core.messages import ToolCall, ToolOutcome, ToolResult
from talaria.core.tools import Tool, ToolContext
from talaria.tools.result import cap_result
from talaria.tools.schema import problems, without_nulls
from talaria.tools.settings import ToolSettings
from talaria.tools.toolset import ToolSet
from talaria.workspace.folder import Folder
from talaria.workspace.spill import result_name, save_result

_log = logging.getLogger("talaria.tools")


async def execute(
    tools: ToolSet, call: ToolCall, context: ToolContext, settings: ToolSettings | None = None
) -> ToolResult:
    """Run `call` to its result. Only cancellation comes out as an exception.

    A call that is unknown, wrong, failing or late is a result with the outcome `error`, whose text tells the
    model what to do. The text is at most `settings.max_result` bytes; the rest is kept in the chat's folder.
    """
    limits = settings or ToolSettings()
    outcome = ToolOutcome.OK
    try:
        text = await _run(tools, call, context, limits.call_timeout.total_seconds())
    except ToolError as error:
        outcome, text = ToolOutcome.ERROR, f"Error: {error.info().sentence()}"
    except Exception:
        _log.exception("tool %s failed", call.name, extra={"turn_id": context.turn_id, "call_id": call.id})
        outcome = ToolOutcome.ERROR
        text = f"Error: {call.name} failed for a reason inside the gateway; its log has the details."
    text = await _capped(encodable(text), tools, call, context, limits.max_result)
    return ToolResult(call.id, call.name, text, outcome)


async def _run(tools: ToolSet, call: ToolCall, context: ToolContext, seconds: float) -> str:
    tool = tools.get(call.name)
    if tool is None:
        raise _unknown_tool(tools, call.name)
    arguments = parse_arguments(tool, call.arguments)
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            return await tool.run(arguments, context)
    except TimeoutError:
        if not scope.expired():
            raise
        raise ToolError(
            f"{call.name} did not come back within {seconds:g} seconds.",
            "It may have done a part of its work: look before you try again.",
        ) from None


def parse_arguments(tool: Tool, text: str) -> dict[str, Any]:
    """The model's arguments, checked against the tool's parameters.

    No text at all means no arguments, as some models say it. Raises `ToolError` that says what is wrong.
    """
    try:
        value = msgspec.json.decode(text if text.strip() else "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ToolError(f"The arguments of {tool.spec.name} are not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise ToolError(f"The arguments of {tool.spec.name} must be a JSON object.")
    schema = msgspec.json.decode(tool.spec.parameters)
    arguments = without_nulls(value, schema)
    wrong = problems(arguments, schema)
    if wrong:
        raise ToolError(f"The arguments of {tool.spec.name} are wrong: {' '.join(wrong)}")
    return arguments


def encodable(text: str) -> str:
    """`text` as it can be stored and sent: half surrogate pairs, as in odd file names, become `?`."""
    return text.encode(errors="replace").decode()


async def _capped(text: str, tools: ToolSet, call: ToolCall, context: ToolContext, max_bytes: int) -> str:
    if len(text) * 4 <= max_bytes:
        return text
    save = None
    if "read_file" in tools:
        name = result_name(call.name, context.turn_id, call.id)
        save = functools.partial(save_result, Folder(context.folder), name)
    return await asyncio.to_thread(cap_result, text, max_bytes, save)


def _unknown_tool(tools: ToolSet, name: str) -> ToolError:
    near = difflib.get_close_matches(name, tools.names, n=1)
    if near:
        return ToolError(f"There is no tool {name[:100]!r}.", f"Did you mean {near[0]}?")
    return ToolError(f"There is no tool {name[:100]!r}.", f"There are: {', '.join(tools.names) or 'none'}.")
