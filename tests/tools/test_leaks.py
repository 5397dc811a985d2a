"""Secrets in what tools print, return and send."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec.structs import replace as replace_fields

from talaria.core.errors import ToolError
from talaria.core.events import Event, ToolOutput
from talaria.core.ids import ChatKey, SessionId
from talaria.core.messages import Content, File, Text, ToolCall, ToolOutcome
from talaria.core.redaction import Redacted, Redactor, Secret, SecretRegistry
from talaria.core.shells import OutputSink, ShellCommand, ShellEnd
from talaria.core.slots import LoopShare
from talaria.parts import builtin_tools
from talaria.testing.fake_workspaces import FakeShell, FakeWorkspace, FakeWorkspaces
from talaria.tools.function import parameters
from talaria.tools.settings import ToolSettings
from talaria.tools.terminal import CommandOutput
from talaria.tools.tool import ToolContext
from talaria.tools.toolset import ToolSet
from tools.conftest import bound, context, tool

SECRETS = SecretRegistry([Secret("GITHUB_TOKEN", "ghp_Q7rT2vX9bL4mN8pW3zK6yH1c"), Secret("PIN", "hunter22")])


async def test_a_secret_in_several_pieces_of_output_is_not_shown(tmp_path: Path) -> None:
    async def run(arguments: dict[str, Any], context: ToolContext) -> str:
        for piece in ("it is ghp_Q7r", "T2vX9bL4m", "N8pW3zK6yH1c, hun", "ter2", "2 and gh"):
            context.emit(piece)
            await asyncio.sleep(0)
        return "ghp_Q7rT2vX9bL4mN8pW3zK6yH1c"

    events: list[Event] = []
    tools = ToolSet([tool("leak", handler=run)])
    result = await bound(tools, tmp_path, events=events, secrets=SECRETS).run(ToolCall("c", "leak", "{}"))
    shown = "".join(event.text for event in events if isinstance(event, ToolOutput))
    assert shown == "it is [secret GITHUB_TOKEN], [secret PIN] and gh"
    assert result.text == "[secret GITHUB_TOKEN]"


async def test_no_secret_is_left_in_results_their_files_parts_and_errors(tmp_path: Path) -> None:
    async def run(arguments: dict[str, Any], context: ToolContext) -> Content:
        match arguments["kind"]:
            case "long":
                return "x " * 10_000 + "hunter22 " + "y " * 10_000
            case "parts":
                return Text("hunter22"), File("hunter22.txt", "a.txt", "text/plain", 3, "hunter22")
            case _:
                raise ToolError("hunter22 was refused.", "Use hunter22.")

    schema = parameters({"kind": {"type": "string"}})
    files = builtin_tools(ToolSettings(enabled=("files",)))
    tools = ToolSet([tool("leak", schema=schema, handler=run), *files.tools])
    runner = bound(tools, tmp_path, secrets=SECRETS)
    for kind in ("long", "parts", "error"):
        result = await runner.run(ToolCall("c", "leak", f'{{"kind": "{kind}"}}'))
        assert "hunter22" not in repr(result)
        assert "[secret PIN]" in repr(result) or kind == "long"
    (kept,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert "[secret PIN]" in kept.read_text()
    assert "hunter22" not in kept.read_text()


async def test_a_file_with_a_secret_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\x00\xff" + b"68756e7465723232" + b"\x00")
    tools = builtin_tools(ToolSettings(enabled=("files",)))
    call = ToolCall("c", "send_file", '{"path": "a.bin"}')
    result = await bound(tools, tmp_path, secrets=SECRETS).run(call)
    assert result.outcome is ToolOutcome.ERROR
    assert "a.bin holds a secret of the gateway (PIN)" in result.text


async def test_no_secret_is_left_in_the_file_of_a_long_output(tmp_path: Path) -> None:
    redactor = SECRETS.redactor
    output = CommandOutput(replace(context(tmp_path), redactor=redactor), 4096, LoopShare())
    for piece in (b"x\n" * 5000, b"it is ghp_Q7rT2vX9bL4m\x1b[0m", b"N8pW3zK6yH1c.\n", b"y\n" * 5000):
        await output.write(piece)
    await output.finish()
    (kept,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert "it is [secret GITHUB_TOKEN].\n" in kept.read_text()


class TellingShell(FakeShell):
    """A shell whose commands print a secret in pieces, and whose note on the end has it too."""

    async def run(self, command: ShellCommand, sink: OutputSink) -> ShellEnd:
        for piece in (b"it is hun", b"ter\x1b[0m22.\n"):
            await sink(piece)
        return ShellEnd(0, "/", note="Network: hunter22.example was refused.")


class TellingWorkspace(FakeWorkspace):
    @property
    def shell(self) -> FakeShell:
        return TellingShell(self.session, self.folder, self.places, self._all.commands)


async def test_the_output_and_the_end_of_a_command_have_no_secret(tmp_path: Path) -> None:
    events: list[Event] = []
    tools = builtin_tools(ToolSettings(enabled=("terminal",)))
    chat = SessionId("ses_1"), ChatKey("a chat")
    workspace = TellingWorkspace(FakeWorkspaces(lambda key: tmp_path), *chat, tmp_path)
    runner = replace_fields(bound(tools, tmp_path, events=events, secrets=SECRETS), workspace=workspace)
    result = await runner.run(ToolCall("c", "terminal", '{"command": "true"}'))
    shown = "".join(event.text for event in events if isinstance(event, ToolOutput))
    assert shown == "it is [secret PIN].\n"
    note = "[Exit code 0. Network: [secret PIN].example was refused.]"
    assert result.text == f"it is [secret PIN].\n{note}"


async def test_a_text_is_redacted_again_if_other_secrets_are_known_by_now(tmp_path: Path) -> None:
    async def run(arguments: dict[str, Any], context: ToolContext) -> str:
        context.emit(Redacted("hunter22\n", Redactor()))
        context.emit(Redacted("[secret OLD]\n", context.redactor))
        return Redacted("hunter22", Redactor())

    events: list[Event] = []
    tools = ToolSet([tool("leak", handler=run)])
    result = await bound(tools, tmp_path, events=events, secrets=SECRETS).run(ToolCall("c", "leak", "{}"))
    shown = "".join(event.text for event in events if isinstance(event, ToolOutput))
    assert (shown, result.text) == ("[secret PIN]\n[secret OLD]\n", "[secret PIN]")
