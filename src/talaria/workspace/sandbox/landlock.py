"""The backends without namespaces: Landlock, seccomp and rlimits, or nothing but rlimits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from talaria.workspace.sandbox import launcher
from talaria.workspace.sandbox.command import (
    ACCOUNTS,
    DEVICES,
    PROC_FILES,
    Launch,
    SandboxCommand,
    SandboxError,
    command_user,
    is_own_uid,
    system_paths,
)
from talaria.workspace.sandbox.seccomp import MACHINES, build_filter


@dataclass(frozen=True, slots=True)
class LandlockSandbox:
    """Confines files with Landlock, and the rest with seccomp. There is no network and no socket. `hidden`
    are folders that no command sees even if they lie below the system's."""

    hidden: tuple[Path, ...] = ()
    name: Literal["landlock"] = "landlock"

    def temporary(self, command: SandboxCommand) -> str:
        return str(command.tmp)

    def prepare(self, command: SandboxCommand) -> Launch:
        machine = MACHINES.get(os.uname().machine)
        abi = launcher.landlock_abi()
        if machine is None or abi < launcher.MIN_ABI:
            what = "is not" if abi == 0 else f"is version {abi}, and {launcher.MIN_ABI} is needed"
            raise SandboxError(
                f"Landlock {what} in this kernel.", "Linux 6.12 has it; or install bubblewrap."
            )
        command.check()
        uid, gid = command_user(command.folder)
        rules = build_filter(machine, has_namespaces=False, shares_uid=not is_own_uid(uid))
        return _launch(
            command,
            uid=uid,
            gid=gid,
            is_confined=True,
            filter=rules,
            writable=_words(command.writable),
            readable=_words(command.readable),
            system=[*_words((*system_paths(self.hidden),)), *PROC_FILES, *ACCOUNTS],
            devices=DEVICES,
        )


@dataclass(frozen=True, slots=True)
class NoSandbox:
    """Confines nothing: a command can do all that the gateway's user can. Its variables, its limits and its
    end are as in a sandbox."""

    name: Literal["none"] = "none"

    def temporary(self, command: SandboxCommand) -> str:
        return str(command.tmp)

    def prepare(self, command: SandboxCommand) -> Launch:
        command.check()
        return _launch(command, uid=0, gid=0, is_confined=False, filter=b"")


def _launch(command: SandboxCommand, **order: Any) -> Launch:
    argv, environ = command.start(str(command.tmp))
    status, told = os.pipe()
    order |= {
        "argv": list(argv),
        "cwd": str(command.cwd or command.folder),
        "environ": environ,
        "limits": asdict(command.limits),
        "status": told,
        "tty": command.tty,
    }
    return Launch((), (told,), status, order)


def _words(paths: Sequence[Path]) -> list[str]:
    return [str(path) for path in paths]
