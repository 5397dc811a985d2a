from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from talaria.workspace.folder import Folder

CANARY = b"CANARY: nobody inside may read or change this\n"


@dataclass(frozen=True)
class Site:
    """A chat's folder full of traps, beside a place that must stay untouched."""

    root: Path
    outside: Path
    by_kernel: bool

    @property
    def folder(self) -> Folder:
        return Folder(self.root, by_kernel=self.by_kernel)

    def snapshot(self) -> dict[str, bytes | None]:
        """Everything that is not in the folder, by path."""
        beside = self.root.parent
        return {
            str(path): path.read_bytes() if path.is_file() else None
            for path in sorted(beside.rglob("*"))
            if path != self.root and self.root not in path.parents
        }


@pytest.fixture(params=[True, False], ids=["openat2", "walk"])
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "canary.txt").write_bytes(CANARY)
    (outside / "in.txt").write_bytes(CANARY)
    twin = tmp_path / "chat-twin"  # its name begins like the folder's
    twin.mkdir()
    (twin / "canary.txt").write_bytes(CANARY)
    root = tmp_path / "chat"
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "inside.txt").write_text("inside\n")
    (root / "sub" / "in.txt").write_text("in\n")
    (root / "sub" / "deep" / "down.txt").write_text("down\n")
    links = {
        "link_file": outside / "canary.txt",
        "link_folder": outside,
        "link_relative": Path("../outside"),
        "link_relative_file": Path("../outside/canary.txt"),
        "link_chain": Path("link_folder"),
        "link_loop": Path("link_loop"),
        "link_nowhere": Path("../outside/made-by-link.txt"),
        "link_system": Path("/etc"),
        "link_root": Path("/"),
        "link_proc": Path("/proc/self"),
        "link_inside": Path("inside.txt"),
        "sub/link_up": Path(".."),
        "sub/link_out": Path("../../outside"),
        "sub/link_file": Path("../../outside/canary.txt"),
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    os.mkfifo(root / "pipe")
    (root / "sub" / "locked").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(root, os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{here}/socket")  # the path would be too long for a socket
        finally:
            os.close(here)
        yield Site(root, outside, request.param)
