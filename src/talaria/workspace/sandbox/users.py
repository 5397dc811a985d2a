"""The user that commands run as when the gateway runs as root."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from talaria.workspace.sandbox.port import SandboxError

# As root the kernel enforces no limit of processes, and ownership protects nothing. So each folder that root
# made for commands gets a user of its own, far from those of people, services and containers.
_FIRST_UID, _UIDS = 0x54410000, 0xFFFF
_NOBODY = 65534


def command_user(folder: Path) -> tuple[int, int]:
    """Return the uid and gid of commands that work in this folder; (0, 0) to stay the gateway's user.

    As root that is the owner of the folder, so that files keep their owner. Raises `SandboxError` if root
    owns it: `hand_over` changes that.
    """
    if os.geteuid() != 0:
        return 0, 0
    status = folder.stat()
    if status.st_uid == 0:
        text = f"The folder {folder} belongs to root, and commands do not run as root."
        raise SandboxError(text, f"Give it to another user, such as: chown -R nobody {folder}")
    return status.st_uid, status.st_gid or _NOBODY


def hand_over(folders: tuple[Path, ...]) -> None:
    """Give folders that root owns, and what is in them, to the user of the first one. Does nothing unless
    the gateway runs as root. Links are not followed."""
    if os.geteuid() != 0:
        return
    status = folders[0].stat()
    uid = status.st_uid or _own_uid(folders[0])
    gid = status.st_gid or uid
    for folder in folders:
        if folder.stat().st_uid != uid:
            for _, folder_names, file_names, fd in os.fwalk(folder, follow_symlinks=False):
                for name in (*folder_names, *file_names):
                    os.chown(name, uid, gid, dir_fd=fd, follow_symlinks=False)
            os.chown(folder, uid, gid)


def is_own_uid(uid: int) -> bool:
    """Return whether a user was made for one folder. Any other may own files and processes elsewhere."""
    return _FIRST_UID <= uid < _FIRST_UID + _UIDS


def _own_uid(folder: Path) -> int:
    uid = _FIRST_UID + zlib.crc32(os.fsencode(folder)) % _UIDS
    with open("/proc/self/uid_map") as file:  # noqa: PTH123 - a container may have fewer users
        ranges = [[int(word) for word in line.split()] for line in file]
    return uid if any(first <= uid < first + count for first, _, count in ranges) else _NOBODY
