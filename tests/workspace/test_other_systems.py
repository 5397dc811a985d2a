"""The chat's folder and its tools on a system that has no calls of Linux."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from talaria.tools import matcher

WITHOUT_LINUX = """
import os, sys

del os.O_PATH
sys.platform = "darwin"

from pathlib import Path
from talaria.workspace.folder import Folder
from talaria.workspace.rights import find_openat2

folder = Folder(Path(sys.argv[1]))
os.umask(0)
folder.write(folder.resolve("a/b/note.txt"), b"text")
assert folder.read(folder.resolve("a/b/note.txt")) == b"text"
assert folder.root.joinpath("a").stat().st_mode & 0o777 == 0o700
os.umask(0o277)
folder.write(folder.resolve("c/note.txt"), b"text")
assert folder.root.joinpath("c").stat().st_mode & 0o777 == 0o700
assert find_openat2() is None
"""

WITHOUT_BOUNDS = """
import fcntl, resource, runpy, sys

def refuse(*_):
    raise ValueError("current limit exceeds maximum limit")

def refuse_pipes(descriptor, command, argument=0):
    raise OSError(25, "Inappropriate ioctl for device")

setrlimit = resource.setrlimit
resource.setrlimit = lambda key, limits: refuse() if key == resource.RLIMIT_AS else setrlimit(key, limits)
fcntl.fcntl = refuse_pipes
sys.argv = [sys.argv[1], "200"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_files_are_written_and_read_without_calls_of_linux(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_LINUX, str(tmp_path / "chat")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_search_works_where_the_system_refuses_a_bound() -> None:
    frames = b"".join(len(data).to_bytes(4, "big") + data for data in (b"n.edle", b"hay\nneedle\n"))
    command = [sys.executable, "-c", WITHOUT_BOUNDS, str(Path(matcher.__file__))]
    life, held = os.pipe()  # as the gateway gives it to its children
    try:
        answers = subprocess.run(
            command, input=frames, stdout=subprocess.PIPE, stderr=life, check=True
        ).stdout
    finally:
        os.close(life)
        os.close(held)
    assert answers.splitlines() == [b'{"hits": []}', b'{"hits": [[2, "needle"]]}']
