"""Background processes in memory: commands that print, read and end at once, or run until they are ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from talaria.core.errors import ToolError
from talaria.core.ids import SessionId
from talaria.core.shells import ProcessInfo, ProcessOutput, ProcessStart, ProcessState
from talaria.workspace.processes import BackgroundProcesses, SessionProcesses
from talaria.workspace.workspaces import ChatWorkspace


class FakeProcess:
    """A background process. `cat` repeats its input; `echo` and `exit` end at once; any other command runs
    until it is stopped."""

    def __init__(self, command: str, process_id: str = "p1") -> None:
        self.id = process_id
        self.command = command
        self.is_running = True
        self.code: int | None = None
        self.output = b""
        self.polled = 0
        self.wakes = False
        for line in command.splitlines():
            word, _, rest = line.strip().partition(" ")
            if word == "echo" and self.is_running:
                self.output += f"{rest}\n".encode()
            elif word == "exit" and self.is_running:
                self.stop(int(rest or 0))
        if word == "echo":
            self.stop(0)

    def stop(self, code: int) -> None:
        """End it, unless it has ended."""
        if self.is_running:
            self.is_running, self.code = False, code

    def info(self, session_id: SessionId) -> ProcessInfo:
        state = ProcessState.RUNNING if self.is_running else ProcessState.ENDED
        ended_at = None if self.is_running else 0.0
        written = len(self.output)
        return ProcessInfo(
            self.id, session_id, self.command, state, 0.0, ended_at, self.code, written, self.wakes
        )


class FakeProcesses(SessionProcesses):
    """The processes of a session, over a list of fake ones."""

    def __init__(
        self,
        workspace: ChatWorkspace,
        all_: BackgroundProcesses,
        fakes: list[FakeProcess],
        start: Callable[[str], FakeProcess],
    ) -> None:
        super().__init__(workspace.session_id, workspace.places, all_, None)
        self._fakes = fakes
        self._start = start

    async def start(self, order: ProcessStart) -> ProcessInfo:
        if not order.text.strip() or "\0" in order.text:
            raise ToolError("The command is empty or has a NUL byte.")
        process = self._start(order.text)
        process.wakes = order.wakes
        return process.info(self.session_id)

    async def list(self) -> Sequence[ProcessInfo]:
        return [process.info(self.session_id) for process in self._fakes]

    async def poll(self, process_id: str) -> ProcessOutput:
        process = self._fake(process_id)
        begin, process.polled = process.polled, len(process.output)
        return self._output(process, begin, process.polled)

    async def log(self, process_id: str, offset: int | None, limit: int) -> ProcessOutput:
        process = self._fake(process_id)
        whole = len(process.output)
        begin = max(0, whole - limit) if offset is None else min(offset, whole)
        return self._output(process, begin, min(whole, begin + limit))

    async def write(self, process_id: str, text: str | None) -> int:
        process = self._fake(process_id)
        if not process.is_running:
            raise ToolError(f"The process {process_id} has ended.")
        if process.command == "cat":
            process.output += (text or "").encode()
            if text is None:
                process.stop(0)
        return len((text or "").encode())

    async def kill(self, process_id: str) -> ProcessInfo:
        process = self._fake(process_id)
        process.stop(143)
        return process.info(self.session_id)

    def _fake(self, process_id: str) -> FakeProcess:
        for process in self._fakes:
            if process.id == process_id:
                return process
        raise ToolError(f"This session has no background process {process_id!r}.")

    def _output(self, process: FakeProcess, begin: int, end: int) -> ProcessOutput:
        text = process.output[begin:end].decode(errors="replace")
        return ProcessOutput(process.info(self.session_id), text, begin, begin, end)
