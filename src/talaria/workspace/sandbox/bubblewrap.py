"""The backend of namespaces: bubblewrap, with seccomp and rlimits."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from talaria.workspace.sandbox.command import (
    Launch,
    ProcessLimits,
    SandboxCommand,
    SandboxError,
    command_user,
    is_inside,
    open_arguments,
    open_data,
    open_folder,
    open_shared,
)
from talaria.workspace.sandbox.mounts import (
    Mount,
    bind,
    find_helper,
    mount_options,
    system_mounts,
    takes_descriptors,
)
from talaria.workspace.sandbox.seccomp import MACHINES, build_filter

_SHELL = "/bin/sh"
_TMP, _OTHER_TMP = Path("/tmp"), Path("/run/tmp")  # noqa: S108 - inside, one of them is the session's
_SHARED = Path("/dev/shm")  # noqa: S108
_SHARED_MEMORY = ("--perms", "1777", "--size", str(64 << 20), "--tmpfs", str(_SHARED))
# Inside, the first program sets the limits, then the variables: a variable such as LD_PRELOAD must not reach
# a program that is not limited yet. The units of ulimit are 512 bytes for files and 1024 for memory.
_SCRIPT = """\
ulimit -c 0 && ulimit -f {blocks} && ulimit -d {kilobytes} && ulimit -n {files} || exit 125
ulimit -u {processes} 2>/dev/null || ulimit -p {processes} || exit 125
. /run/variables
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class BubblewrapSandbox:
    """Gives a command its own files, processes, network, users and machine name. `hidden` are folders that
    no command sees even if they lie below the system's."""

    hidden: tuple[Path, ...] = ()
    name: Literal["bubblewrap"] = "bubblewrap"

    def temporary(self, command: SandboxCommand) -> str:
        """Return /tmp, or another path if one of the command's other folders lies below /tmp: a folder that
        commands can write must not contain a mount."""
        is_taken = any(is_inside(path, _TMP) for path in _folders(command))
        return str(_OTHER_TMP if is_taken else _TMP)

    def prepare(self, command: SandboxCommand) -> Launch:
        program = find_helper("bwrap", "bubblewrap")
        machine = MACHINES.get(os.uname().machine)
        if machine is None:
            raise SandboxError(f"There is no seccomp filter for {os.uname().machine}.")
        command.check()
        uid, gid = command_user(command.folder)
        inner = drop_privileges(uid, gid) if uid else []
        inner += [find_helper("setsid", "util-linux"), "--ctty"] if command.tty else []
        programs = [word for word in (*inner, _SHELL) if word.startswith("/")]
        tmp, fds, joins = self.temporary(command), list[int](), list[int]()
        argv, environ = command.start(tmp)
        try:
            mounts = [*system_mounts(self.hidden), *_special_mounts(command)]
            mounts += _folder_mounts(command, tmp, takes_descriptors(program), fds)
            mounts += _file_mounts(command, environ, (uid, gid), fds)
            namespaces = _namespaces(is_root=bool(uid), may_nest=command.may_nest)
            arguments = [*namespaces, *mount_options(mounts, programs)]
            if command.network is None:
                arguments += ["--unshare-net"]
            else:
                fds.append(open_shared(command.network.users))
                arguments += ["--sync-fd", str(fds[-1])]
                # Copies, which outlive this process in a background process that is being started.
                for namespace in command.network.namespaces:
                    joins.append(os.dup(namespace))
                    fds.append(joins[-1])
            arguments += ["--chdir", str(command.cwd or command.folder)]
            rules = build_filter(machine, has_namespaces=True, shares_uid=False, may_nest=command.may_nest)
            fds.append(open_data("filter", rules))
            arguments += ["--seccomp", str(fds[-1])]
            status, told = os.pipe()
            fds.append(told)
            fds.append(open_arguments([*arguments, "--json-status-fd", str(told)]))
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        inner += [_SHELL, "-c", _script(command.limits), "sh", *argv]
        words = (program, "--args", str(fds[-1]), "--", *inner)
        return Launch(words, tuple(fds), status, joins=tuple(joins))


def drop_privileges(uid: int, gid: int) -> list[str]:
    """Return the words before a program that run it as another user, without groups and capabilities."""
    words = [find_helper("setpriv", "util-linux"), f"--reuid={uid}", f"--regid={gid}"]
    return [*words, "--clear-groups", "--inh-caps=-all", "--"]


def _namespaces(*, is_root: bool, may_nest: bool) -> list[str]:
    """Return the options for namespaces and capabilities. Root needs no user namespace, and the command runs
    as another user. The filter refuses new namespaces either way, unless the command `may_nest`."""
    options = ["--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    options += ["--die-with-parent", "--hostname", "sandbox", "--cap-drop", "ALL"]
    if is_root:
        # bubblewrap itself enters the folder, which is closed to all but its owner.
        kept = ("CAP_SETUID", "CAP_SETGID", "CAP_DAC_READ_SEARCH")
        return [*options, *(word for name in kept for word in ("--cap-add", name))]
    return [*options, "--unshare-user", *([] if may_nest else ["--disable-userns"])]


def _folders(command: SandboxCommand) -> tuple[Path, ...]:
    """Return the folders that are mounted at their own paths: all but the temporary one."""
    return tuple(dict.fromkeys((command.folder, command.home, *command.more_writable, *command.readable)))


def _special_mounts(command: SandboxCommand) -> Iterator[Mount]:
    # A nested sandbox writes the numbers of its users there.
    yield Mount("/proc", ("--proc", "/proc"), is_writable=True, is_sealed=not command.may_nest)
    yield Mount("/dev", ("--dev", "/dev"), is_sealed=True)
    if not any(is_inside(path, _SHARED) for path in _folders(command)):
        yield Mount(str(_SHARED), _SHARED_MEMORY, is_writable=True)


def _folder_mounts(command: SandboxCommand, tmp: str, by_number: bool, fds: list[int]) -> Iterator[Mount]:
    """Yield the mounts of the command's folders. `by_number` adds a descriptor of each to `fds`."""
    for source, path in ((command.tmp, tmp), *((each, str(each)) for each in _folders(command))):
        if by_number:
            fds.append(open_folder(source))
        yield bind(fds[-1] if by_number else source, path, is_writable=source not in command.readable)


def _file_mounts(
    command: SandboxCommand, environ: Mapping[str, str], user: tuple[int, int], fds: list[int]
) -> Iterator[Mount]:
    """Yield the mounts of files that are made for this command. Adds a descriptor of each to `fds`."""
    uid, gid = user[0] or os.getuid(), user[1] or os.getgid()
    for path, content in (
        ("/run/variables", _exports(environ)),
        ("/etc/passwd", f"talaria:x:{uid}:{gid}::{command.home}:/bin/sh\n".encode()),
        ("/etc/group", f"talaria:x:{gid}:\n".encode()),
    ):
        fds.append(open_data(path, content))
        yield Mount(path, ("--perms", "0444", "--ro-bind-data", str(fds[-1]), path))


def _exports(environ: Mapping[str, str]) -> bytes:
    return b"".join(
        b"export %s=%s\n" % (name.encode(), os.fsencode(shlex.quote(value)))
        for name, value in environ.items()
    )


def _script(limits: ProcessLimits) -> str:
    return _SCRIPT.format(
        blocks=limits.file_size // 512,
        kilobytes=limits.memory // 1024,
        files=limits.open_files,
        processes=limits.processes,
    )
