"""The file system that a path is on, and whether a database may live there.

SQLite's WAL needs shared memory and locks that all users of the file see. Network and host-shared file
systems fake or lose them, and a database there is corrupted sooner or later.
"""

from __future__ import annotations

from pathlib import Path, PurePath

from talaria.core.errors import StoreError

MOUNTINFO = Path("/proc/self/mountinfo")

SHARED_FILESYSTEMS = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "fuse.ceph", "fuse.cephfs",
        "fuse.davfs", "fuse.davfs2", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.grpcfuse",
        "fuse.juicefs", "fuse.osxfs", "fuse.rclone", "fuse.s3fs", "fuse.smbnetfs", "fuse.sshfs",
        "fuse.vmhgfs-fuse", "fuse.weed", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
        "ocfs2", "orangefs", "prl_fs", "pvfs2", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs",
    }
)  # fmt: skip


def filesystem_type(path: PurePath, mountinfo: str) -> str:
    """Return the type of the mount that an absolute, resolved `path` is on; '' when no mount holds it.

    If several mounts have the same mount point, the last one listed hides the others.
    """
    best, found = -1, ""
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split()
        if not separator or len(fields) < 5:
            continue
        mount_point = PurePath(_unescape(fields[4]))
        depth = len(mount_point.parts)
        if depth >= best and path.is_relative_to(mount_point):
            best, found = depth, right.split(" ", 1)[0]
    return found


def refuse_shared_filesystem(path: PurePath, mountinfo: str) -> None:
    """Raise `StoreError` if SQLite cannot keep its promises at `path`."""
    kind = filesystem_type(path, mountinfo)
    if kind in SHARED_FILESYSTEMS:
        raise StoreError(
            f"{path} is on a shared file system ({kind}), where a SQLite database gets corrupted.",
            "Put the home on a local disk with --home or TALARIA_HOME.",
        )


def check_filesystem(folder: Path) -> None:
    """Raise `StoreError` if the folder is on a shared file system. Where the mounts of this machine cannot be
    read, nothing is refused."""
    try:
        mountinfo = MOUNTINFO.read_text(errors="surrogateescape")
    except OSError:
        return
    refuse_shared_filesystem(folder.resolve(), mountinfo)


def _unescape(field: str) -> str:
    r"""Mount points write space, tab, newline and backslash as `\040` and so on."""
    head, *rest = field.split("\\")
    return head + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)
