from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.trusts import FakeTrust
from talaria.core.clock import Clock, SystemClock
from talaria.core.events import Event
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.core.limits import Limits
from talaria.core.messages import Content, ToolCall, ToolResult
from talaria.core.redaction import SecretRegistry
from talaria.core.tools import ToolSpec
from talaria.core.turns import Inbound, Sender
from talaria.parts import builtin_tools
from talaria.testing.fake_workspaces import FakeWorkspaces
from talaria.tools.approvals import CallGate
from talaria.tools.execution import BoundTools
from talaria.tools.function import FunctionTool, parameters
from talaria.tools.settings import ToolSettings
from talaria.tools.tool import CallScope, SessionTrust, ToolContext
from talaria.tools.toolset import ToolSet
from talaria.tools.workers import ToolWorkers

SETTINGS = ToolSettings()


def bound(
    tools: ToolSet,
    folder: Path,
    session: str = "ses_1",
    settings: ToolSettings = SETTINGS,
    events: list[Event] | None = None,
    limits: Limits | None = None,
    secrets: SecretRegistry | None = None,
    *,
    trust: SessionTrust | None = None,
    clock: Clock | None = None,
    is_unattended: bool = False,
) -> BoundTools:
    """The tools of a turn in a session whose chat has that folder."""
    workspace = FakeWorkspaces(lambda key: folder).open(SessionId(session), ChatKey("a chat"))
    gate = CallGate(
        SessionId(session),
        TurnId("turn_1"),
        "telegram:1",
        settings,
        workspace,
        trust or FakeTrust(is_tainted_now=True),
        clock or SystemClock(),
        is_unattended=is_unattended,
    )
    return BoundTools(
        tools=tools,
        session_id=SessionId(session),
        turn_id=TurnId("turn_1"),
        inbound=Inbound(ChatKey("a chat"), Sender("telegram:1"), ()),
        workspace=workspace,
        gate=gate,
        settings=settings,
        secrets=secrets or SecretRegistry(),
        resources=ToolWorkers(limits).resources(SessionId(session)),
        emit=(events if events is not None else []).append,
        count=lambda name, outcome: None,
    )


def context(folder: Path, workers: ToolWorkers | None = None, session: str = "ses_1") -> ToolContext:
    """The context of a call in a session whose chat has that folder."""
    session_id = SessionId(session)
    return ToolContext(
        session_id,
        TurnId("turn_1"),
        "call_1",
        FakeWorkspaces(lambda key: folder).open(session_id, ChatKey("a chat")),
        CallScope(time.monotonic, 60),
        lambda text: None,
        (workers or ToolWorkers()).resources(session_id),
    )


def tool(
    name: str,
    description: str = "",
    schema: str | None = None,
    handler: Callable[[dict[str, Any], ToolContext], Awaitable[Content]] | None = None,
) -> FunctionTool:
    async def answer(arguments: dict[str, Any], context: ToolContext) -> str:
        return f"{name} was called"

    return FunctionTool(ToolSpec(name, description, schema or parameters({})), handler or answer)


@dataclass(frozen=True)
class ToolCaller:
    """The built-in tools over a folder, called as a model calls them."""

    folder: Path
    session: str = "ses_1"

    async def result(self, name: str, **arguments: object) -> ToolResult:
        call = ToolCall("call_1", name, msgspec.json.encode(arguments).decode())
        return await bound(builtin_tools(SETTINGS), self.folder, self.session).run(call)

    async def ok(self, name: str, **arguments: object) -> str:
        result = await self.result(name, **arguments)
        assert result.outcome == "ok", result.text
        return result.text

    async def error(self, name: str, **arguments: object) -> str:
        result = await self.result(name, **arguments)
        assert result.outcome == "error", result.text
        return result.text


@pytest.fixture
def caller(tmp_path: Path) -> ToolCaller:
    return ToolCaller(tmp_path / "chat")
