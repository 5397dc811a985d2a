"""A tool made of a spec and a function."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from talaria.core.messages import Content
from talaria.core.tools import ToolContext, ToolSpec

Arguments = dict[str, Any]
Handler = Callable[[Arguments, ToolContext], Awaitable[Content]]


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """`handler` gets arguments that were checked against the spec's parameters."""

    spec: ToolSpec
    handler: Handler

    async def run(self, arguments: Arguments, context: ToolContext) -> Content:
        return await self.handler(arguments, context)


def in_thread(function: Callable[[Arguments, ToolContext], Content]) -> Handler:
    """Runs a blocking function beside the event loop. If its call is cancelled, the function still ends by
    itself: keep it short, and its effect atomic."""

    async def handler(arguments: Arguments, context: ToolContext) -> Content:
        return await asyncio.to_thread(function, arguments, context)

    return handler


def text(description: str) -> dict[str, Any]:
    """A parameter that is a string."""
    return {"type": "string", "description": description}


def counted(description: str) -> dict[str, Any]:
    """A parameter that is a number from 1 on."""
    return {"type": "integer", "minimum": 1, "description": description}


def parameters(properties: dict[str, dict[str, Any]], required: Iterable[str] = ()) -> str:
    """An object schema as canonical JSON text: sorted keys, no spaces, no unknown parameters."""
    schema = {
        "additionalProperties": False,
        "properties": properties,
        "required": sorted(required),
        "type": "object",
    }
    return msgspec.json.encode(schema, order="sorted").decode()
