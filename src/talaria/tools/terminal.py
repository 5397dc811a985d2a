"""The tool that runs commands in the session's shell."""

from __future__ import annotations

from datetime import timedelta

from talaria.core.loop_share import LoopShare
from talaria.core.redaction import Redacted
from talaria.core.shells import ShellCommand, ShellEnd
from talaria.core.tools import Risk, ToolSpec
from talaria.core.units import format_duration
from talaria.tools.command_output import CommandOutput
from talaria.tools.function import Arguments, FunctionTool, Handler, counted, flag, parameters, text
from talaria.tools.process import PROCESS_TOOL, start_process
from talaria.tools.settings import ToolSettings
from talaria.tools.tool import Tool, ToolContext

_MARGIN = timedelta(seconds=60)  # for a wait for other chats' commands, and to end the command
_END_BYTES = 1000  # the note on how a command ended


def terminal_tools(settings: ToolSettings) -> tuple[Tool, ...]:
    """Return the tools of the family `terminal`."""
    return (FunctionTool(_spec(settings), _terminal(settings)), PROCESS_TOOL)


def _spec(settings: ToolSettings) -> ToolSpec:
    usual, most = map(format_duration, (settings.command_timeout, settings.max_command_timeout))
    return ToolSpec(
        name="terminal",
        description=(
            "Run a shell command in a sandbox, in the chat's folder, which the file tools see too. The "
            "working directory and exported variables last from one command to the next. Returns the output "
            "and the exit code. There is nobody to type: give programs their input by options or files."
        ),
        parameters=parameters(
            {
                "command": text("As for bash -c; several lines are fine."),
                "timeout": counted(f"Seconds until it is ended. Default: {usual}; at most {most}."),
                "background": flag("Do not wait for its end: for servers and long work."),
                "wake": flag("With background: get a turn of your own when it ends."),
                "tty": flag("Run it on a terminal, for programs that need one."),
            },
            required=["command"],
        ),
        risk=Risk.FILES,
        runs_commands=True,
        timeout=settings.max_command_timeout + _MARGIN,
    )


def _terminal(settings: ToolSettings) -> Handler:
    share = LoopShare()
    usual, most = settings.command_timeout.total_seconds(), settings.max_command_timeout.total_seconds()

    async def run(arguments: Arguments, context: ToolContext) -> str:
        if arguments.get("background"):
            return await start_process(arguments, context)
        seconds = min(float(arguments.get("timeout", usual)), most)
        output = CommandOutput(context, settings.max_result - _END_BYTES, share)
        command = ShellCommand(arguments["command"], seconds, bool(arguments.get("tty", False)))
        try:
            async with context.resources.command():
                end = await context.workspace.shell.run(command, output.write)
        except BaseException:
            await output.abandon()
            raise
        shown = await output.finish()
        gap = "" if shown.endswith("\n") or not shown else "\n"
        told = context.redactor(describe_end(end, seconds))
        return Redacted(f"{shown}{gap}[{told}]", context.redactor)

    return run


def describe_end(end: ShellEnd, seconds: float) -> str:
    """Return how a command ended, in a sentence."""
    if end.waited:
        told = (
            f"{end.waited} waited for input on its terminal, where nobody types, so the command was ended. "
            "Give the answer by an option, a pipe or a file."
        )
    elif end.timed_out:
        told = f"Ended after {seconds:g} seconds, its time limit: every process of it was killed."
    elif end.signal is not None:
        told = f"Ended by {end.signal.name} (exit code {end.code})."
    else:
        told = f"Exit code {end.code}."
    return f"{told} {end.note}".rstrip()
