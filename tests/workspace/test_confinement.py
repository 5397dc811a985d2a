"""No path, and no race, leaves the folder."""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from talaria.core.errors import ToolError
from talaria.workspace.folder import Folder
from talaria.workspace.reading import Glob, walk
from workspace.conftest import CANARY, Site

# Ways up and out of the folder, and what they could be after.
UP = ["../", "./../", ".//../", "sub/../../", "sub/deep/../../../", "sub/./../../", "sub//..//..//"]
UP += ["nothing/../../", "nothing/nothing/../../../", "inside.txt/../../", "link_folder/../../"]
UP += ["link_root/../../", "../chat/../", "{root}/../", "{root}/sub/../../", "{root}/./../"]
BESIDE = ["", "outside", "outside/", "outside/canary.txt", "chat-twin/canary.txt", "new.txt"]
UPWARDS = [
    *(way + target for way, target in itertools.product(UP, BESIDE)),
    "..",
    "../chat",
    "../chat/inside.txt",
    "../..",
    "../../..",
    "../../new-outside.txt",
    "../" * 40 + "etc/passwd",
    "../" * 40 + "proc/self/environ",
    "a/" * 20 + "../" * 21 + "outside/canary.txt",
]
ABSOLUTE = [
    *(f"{start}{path}" for start in ("/", "//", "///", "/./") for path in ("", "etc", "etc//passwd", "tmp")),
    *(f"/{path}" for path in ("..", "etc/../etc/passwd", "dev/stdin", "dev/fd/0", "dev/null", "dev/zero")),
    *(f"/proc/self/{path}" for path in ("environ", "root/etc/passwd", "cwd/canary.txt")),
    *(f"{start}{path}" for start in ("", "/") for path in ("{outside}/canary.txt", "{outside}/new.txt")),
    "{outside}",
    "{root}/..",
    "{root}-twin",
    "{root}-twin/canary.txt",
    *(f"~{path}" for path in ("", "/canary.txt", "root/.bashrc", "/../outside/canary.txt")),
]
# Links to files, and links to folders with what could be found or made behind them.
TO_FILES = ["link_file", "link_relative_file", "link_loop", "link_nowhere", "link_inside", "sub/link_file"]
TO_FOLDERS = ["link_folder", "link_relative", "link_chain", "link_root", "sub/link_up", "sub/link_out"]
LINKS = [
    *(f"{start}{link}" for start in ("", "./", "sub/../", "{root}/") for link in TO_FILES),
    *(f"{link}{path}" for link in TO_FOLDERS for path in ("/canary.txt", "/new.txt", "/new/new.txt")),
    *(f"link_{path}" for path in ("file/", "file/x", "loop/x", "system/passwd", "root/etc/passwd")),
    *(f"link_proc/{path}" for path in ("environ", "cwd/x")),
    *(f"sub/{path}" for path in ("link_up/inside.txt", "link_up/link_file", "./link_file", "/link_file")),
]
ODD = [
    "inside.txt\0",
    "\0",
    "inside.txt\0../outside/canary.txt",
    "sub\0/in.txt",
    "line\nbreak",
    "tab\there",
    "return\r",
    "escape\x1b[2J",
    "delete\x7f",
    "high\x85control",
    "separator\u2028here",
    "half\ud800pair",
    "half\udc2fpair",
    "a" * 256,
    "sub/" + "b" * 256,
    "ü" * 128,
    "c/" * 65 + "x",
    "d/" * 3000,
    "e" * 5000,
]
NOT_FILES = [
    *("", ".", "./", "./.", "sub/..", "sub", "sub/", "sub/deep"),
    *("{root}" + path for path in ("", "/", "/.", "/sub")),
]
SPECIAL = [
    *(start + name for start in ("", "./", "sub/../", "{root}/") for name in ("pipe", "socket")),
    *(name + "/x" for name in ("pipe", "socket", "inside.txt")),
]
REFUSED = UPWARDS + ABSOLUTE + LINKS + ODD + NOT_FILES + SPECIAL

HARMLESS = [
    "sub/link_up/../../outside/canary.txt",
    "..\\outside\\canary.txt",
    "..\\..\\etc\\passwd",
    "C:\\Windows\\win.ini",
    "C:/new.txt",
    "%2e%2e/outside/canary.txt",
    "..%2foutside",
    "%2e%2e%2foutside%2fcanary.txt",
    "..%c0%afoutside/canary.txt",
    "．．/outside/canary.txt",
    "..∕outside∕canary.txt",
    "․․/outside/canary.txt",
    ".../outside/canary.txt",
    "....//outside/canary.txt",
    ".. /outside/canary.txt",
    " ../outside/canary.txt",
    "..;/outside/canary.txt",
    "file:///etc/passwd",
    "file:..",
    "$HOME/canary.txt",
    "${HOME}",
    "$(cat canary.txt)",
    "`id`",
    "-rf",
    "--help",
    "*",
    "sub/*",
    "{{outside}}",
    "a b",
    "emoji 🦶 and 한글",
    "screenshot 3.04 PM.png",
    "\u202egnp.exe",
    "con",
    "x" * 255,
]


def filled(path: str, site: Site) -> str:
    return path.replace("{root}", str(site.root)).replace("{outside}", str(site.outside))


def read(folder: Folder, path: str) -> bytes:
    return folder.read(folder.resolve(path))


def write(folder: Folder, path: str) -> bool:
    return folder.write(folder.resolve(path), b"written")


def test_the_table_of_hostile_paths_is_long_and_has_no_repetition() -> None:
    assert len(set(REFUSED + HARMLESS)) == len(REFUSED + HARMLESS) > 150


def list_and_remove(folder: Folder, path: str) -> None:
    """Not every path is refused here: listing a folder and removing a link are fine, inside."""
    with suppress(ToolError):
        found = walk(folder, folder.resolve(path), Glob("**"), 1000).found
        assert not any("canary" in str(item.path) for item in found)
    with suppress(ToolError):
        folder.remove(folder.resolve(path))


@pytest.mark.parametrize("path", REFUSED)
def test_a_path_out_of_the_folder_is_refused(site: Site, path: str) -> None:
    before = site.snapshot()
    for operation in (read, write):
        with pytest.raises(ToolError) as refusal:
            operation(site.folder, filled(path, site))
        assert "CANARY" not in str(refusal.value)
        assert str(refusal.value).isprintable()
    list_and_remove(site.folder, filled(path, site))
    assert site.snapshot() == before


@pytest.mark.parametrize("path", HARMLESS)
def test_a_path_that_only_looks_hostile_is_a_name_like_any_other(site: Site, path: str) -> None:
    before = site.snapshot()
    list_and_remove(site.folder, path)
    assert write(site.folder, path)
    assert read(site.folder, path) == b"written"
    assert site.snapshot() == before


@pytest.mark.parametrize(
    "path",
    [
        "inside.txt",
        "./inside.txt",
        "sub/../inside.txt",
        "nothing/../inside.txt",
        "{root}/inside.txt",
        "//{root}/inside.txt",
    ],
)
def test_every_way_to_write_an_inner_path_leads_to_it(site: Site, path: str) -> None:
    assert read(site.folder, filled(path, site)) == b"inside\n"


def test_an_absolute_path_works_by_either_name_of_a_linked_root(site: Site) -> None:
    alias = site.root.parent / "alias"
    alias.symlink_to(site.root)
    folder = Folder(alias)
    assert read(folder, f"{alias}/inside.txt") == read(folder, f"{site.root}/inside.txt") == b"inside\n"


def test_a_file_that_was_replaced_by_a_link_is_not_written_through(site: Site) -> None:
    before = site.snapshot()
    (site.root / "inside.txt").unlink()
    (site.root / "inside.txt").symlink_to(site.outside / "canary.txt")
    with pytest.raises(ToolError, match="symbolic link"):
        write(site.folder, "inside.txt")
    assert site.snapshot() == before


def test_a_hard_link_is_neither_read_nor_written(site: Site) -> None:
    os.link(site.outside / "canary.txt", site.root / "hard")
    folder = site.folder
    for use in (lambda: write(folder, "hard"), lambda: folder.read(folder.resolve("hard"))):
        with pytest.raises(ToolError, match="is a hard link"):
            use()
    assert (site.outside / "canary.txt").read_bytes() == CANARY
    folder.remove(folder.resolve("hard"))  # its name may go
    assert (site.outside / "canary.txt").read_bytes() == CANARY


def exchange(one: Path, other: Path) -> None:
    """Two names trade places in one system call: at no moment is either of them missing."""
    libc = ctypes.CDLL(None, use_errno=True)
    at_cwd, exchange_flag = -100, 2
    if libc.renameat2(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange_flag):
        raise OSError(ctypes.get_errno(), "renameat2")


@contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    """Meanwhile `one` and `other` trade places without end; afterwards they are where they were."""
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            exchange(one, other)
            exchange(one, other)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.skipif(sys.platform != "linux", reason="needs renameat2")
@pytest.mark.parametrize(
    ("name", "target"), [("sub", "outside"), ("sub/deep", "outside"), ("sub/in.txt", "outside/in.txt")]
)
def test_a_link_swapped_in_while_we_work_is_never_followed(site: Site, name: str, target: str) -> None:
    trap = site.root / "trap"
    trap.symlink_to(site.root.parent / target)
    (site.outside / "leaf.txt").touch()
    before = site.snapshot()
    paths = ["sub/in.txt", "sub/canary.txt", "sub/deep/in.txt", "sub/deep/new/file.txt"]
    answers = set()
    with swapping(site.root / name, trap):
        for path in paths * 100:
            with suppress(ToolError):
                answers.add(read(site.folder, path))
        for path in paths * 50:
            with suppress(ToolError):
                write(site.folder, path)
        for _ in range(50):
            tree = walk(site.folder, site.folder.resolve("."), Glob("**"), 1000)
            answers.update(found.path.name.encode() for found in tree.found)
    assert answers >= {b"in.txt", b"down.txt"}
    assert b"leaf.txt" not in answers
    assert CANARY not in answers
    assert site.snapshot() == before
