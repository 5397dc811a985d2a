"""Whether a home can be trusted: no other user may own it, write it, or put another folder in its place.

A home decides where keys are sent and which commands run. The rule is that of OpenSSH for a user's keys: each
file, and each folder on the way to it, belongs to this user or to root, and no other user may write it. A
folder with the sticky bit, such as /tmp, may be open, because its entries are safe from other users there. A
group may write if it is this user's own group, or root's, and has no other member.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from talaria.config.home import Home
from talaria.core.errors import ConfigError

_ELSEWHERE = "or name a home of your own with --home or TALARIA_HOME"


class UntrustedHome(ConfigError):
    """Another user controls the home, or a file in it: `path`. `fact` says how, without what it may lead to.
    `command` fixes it; it is empty if this user cannot. `otherwise` is another way out."""

    def __init__(self, path: Path, fact: str, risk: str, otherwise: str, command: str = "") -> None:
        mend = f"Mend it with: {command}" if command else ""
        super().__init__(f"{fact}, who could {risk}.", ", ".join(filter(None, (mend, otherwise))) + ".")
        self.path = path
        self.fact = fact
        self.otherwise = otherwise
        self.command = command


def check_trusted(home: Home, *more: Path) -> None:
    """Raises `UntrustedHome` if another user controls the home, its files or one of the paths `more`."""
    for reason in find_distrust(home, *more):
        raise reason


def find_distrust(home: Home, *more: Path) -> Iterator[UntrustedHome]:
    """Yield an error for each path that another user controls. What does not exist is trusted."""
    seen: set[Path] = set()
    for path in (home.path, home.config, home.token_file, home.database, *more):
        for each in _way_to(path):
            if each not in seen:
                seen.add(each)
                yield from _examine(each, home)


def _way_to(path: Path) -> Iterator[Path]:
    """Yield the path and the folders around it, as named and as links resolve them."""
    yield from (path, *path.parents)
    try:
        real = path.resolve()
    except (OSError, RuntimeError):
        return
    yield from (real, *real.parents)


def _examine(path: Path, home: Home) -> Iterator[UntrustedHome]:
    try:
        found = path.lstat()
    except OSError:
        return
    name = "The home" if path == home.path else "The folder" if stat.S_ISDIR(found.st_mode) else "The file"
    where = shlex.quote(str(path))
    if found.st_uid not in (os.geteuid(), 0):
        owner = _user_name(found.st_uid)
        fact, risk = f"{name} {path} belongs to another user ({owner})", "read keys and send them elsewhere"
        if os.geteuid() == 0:
            otherwise = f"run as that user (sudo -u {owner} talaria …), {_ELSEWHERE}"
            command = f"chown {'-R ' if path == home.path else ''}root {where}"
            yield UntrustedHome(path, fact, risk, otherwise, command)
        else:
            yield UntrustedHome(path, fact, risk, _ELSEWHERE.removeprefix("or ").capitalize())
    elif not stat.S_ISLNK(found.st_mode) and _others_write(found):
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        fact = f"{name} {path} can be written by other users (mode {mode})"
        sudo = "" if found.st_uid == os.geteuid() else "sudo "
        yield UntrustedHome(path, fact, "send keys elsewhere", _ELSEWHERE, f"{sudo}chmod go-w {where}")


def _others_write(found: os.stat_result) -> bool:
    if found.st_mode & stat.S_ISVTX and stat.S_ISDIR(found.st_mode):
        return False
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_own_group(found.st_gid)


def _is_own_group(gid: int) -> bool:
    """Return whether this user is the only member of the group. A group without a name, as volumes of
    containers have it, counts if this process is in it. Root's group counts: containers that run as any user
    have it, and root may write everything in any case."""
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return gid in (os.getegid(), *os.getgroups())
    user = _user_name(os.geteuid())
    if gid == 0:
        return set(group.gr_mem) <= {user, "root"}
    return group.gr_name == user and set(group.gr_mem) <= {user}


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
