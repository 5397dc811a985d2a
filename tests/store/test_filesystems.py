"""Where a database may live, by the text of mountinfo."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from talaria.core.errors import StoreError
from talaria.store.home_lock import check_filesystem, filesystem_type, refuse_shared_filesystem

MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home rw,relatime - xfs /dev/sdb1 rw
31 30 0:41 / /home/ada/mnt rw,relatime - nfs4 server:/export rw,vers=4.2
32 22 0:42 / /media/my\040share rw,relatime - cifs //server/share rw
33 22 0:43 / /mnt/remote rw - fuse.sshfs ada@host:/ rw
34 22 0:44 / /tmp rw - tmpfs tmpfs rw
35 22 0:45 / /workspace rw - virtiofs host rw
36 22 0:46 / /over rw master:3 propagate_from:2 - nfs old rw
37 22 0:47 / /over rw - btrfs /dev/sdc1 rw
38 22 0:48 / /container rw - overlay overlay rw
a line that means nothing
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/var/lib/talaria", "ext4"),
        ("/home/ada", "xfs"),
        ("/home/ada/mnt", "nfs4"),
        ("/home/ada/mnt/deep/er", "nfs4"),
        ("/home/ada/mnt2", "xfs"),
        ("/media/my share/x", "cifs"),
        ("/mnt/remote/x", "fuse.sshfs"),
        ("/tmp/x", "tmpfs"),
        ("/over/x", "btrfs"),
        ("/container", "overlay"),
    ],
)
def test_type_is_that_of_the_deepest_and_last_mount(path: str, kind: str) -> None:
    assert filesystem_type(PurePosixPath(path), MOUNTS) == kind


def test_path_outside_every_mount_has_no_type() -> None:
    assert filesystem_type(PurePosixPath("/x"), "") == ""


@pytest.mark.parametrize("path", ["/home/ada/mnt/t", "/media/my share", "/mnt/remote", "/workspace/home"])
def test_shared_file_systems_are_refused(path: str) -> None:
    with pytest.raises(StoreError) as caught:
        refuse_shared_filesystem(PurePosixPath(path), MOUNTS)
    assert path in caught.value.user_text
    assert "TALARIA_HOME" in caught.value.hint


@pytest.mark.parametrize("path", ["/var/lib/talaria", "/home/ada", "/tmp/x", "/over", "/container"])
def test_local_file_systems_are_allowed(path: str) -> None:
    refuse_shared_filesystem(PurePosixPath(path), MOUNTS)


def test_this_machine_is_asked(tmp_path: Path) -> None:
    check_filesystem(tmp_path)
