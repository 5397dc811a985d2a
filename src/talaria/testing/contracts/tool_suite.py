"""The contracts of `core.tools.Tool` and `core.tools.ToolSource`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from talaria.core.errors import ToolError
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.core.messages import ToolCall, ToolOutcome, ToolResult
from talaria.core.specs import AgentSpec
from talaria.core.tools import Risk
from talaria.core.turns import Inbound, Sender, Turn, TurnState
from talaria.observe.metrics import Metrics
from talaria.testing.fake_workspaces import FakeWorkspaces
from talaria.tools.execution import ToolRunner
from talaria.tools.function import parse_arguments
from talaria.tools.settings import ToolSettings
from talaria.tools.tool import Tool, ToolSource
from talaria.tools.toolset import Family, ToolSet, resolve

_MOST_BYTES = 4 << 10  # of a spec: it stands in the prefix of every request


async def call_tool(tool: Tool, arguments: dict[str, Any], folder: Path) -> ToolResult:
    """Call a tool as a model does, in a chat whose folder is `folder`. An approval is not asked for."""
    chat, session_id = ChatKey("agent:main:test:dm:one"), SessionId("ses_1")
    settings, name = ToolSettings(enabled=(), approvals="never"), tool.spec.name
    runner = ToolRunner([Family("tested", (tool,), is_builtin=False)], settings, Metrics())
    said = Inbound(chat, Sender("tester"), ())
    turn = Turn(TurnId("turn_1"), chat, session_id, TurnState.RUNNING, said, 0.0)
    spec = AgentSpec("main", "scripted", "scripted", "", "", (name,), "", "")
    workspace = FakeWorkspaces(lambda key: folder).open(session_id, chat)
    bound = runner.bind(turn, spec, workspace, lambda event: None)
    assert bound is not None
    return await bound.run(ToolCall("call_1", name, msgspec.json.encode(arguments).decode()))


class ToolSuite:
    """Subclass it, and say how the tool is made and which calls of it go well.

    `good` are arguments of a call that goes well, `bad` those of calls that the tool itself must refuse with
    a `ToolError`.
    """

    good: ClassVar[dict[str, Any]] = {}
    bad: ClassVar[Sequence[dict[str, Any]]] = ()

    def tool(self) -> Tool:
        raise NotImplementedError

    def test_the_spec_can_be_offered(self) -> None:
        spec = self.tool().spec
        ToolSet([self.tool()])
        assert spec.description.strip(), "a model reads the description"
        size = len(msgspec.json.encode((spec.name, spec.description, spec.parameters)))
        assert size <= _MOST_BYTES, f"the spec has {size} bytes, in every request"
        assert not (spec.read_only and spec.risk is not Risk.NONE), "what only reads has no risk"

    def test_the_spec_is_the_same_each_time(self) -> None:
        assert self.tool().spec == self.tool().spec, "it stands in the prefix of sessions"

    def test_wrong_arguments_are_refused_before_the_call(self) -> None:
        tool = self.tool()
        with pytest.raises(ToolError):
            parse_arguments(tool, "[]")
        with pytest.raises(ToolError):
            parse_arguments(tool, '{"no such parameter": 1}')
        for name in msgspec.json.decode(tool.spec.parameters).get("required", ()):
            rest = {key: value for key, value in self.good.items() if key != name}
            with pytest.raises(ToolError, match=name):
                parse_arguments(tool, msgspec.json.encode(rest).decode())

    async def test_a_good_call_goes_well(self, tmp_path: Path) -> None:
        result = await call_tool(self.tool(), self.good, tmp_path)
        assert result.outcome is ToolOutcome.OK, result.text
        assert result.text or result.parts

    async def test_a_bad_call_says_what_to_do(self, tmp_path: Path) -> None:
        for arguments in self.bad:
            result = await call_tool(self.tool(), arguments, tmp_path)
            assert result.outcome is ToolOutcome.ERROR
            assert "for a reason inside the gateway" not in result.text, "raise `ToolError` with a hint"

    async def test_a_repeated_call_of_an_idempotent_tool_goes_well(self, tmp_path: Path) -> None:
        tool = self.tool()
        if tool.spec.idempotent:
            for _ in range(2):
                assert (await call_tool(tool, self.good, tmp_path)).outcome is ToolOutcome.OK

    async def test_a_stopped_call_ends(self, tmp_path: Path) -> None:
        task = asyncio.create_task(call_tool(self.tool(), self.good, tmp_path))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or task.result().outcome is ToolOutcome.OK


class ToolSourceSuite:
    """Subclass it, and say how the source is made."""

    def source(self) -> ToolSource:
        raise NotImplementedError

    def test_its_tools_can_be_offered(self) -> None:
        source, warnings = self.source(), list[str]()
        enabled = [source.name] if source.is_builtin else []
        found = resolve([source], enabled, warnings.append)
        assert warnings == []
        assert len(found) == len(source.tools())

    def test_a_source_says_the_same_until_it_announces_a_change(self) -> None:
        source = self.source()
        changes: list[None] = []
        source.subscribe(lambda: changes.append(None))
        first = [tool.spec for tool in source.tools()]
        assert [tool.spec for tool in source.tools()] == first or changes
