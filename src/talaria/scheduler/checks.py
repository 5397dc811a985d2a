"""The check of a job: a command in the sandbox that decides whether a run is worth a model call."""

from __future__ import annotations

from talaria.core.errors import TalariaError, ToolError
from talaria.core.ids import ChatKey, new_session_id
from talaria.core.redaction import SecretRegistry
from talaria.core.shells import ShellCommand
from talaria.core.text import EscapeFilter, readable
from talaria.workspace.workspaces import ChatWorkspaces

CHECK_SECONDS = 120.0
MAX_OUTPUT = 32 << 10  # bytes that a model reads
_TOLD = 500  # characters of a failed check
_CUT = "\n[The rest of the output is not shown.]"


class CheckFailed(TalariaError):
    """The check of a job did not run, or failed."""

    type = "check_failed"


class JobChecks:
    """Runs checks, each in a workspace of its own on the files of the chat that asked for the job."""

    def __init__(self, workspaces: ChatWorkspaces, secrets: SecretRegistry) -> None:
        self._workspaces = workspaces
        self._secrets = secrets

    async def run(self, command: str, chat_key: ChatKey) -> str:
        """Return what the command printed, without secrets and cut; empty if it printed nothing.

        Exit code 1 is no failure: `grep` and `diff` tell by it whether there was something. Raises
        `CheckFailed` for a higher one, at the time limit, and if the command cannot be run.
        """
        output = _Output()
        try:
            async with self._workspaces.borrow(new_session_id(), chat_key) as workspace:
                end = await workspace.shell.run(ShellCommand(command, CHECK_SECONDS), output.write)
        except ToolError as error:
            raise CheckFailed(f"its check could not be run: {error.user_text}", error.hint) from error
        said = self._secrets(readable(output.content.decode(errors="replace"))).strip()
        if end.timed_out or end.code > 1:
            how = (
                f"it took longer than {CHECK_SECONDS:g} seconds" if end.timed_out else f"exit code {end.code}"
            )
            last = f" It said: {said[-_TOLD:]}" if said else ""
            raise CheckFailed(f"its check failed: {how}.{last}{end.note and f' {end.note}'}")
        return f"{said}{_CUT}" if said and output.is_cut else said


class _Output:
    def __init__(self) -> None:
        self._filter = EscapeFilter()
        self.content = bytearray()
        self.is_cut = False

    async def write(self, piece: bytes) -> None:
        room = MAX_OUTPUT - len(self.content)
        piece = self._filter.feed(piece)
        self.content += piece[:room]
        self.is_cut = self.is_cut or len(piece) > room
