"""The tool that looks after the background processes of a session, which `terminal` starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from talaria.core.background import ProcessInfo, ProcessOutput, ProcessStart, ProcessState
from talaria.core.errors import ToolError
from talaria.core.terminal_text import readable
from talaria.core.text import clean_line
from talaria.core.tools import Risk, ToolSpec
from talaria.tools.function import Arguments, FunctionTool, parameters, text
from talaria.tools.tool import ToolContext

if TYPE_CHECKING:
    from talaria.workspace.processes import SessionProcesses

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
