"""The tools `terminal` and `process`: commands in the session's shell, and its background processes."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from talaria.core.errors import ToolError
from talaria.core.files import result_name
from talaria.core.redaction import Redacted
from talaria.core.shells import ProcessInfo, ProcessOutput, ProcessStart, ProcessState, ShellCommand, ShellEnd
from talaria.core.slots import LoopShare
from talaria.core.text import EscapeFilter, clean_line, readable
from talaria.core.tools import Risk, ToolSpec
from talaria.core.units import format_duration
from talaria.tools.function import Arguments, FunctionTool, Handler, counted, flag, parameters, text
from talaria.tools.settings import ToolSettings
from talaria.tools.tool import Tool, ToolContext
from talaria.workspace.spill import Spill

if TYPE_CHECKING:
    from talaria.workspace.processes import SessionProcesses


# -- the output of a command on its way to people, to the model and to a file, in bounded memory ----------


_EMITTED_BYTES = 64 << 10  # a call shows no more while it runs


class CommandOutput:
    """Takes output in pieces. Escape sequences and control characters are taken out before anything else, and
    then the gateway's secrets. `share` bounds the part of the event loop that the outputs of all commands
    take."""

    def __init__(self, context: ToolContext, max_bytes: int, share: LoopShare) -> None:
        self._context = context
        self._share = share
        self._plain = EscapeFilter()
        name = result_name("terminal", context.turn_id, context.call_id)
        self._spill = Spill(context.redactor, max_bytes, context.open_folder, name, readable)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._emitted = 0

    async def write(self, piece: bytes) -> None:
        """Take the next piece. Raises nothing: what cannot be saved is lost, and the result says so."""
        async with self._share:
            self._emit(self._spill.add(self._plain.feed(piece)))
        if self._spill.has_batch:
            await self._context.resources.in_thread(self._spill.save)

    async def finish(self) -> str:
        """Return the text for the model: all of the output, or its two ends around a note."""
        self._emit(self._spill.add(self._plain.end()) + self._spill.end(), is_last=True)
        text = self._spill.short()
        return await self._context.resources.in_thread(self._spill.long) if text is None else text

    async def abandon(self) -> None:
        """Close the file of a command that did not come to an end. It keeps what it has."""
        if self._spill.has_file:
            self._spill.end()
            await self._context.resources.in_thread(self._spill.close)

    def _emit(self, data: bytes, *, is_last: bool = False) -> None:
        if self._emitted < _EMITTED_BYTES and (text := self._decoder.decode(data, final=is_last)):
            self._emitted += len(text)
            self._context.emit(Redacted(text.replace("\r", "\n"), self._context.redactor))


# -- the tool that looks after the background processes of a session, which `terminal` starts -------------


_ACTIONS = ("list", "poll", "log", "write", "kill")
_READING = ("list", "poll", "log")  # actions that change nothing, so that nobody is asked about them
_PAGE = 12 << 10  # bytes of a page of the log
_SHOWN = 100  # characters of a command in the list

PROCESS = ToolSpec(
    name="process",
    description=(
        "Look after the background processes that terminal started. list: all of them. poll: how one is, "
        "and what it printed since the last poll. log: a page of its output, the last one without offset. "
        "write: give it input; end a line with \\n; without input, its input is closed. kill: end it. You "
        "are told when one ends: do not poll for it."
    ),
    parameters=parameters(
        {
            "action": {"type": "string", "enum": list(_ACTIONS), "description": "What to do."},
            "id": text("The process, for all actions but list."),
            "input": text("For write: the text to give it."),
            "offset": {"type": "integer", "minimum": 0, "description": "For log: the first byte, from 0."},
        },
        required=["action"],
    ),
    risk=Risk.FILES,
    runs_commands=True,
)


async def start_process(arguments: Arguments, context: ToolContext) -> str:
    """Start the command of a `terminal` call in the background, and say how to go on with it."""
    order = ProcessStart(arguments["command"], context.turn_id, wakes=bool(arguments.get("wake")))
    info = await context.workspace.processes.start(order)
    then = "you get a turn of your own" if order.wakes else "you are told with the next message"
    return (
        f"Started in the background as {info.id}. When it ends, {then}; if you are at work then, "
        f"you are told at once. "
        f"`process` shows its output (poll), gives it input (write) and ends it (kill)."
    )


async def _process(arguments: Arguments, context: ToolContext) -> str:
    processes: SessionProcesses = context.workspace.processes
    action = arguments["action"]
    if action == "list":
        return _listed(await processes.list())
    if not (process_id := arguments.get("id")):
        raise ToolError(f"{action} needs the id of a process.", "process list shows the ids.")
    match action:
        case "poll":
            output = await processes.poll(process_id)
            return f"{_text(output)}[{output.info.id} {describe(output.info)}.]"
        case "log":
            offset = arguments.get("offset")
            return _logged(await processes.log(process_id, offset, _PAGE))
        case "write":
            return await _write(processes, process_id, arguments.get("input"))
        case _:
            info = await processes.kill(process_id)
            return f"{info.id} is gone. It {describe(info)}."


async def _write(processes: SessionProcesses, process_id: str, given: str | None) -> str:
    taken = await processes.write(process_id, given)
    if given is None:
        return f"The input of {process_id} is closed."
    size = len(given.encode(errors="replace"))
    if taken < size:
        return f"{process_id} took {taken} of {size} bytes and does not read the rest: send it again later."
    return f"{process_id} was given {size} bytes. poll shows what it does with them."


def describe(info: ProcessInfo) -> str:
    """Return what a process does or how it ended, as the rest of a sentence."""
    match info.state:
        case ProcessState.RUNNING:
            return "runs"
        case ProcessState.LOST:
            return f"is lost: {info.why}".rstrip(".")
        case _ if info.why:
            return f"was not run: {info.why}".rstrip(".")
        case _:
            return f"ended with exit code {info.code}"


def _listed(infos: Sequence[ProcessInfo]) -> str:
    if not infos:
        return "There are no background processes."
    return "\n".join(f"{info.id} {describe(info)}: {clean_line(info.command, _SHOWN)}" for info in infos)


def _logged(output: ProcessOutput) -> str:
    written, begin, end = output.info.written, output.begin, output.end
    more = f" The next page begins at offset {end}." if end < written else ""
    place = f"Bytes {begin} to {end} of {written}.{more}"
    return f"{_text(output)}[{place} {output.info.id} {describe(output.info)}.]"


def _text(output: ProcessOutput) -> str:
    skipped = output.begin - output.wanted
    head = f"[{skipped} bytes before this are not kept.]\n" if skipped > 0 else ""
    text = readable(output.text)
    gap = "\n" if text and not text.endswith("\n") else ""
    return f"{head}{text}{gap}"


PROCESS_TOOL = FunctionTool(PROCESS, _process, lambda arguments: arguments["action"] in _READING)


# -- the tool that runs commands in the session's shell ---------------------------------------------------


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
