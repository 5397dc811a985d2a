"""Choosing the sandbox that is in force: the first one that holds, or none with the reasons."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from talaria.core.errors import TalariaError, ToolError
from talaria.workspace.sandbox import canary
from talaria.workspace.sandbox.command import (
    PATH,
    NetworkAccess,
    ProcessLimits,
    Sandbox,
    SandboxCommand,
    SandboxError,
    SandboxKind,
    hand_over,
)
from talaria.workspace.sandbox.process import run

# -- proving a sandbox: the canary runs inside, with everything it could reach outside in front of it -----


_LIMITS = ProcessLimits(seconds=60.0)  # a loaded machine takes its time, and doctor waits for the answer
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Proof:
    """The outcome of the attempts to get out. `reached` names those that worked, with what they reached; it
    is empty if the sandbox holds. `why_not` says why the canary did not run at all."""

    attempts: tuple[str, ...] = ()
    reached: dict[str, str] | None = None
    why_not: str = ""
    hint: str = ""

    @property
    def holds(self) -> bool:
        return not self.why_not and not self.reached and bool(self.attempts)

    def sentence(self) -> str:
        if self.why_not or not self.reached:
            return self.why_not or "nothing was tried"
        shown = [f"{name} ({what})" for name, what in [*self.reached.items()][:_SHOWN]]
        more = len(self.reached) - len(shown)
        return f"it let {len(self.reached)} of {len(self.attempts)} escapes through: {', '.join(shown)}" + (
            f" and {more} more" if more else ""
        )


async def prove(sandbox: Sandbox, home: Path, network: NetworkAccess | None = None) -> Proof:
    """Run the canary in the sandbox, with a network if one is given, and return what it reached. `home` is
    the gateway's.

    Makes a temporary folder and removes it. Raises nothing for a sandbox that does not work.
    """
    with _bait(home, network) as (command, heard):
        try:
            done = await run(sandbox, command)
        except TalariaError as error:
            return Proof(why_not=error.user_text, hint=error.hint)
        try:
            results: dict[str, str | None] = json.loads(done.out)
        except ValueError:
            said = done.err.decode(errors="replace").strip().splitlines()
            return Proof(
                why_not=f"its canary ended with {done.ending.code}: {said[-1] if said else 'no output'}"
            )
        if heard():
            results["send by UDP"] = "arrived"
    return Proof(tuple(results), {name: what for name, what in results.items() if what is not None})


@contextmanager
def _bait(home: Path, network: NetworkAccess | None) -> Iterator[tuple[SandboxCommand, _Heard]]:
    """Lay out files and sockets that file permissions do not protect, and folders for the canary."""
    with ExitStack() as stack:
        base = Path(os.path.realpath(tempfile.mkdtemp(prefix="talaria-canary-")))
        stack.callback(shutil.rmtree, base, ignore_errors=True)
        base.chmod(0o755)
        folder, own_home, tmp, outside = (base / name for name in ("chat", "home", "tmp", "outside"))
        for path in (folder, own_home, tmp, outside):
            path.mkdir()
        hand_over((folder, own_home, tmp))
        outside.chmod(0o777)
        secret, victim = outside / "secret", outside / "victim"
        for path in (secret, victim):
            path.write_text("secret")
            path.chmod(0o666)
        tcp, udp, unix, abstract, datagram = (
            stack.enter_context(socket.socket(family, kind))
            for family, kind in (
                (socket.AF_INET, socket.SOCK_STREAM),
                (socket.AF_INET, socket.SOCK_DGRAM),
                (socket.AF_UNIX, socket.SOCK_STREAM),
                (socket.AF_UNIX, socket.SOCK_STREAM),
                (socket.AF_UNIX, socket.SOCK_DGRAM),
            )
        )
        for sock in (tcp, udp):
            sock.bind(("127.0.0.1", 0))
        outside_fd = os.open(outside, os.O_PATH | os.O_DIRECTORY)
        stack.callback(os.close, outside_fd)
        for sock, name in ((unix, "stream"), (datagram, "datagram")):
            sock.bind(f"/proc/self/fd/{outside_fd}/{name}")  # the whole path may be too long for a socket
        abstract.bind(f"\0{base.name}")
        for sock in (tcp, unix, abstract):
            sock.listen()
        for path in (outside / "stream", outside / "datagram"):
            path.chmod(0o777)
        udp.setblocking(False)
        prefix = Path(os.path.realpath(sys.base_prefix))
        command = SandboxCommand(
            (), folder, own_home, tmp, readable=(prefix,), limits=_LIMITS, network=network
        )
        order: dict[str, object] = {
            "folder": str(folder),
            "secret": str(secret),
            "outside": str(outside),
            "victim": str(victim),
            "home": str(home),
            "home_names": [path.name for path in _listed(home) if not prefix.is_relative_to(path)],
            "pid": os.getpid(),
            "pid_namespace": _read_link("/proc/self/ns/pid"),
            "command_line": Path("/proc/self/cmdline").read_bytes().hex(),
            "tcp": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "unix": "stream",
            "unix_datagram": "datagram",
            "abstract": base.name,
            "variables": [*command.variables(""), "PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"],
            "limits": asdict(_LIMITS),
        }
        program = (os.path.realpath(sys.executable), "-I", "-S", "-c", Path(canary.__file__).read_text())
        yield replace(command, argv=(*program, json.dumps(order))), _Heard(udp)


@dataclass(frozen=True, slots=True)
class _Heard:
    """Tells whether a datagram has arrived."""

    sock: socket.socket

    def __call__(self) -> bool:
        try:
            return bool(self.sock.recv(64))
        except BlockingIOError:
            return False


def _listed(folder: Path) -> list[Path]:
    try:
        return [*folder.iterdir()]
    except OSError:
        return []


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError as error:
        raise SandboxError("/proc cannot be read, which commands need.", "Mount it.") from error


# -- choosing the sandbox that is in force: the first one that holds, or none with the reasons ------------


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
