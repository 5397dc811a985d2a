"""The lines of `/status` about a session's workspace."""

from __future__ import annotations

from talaria.commands.replies import WorkspaceStatus, describe_workspace
from talaria.core.ids import SessionId
from talaria.core.shells import ProcessInfo, ProcessState


def process(number: int, state: ProcessState = ProcessState.RUNNING) -> ProcessInfo:
    return ProcessInfo(f"p{number}", SessionId("ses_1"), f"serve\x1b {number}", state, 100.0)


def test_directory_processes_and_sandbox_are_told() -> None:
    ended = process(9, ProcessState.ENDED)
    status = WorkspaceStatus("/src/app", (process(1), ended, process(2)), "bubblewrap holds.", 112.0)
    assert describe_workspace(status).splitlines() == [
        "Working directory: /src/app",
        "Processes: 2 running",
        "- p1: serve 1, 12 s",
        "- p2: serve 2, 12 s",
        "Sandbox: bubblewrap holds.",
    ]


def test_many_processes_are_counted_and_a_sandbox_that_nothing_needed_is_not_chosen() -> None:
    status = WorkspaceStatus("/src", tuple(map(process, range(8))), "", 100.0)
    lines = describe_workspace(status).splitlines()
    assert lines[-2:] == ["- and 3 more", "Sandbox: chosen and proved when a command first needs it"]
    assert "Processes: none running" in describe_workspace(WorkspaceStatus("/src", (), "", 100.0))
