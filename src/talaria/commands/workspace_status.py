"""The part of `/status` about a session's workspace: working directory, processes and sandbox. Pure."""

from __future__ import annotations

import msgspec

from talaria.core.background import ProcessInfo, ProcessState
from talaria.core.text import clean_line
from talaria.core.units import format_age

_NAMED = 5


class WorkspaceStatus(msgspec.Struct, frozen=True):
    """A session's workspace at the moment `now`. `cwd` is where the next command begins. `sandbox` is empty
    as long as no command has needed one."""

    cwd: str
    processes: tuple[ProcessInfo, ...]
    sandbox: str
    now: float


def describe_workspace(status: WorkspaceStatus) -> str:
    """Return the lines of `/status`."""
    running = [process for process in status.processes if process.state is ProcessState.RUNNING]
    lines = [f"Working directory: {clean_line(status.cwd)}"]
    if running:
        lines.append(f"Processes: {len(running)} running")
        lines += [_describe_process(process, status.now) for process in running[:_NAMED]]
        if len(running) > _NAMED:
            lines.append(f"- and {len(running) - _NAMED} more")
    else:
        lines.append("Processes: none running")
    lines.append(f"Sandbox: {status.sandbox or 'chosen and proved when a command first needs it'}")
    return "\n".join(lines)


def _describe_process(process: ProcessInfo, now: float) -> str:
    age = format_age(max(0.0, now - process.started_at))
    return f"- {process.id}: {clean_line(process.command, 60)}, {age}"
