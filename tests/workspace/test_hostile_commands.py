"""Commands that leave traps for the gateway: in the shell's state, and in folders that it removes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from talaria.core.ids import ChatKey, SessionId
from talaria.core.shells import ShellCommand
from talaria.workspace.places import remove_tree
from talaria.workspace.sandbox.choice import Sandboxes
from talaria.workspace.shell import SessionCommands
from talaria.workspace.workspaces import ChatWorkspaces

_DUMP = 'd=$(echo "$BASH_EXECUTION_STRING" | grep -o "[^ \']*/\\.talaria-[0-9a-f]*" | head -1);'
_TRAPS = {
    "a folder": "mkdir $d",
    "a pipe": "mkfifo $d",
    "a link": "ln -s /etc/passwd $d",
    "a closed file": "touch $d; chmod 0 $d",
    "a megabyte": "head -c 1000000 /dev/zero >$d",
}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are for Linux")
async def test_a_trap_in_the_place_of_the_shells_state_does_nothing(tmp_path: Path) -> None:
    sandboxes = Sandboxes("auto", tmp_path)
    if (await sandboxes.choose()).sandbox is None:
        pytest.skip("no sandbox holds here")
    workspaces = ChatWorkspaces(tmp_path, commands=SessionCommands(sandboxes))
    shell = workspaces.open(SessionId("s"), ChatKey("chat")).shell

    async def sink(_: bytes) -> None: ...

    await shell.run(ShellCommand("export KEPT=1; cd /usr", 30), sink)
    before, open_before = await shell.state(), descriptors()
    for what, trap in _TRAPS.items():
        end = await shell.run(ShellCommand(f"{_DUMP} {trap}; cd /", 30), sink)
        assert end.code == 0, what
        assert (await shell.state()).changed == before.changed, what
    assert descriptors() == open_before
    await workspaces.end(SessionId("s"))
    assert not [*tmp_path.glob("sessions/*/tmp")]


def test_a_tree_is_removed_however_deep_and_closed_it_is(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("")
    top = tmp_path / "tree"
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for n in range(2 * sys.getrecursionlimit()):
        os.mkdir("d", dir_fd=fd)
        if n % 100 == 0:
            os.symlink(outside, "link", dir_fd=fd)
            os.mkfifo("pipe", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        if n % 500 == 0:
            os.fchmod(fd, 0)
        os.close(fd)
        fd = inner
    os.close(fd)
    remove_tree(top)
    is_gone = not top.exists()
    subprocess.run(["rm", "-rf", str(top)], check=False)  # pytest itself could not remove it
    assert is_gone
    assert [path.name for path in outside.iterdir()] == ["kept"]
    remove_tree(top)  # nothing is there
