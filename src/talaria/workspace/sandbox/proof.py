"""Proving a sandbox: the canary runs inside, with everything it could reach outside in front of it."""

from __future__ import annotations

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

from talaria.core.errors import TalariaError
from talaria.workspace.sandbox import canary
from talaria.workspace.sandbox.port import (
    NetworkAccess,
    ProcessLimits,
    Sandbox,
    SandboxCommand,
    SandboxError,
    hand_over,
)
from talaria.workspace.sandbox.process import run

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
