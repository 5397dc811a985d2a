"""Choosing the sandbox that is in force: the first one that holds, or none with the reasons."""

from __future__ import annotations

import asyncio
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from talaria.core.errors import TalariaError, ToolError
from talaria.workspace.sandbox.port import PATH, Sandbox, SandboxKind

_RESTRICTION = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")


@dataclass(frozen=True, slots=True)
class Choice:
    """The sandbox in force, None if commands are refused. `reason` is a sentence, `hint` says what to do."""

    sandbox: Sandbox | None
    reason: str
    hint: str = ""
    command: str = ""

    def required(self) -> Sandbox:
        """Return the sandbox. Raises `ToolError` if there is none."""
        if self.sandbox is None:
            raise ToolError(self.reason, self.hint)
        return self.sandbox


class Sandboxes:
    """Proves backends when a sandbox is needed for the first time, and keeps the outcome. One for the whole
    process."""

    def __init__(self, kind: SandboxKind, home: Path, shared: Path | None = None) -> None:
        """`home` is the gateway's and `shared` the folder of `store.files`. No command sees more of them than
        its own folders."""
        self._kind = kind
        self._home = home
        self._shared = () if shared is None else (shared,)
        self._choosing: asyncio.Task[Choice] | None = None

    @property
    def status(self) -> Choice | None:
        """The choice, None as long as no command has needed one. Does not prove anything."""
        done = self._choosing is not None and self._choosing.done() and not self._choosing.cancelled()
        return self._choosing.result() if done and self._choosing is not None else None

    async def get(self) -> Sandbox:
        """Return the sandbox for commands. Raises `ToolError` that says what to do if there is none."""
        return (await self.choose()).required()

    async def choose(self) -> Choice:
        """Return the choice. Callers at the same time share one proof; a cancelled one does not end it."""
        if self._choosing is None or self._choosing.cancelled():
            self._choosing = asyncio.create_task(
                choose(self._kind, self._home, *self._shared), name="prove the sandbox"
            )
        return await asyncio.shield(self._choosing)


async def choose(kind: SandboxKind, home: Path, *hidden: Path) -> Choice:
    """Return the first backend of `kind` that the canary cannot get out of. `hidden` are folders that no
    command sees, beside the home."""
    # A gateway that runs no command needs none of them.
    from talaria.workspace.sandbox.bubblewrap import BubblewrapSandbox  # noqa: PLC0415
    from talaria.workspace.sandbox.landlock import LandlockSandbox, NoSandbox  # noqa: PLC0415
    from talaria.workspace.sandbox.proof import prove  # noqa: PLC0415

    if kind == "none":
        text = "Commands run without a sandbox, as tools.sandbox says: they can do all that this user can."
        return Choice(
            NoSandbox(), text, 'Set tools.sandbox to "auto".', "talaria config set tools.sandbox auto"
        )
    if kind in ("container", "ssh"):
        text = f'tools.sandbox = "{kind}" is not built yet, so commands are refused.'
        return Choice(None, text, 'Set tools.sandbox to "auto".', "talaria config set tools.sandbox auto")
    if not sys.platform.startswith("linux"):
        return Choice(None, "There is no sandbox for this system yet, so commands are refused.", _ELSEWHERE)
    backends: tuple[Sandbox, ...] = (
        BubblewrapSandbox((home, *hidden)),
        LandlockSandbox((home, *hidden)),
    )
    failures = []
    for backend in backends:
        if kind not in ("auto", backend.name):
            continue
        try:
            proof = await prove(backend, home)
        except (TalariaError, OSError) as error:
            failures.append(f"{backend.name}: {error}")
            continue
        if proof.holds:
            text = (
                f"Commands run in {backend.name}; {len(proof.attempts)} escapes were tried, and none worked."
            )
            before = f" Not in {'; '.join(failures)}" if failures else ""
            return Choice(backend, text + before)
        failures.append(f"{backend.name}: {proof.sentence()}")
    hint, command = _advice()
    return Choice(
        None, f"No sandbox holds here, so commands are refused. {'; '.join(failures)}", hint, command
    )


_ELSEWHERE = "Run Talaria on Linux, or in its container image."


def _advice() -> tuple[str, str]:
    if shutil.which("bwrap", path=PATH) is None:
        for installer, words in (
            ("apt-get", "apt-get install bubblewrap"),
            ("dnf", "dnf install bubblewrap"),
            ("apk", "apk add bubblewrap"),
            ("pacman", "pacman -S bubblewrap"),
            ("zypper", "zypper install bubblewrap"),
        ):
            if shutil.which(installer, path=PATH):
                return "Install bubblewrap, or use Linux 6.12 or newer.", f"sudo {words}"
        return "Install bubblewrap, or use Linux 6.12 or newer.", ""
    try:
        is_restricted = _RESTRICTION.read_text().strip() == "1"
    except OSError:
        is_restricted = False
    if is_restricted:  # Ubuntu since 23.10
        return "This system lets bwrap make no user namespaces; docs/sandbox.md has the profile for it.", ""
    return "Use Linux 6.12 or newer, or a container that permits user namespaces: see docs/sandbox.md.", ""
