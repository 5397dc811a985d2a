"""The backend of namespaces: bubblewrap, with seccomp and rlimits."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from talaria.workspace.sandbox.port import (
    PATH,
    Launch,
    ProcessLimits,
    SandboxCommand,
    SandboxError,
    open_data,
    open_shared,
)
from talaria.workspace.sandbox.seccomp import MACHINES, build_filter
from talaria.workspace.sandbox.system import system_paths
from talaria.workspace.sandbox.users import command_user

_OWN_TERMINAL = ("setsid", "--ctty")
_TMP = "/tmp"  # noqa: S108 - inside, it is a folder of the session's
_SHARED_MEMORY = ("--perms", "1777", "--size", str(64 << 20), "--tmpfs", "/dev/shm")  # noqa: S108
# Inside, the first program sets the limits, then the variables: a variable such as LD_PRELOAD must not reach
# a program that is not limited yet. The units of ulimit are 512 bytes for files and 1024 for memory.
_SCRIPT = """\
ulimit -c 0 && ulimit -f {blocks} && ulimit -d {kilobytes} && ulimit -n {files} || exit 125
ulimit -u {processes} 2>/dev/null || ulimit -p {processes} || exit 125
echo 1000 2>/dev/null >/proc/self/oom_score_adj
. /run/variables
exec "$@"
"""

# `--die-with-parent` does not hold while bubblewrap starts. Its first process of the namespaces waits for the
# outer one without end, and asks to die with it only when the command is about to run; if the outer one is
# killed before, both stay. They are all in one process group, to which a signal is sent as a whole: a process
# that is being made gets it too. The guard sends it when its input ends. It inherits all descriptors, also
# the lock on the network, so its number is told: a command has ended when its guard has.
_GUARD = """\
[ "$PPID" = "$1" ] || exit 125
exec {fd}<"$2" || exit 125
{{ read -r _ <&{fd}; kill -9 0; }} </dev/null >/dev/null 2>&1 &
echo "{{\\"guard\\": $!}}" >/proc/self/fd/{told} || exit 125
shift 2
exec "$@" {fd}<&-
"""
_DIGITS = range(3, 10)  # the descriptors that a shell can name; more than those that bubblewrap is given


@dataclass(frozen=True, slots=True)
class BubblewrapSandbox:
    """Gives a command its own files, processes, network, users and machine name. `hidden` are folders that
    no command sees even if they lie below the system's."""

    hidden: tuple[Path, ...] = ()
    name: Literal["bubblewrap"] = "bubblewrap"

    def prepare(self, command: SandboxCommand) -> Launch:
        program = shutil.which("bwrap", path=PATH)
        if program is None:
            raise SandboxError("bubblewrap is not installed.", "Install the package bubblewrap.")
        machine = MACHINES.get(os.uname().machine)
        if machine is None:
            raise SandboxError(f"There is no seccomp filter for {os.uname().machine}.")
        command.check()
        uid, gid = command_user(command.folder)
        drop = [shutil.which("setpriv", path=PATH) or "setpriv", f"--reuid={uid}", f"--regid={gid}"]
        drop += ["--clear-groups", "--inh-caps=-all", "--"]
        fds: list[int] = []
        try:
            for name, content in (
                ("variables", _exports(command)),
                ("passwd", _account(command, uid or os.getuid(), gid or os.getgid())),
                ("group", f"talaria:x:{gid or os.getgid()}:\n".encode()),
            ):
                fds.append(open_data(name, content))
            arguments = [*_namespaces(is_root=bool(uid)), *_mounts(self.hidden, command)]
            for fd, path in zip(fds, ("/run/variables", "/etc/passwd", "/etc/group"), strict=True):
                arguments += ["--perms", "0444", "--ro-bind-data", str(fd), path]
            if command.network is None:
                arguments += ["--unshare-net"]
            else:
                fds.append(open_shared(command.network.users))
                arguments += ["--sync-fd", str(fds[-1])]
            arguments += ["--remount-ro", "/", "--chdir", str(command.cwd or command.folder)]
            fds.append(open_data("filter", build_filter(machine, has_namespaces=True, shares_uid=False)))
            arguments += ["--seccomp", str(fds[-1])]
            status, told = os.pipe()
            fds.append(told)
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        inner = [*(drop if uid else ()), *(_OWN_TERMINAL if command.tty else ())]
        inner += ["/bin/sh", "-c", _script(command.limits), "sh", *command.argv]
        join = command.network.join if command.network is not None else ()
        argv = (*join, program, *arguments, "--json-status-fd", str(told), "--", *inner)
        guard = _GUARD.format(fd=next(fd for fd in _DIGITS if fd not in fds), told=told)
        return Launch(argv, tuple(fds), status, signal.SIGKILL, ("/bin/sh", "-c", guard, "sh"))


def _namespaces(*, is_root: bool) -> list[str]:
    """Return the options for namespaces and capabilities. Root needs no user namespace, and the command runs
    as another user; the filter refuses new namespaces either way."""
    options = ["--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    options += ["--die-with-parent", "--hostname", "sandbox", "--cap-drop", "ALL"]
    if is_root:
        # bubblewrap itself enters the folder, which is closed to all but its owner.
        kept = ("CAP_SETUID", "CAP_SETGID", "CAP_DAC_READ_SEARCH")
        return [*options, *(word for name in kept for word in ("--cap-add", name))]
    return [*options, "--unshare-user", "--disable-userns"]


def _mounts(hidden: tuple[Path, ...], command: SandboxCommand) -> Iterator[str]:
    yield from ("--perms", "0755", "--dir", "/etc", "--perms", "0755", "--dir", "/run")
    yield from _system_mounts(hidden)
    yield from ("--proc", "/proc", "--dev", "/dev", *_SHARED_MEMORY, "--remount-ro", "/dev")
    yield from ("--bind", str(command.tmp), _TMP)
    folders = dict.fromkeys((*command.readable, command.folder, command.home, *command.more_writable))
    # bubblewrap makes folders above a mount as closed as the folder that is mounted.
    for parent in sorted({parent for path in folders for parent in path.parents}):
        yield from ("--perms", "0755", "--dir", str(parent))
    for path in folders:
        yield from ("--ro-bind" if path in command.readable else "--bind", str(path), str(path))


@cache
def _system_mounts(hidden: tuple[Path, ...]) -> tuple[str, ...]:
    """Return the mounts of the system's folders as they are when this is first called: finding them takes
    longer than all the rest. One that is gone by then is left out."""
    words: list[str] = []
    paths = [*system_paths(hidden)]
    # bubblewrap would close those that it makes by itself, such as /etc/ssl, to the commands' user.
    for folder in sorted({parent for path in paths for parent in path.parents} - {Path("/")}):
        words += ("--perms", "0755", "--dir", str(folder))
    for path in paths:
        if path.is_symlink() and path.parent == Path("/"):
            words += ("--symlink", str(path.readlink()), str(path))
        else:
            words += ("--ro-bind-try", str(path), str(path))
    return tuple(words)


def _exports(command: SandboxCommand) -> bytes:
    variables = command.variables(tmp=_TMP)
    return b"".join(
        b"export %s=%s\n" % (name.encode(), os.fsencode(shlex.quote(value)))
        for name, value in variables.items()
    )


def _account(command: SandboxCommand, uid: int, gid: int) -> bytes:
    return f"talaria:x:{uid}:{gid}::{command.home}:/bin/sh\n".encode()


def _script(limits: ProcessLimits) -> str:
    return _SCRIPT.format(
        blocks=limits.file_size // 512,
        kilobytes=limits.memory // 1024,
        files=limits.open_files,
        processes=limits.processes,
    )
