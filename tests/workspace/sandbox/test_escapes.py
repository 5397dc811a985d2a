"""Escapes are tried for real, in every backend of this machine, as root and as an ordinary user."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import talaria
from talaria.workspace.sandbox.choice import prove
from talaria.workspace.sandbox.command import Sandbox, SandboxError, command_user, hand_over
from talaria.workspace.sandbox.landlock import NoSandbox
from talaria.workspace.sandbox.process import run
from workspace.sandbox.conftest import Places

pytestmark = pytest.mark.broken_database  # the home has a file with that name
UID = 12345
# Each is another way out; what the canary tries beyond these are calls of the kernel.
WAYS = {
    "read a file", "read by a symbolic link", "read by /proc/self/root", "list the gateway's home",
    "write a file", "append to a file", "cut a file", "cut a file on opening", "move a file in",
    "remove a file", "change a mode", "see the gateway", "read the gateway's variables",
    "signal the gateway", "look at the gateway's limits", "connect by TCP", "send by UDP",
    "connect to a Unix socket", "connect to an abstract socket", "send from a pair of sockets",
    "open a netlink socket", "clone into a user namespace", "type into the terminal", "call ptrace",
    "call unshare user", "call unshare network", "call setns", "call keyctl", "call io_uring_setup",
}  # fmt: skip


@pytest.fixture
def gateway_home(tmp_path: Path) -> Path:
    home = tmp_path / "gateway"
    home.mkdir()
    (home / "talaria.db").write_text("secret")
    return home


async def test_no_escape_works(sandbox: Sandbox, gateway_home: Path) -> None:
    proof = await prove(sandbox, gateway_home)
    assert proof.reached == {}
    assert proof.holds
    assert set(proof.attempts) >= WAYS


async def test_every_escape_works_where_there_is_no_sandbox(gateway_home: Path) -> None:
    """So each attempt is able to tell a hole."""
    if sys.platform != "linux":
        pytest.skip("sandboxes are for Linux")
    proof = await prove(NoSandbox(), gateway_home)
    assert not proof.holds
    unseen = WAYS - set(proof.reached or ())
    if os.geteuid() != 0 or "Seccomp:\t2" in Path("/proc/self/status").read_text():
        unseen -= {
            name for name in unseen if name.startswith("call ") or "namespace" in name
        }  # not ours to say
    assert unseen == set()
    assert "escapes through: read a file (6 bytes)" in proof.sentence()


async def test_a_proof_leaves_nothing(
    sandbox: Sandbox, gateway_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = gateway_home.parent / "scratch"
    scratch.mkdir(mode=0o755)
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    assert (await prove(sandbox, gateway_home)).holds
    assert [*scratch.iterdir()] == []
    assert [path.name for path in gateway_home.iterdir()] == ["talaria.db"]


async def test_chats_do_not_see_each_other(sandbox: Sandbox, places: Places, tmp_path: Path) -> None:
    other = Places(*(tmp_path / name for name in ("chat2", "home2", "tmp2")))
    for path in (other.folder, other.home, other.tmp):
        path.mkdir()
    hand_over((other.folder, other.home, other.tmp))
    (other.folder / "secret").write_text("secret")
    (other.folder / "secret").chmod(0o666)
    there = other.folder
    text = f"cat {there}/secret; ls {there}; echo x >{there}/new; ln -s {there} in; ls in/"
    done = await run(sandbox, places.command(text))
    assert done.out == b""
    assert [path.name for path in other.folder.iterdir()] == ["secret"]


async def test_the_network_leads_nowhere(sandbox: Sandbox, places: Places) -> None:
    """With namespaces a command reaches itself; without, it has no sockets."""
    text = (
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname())\n"
        "print('itself')\n"
        "sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "sock.connect(('192.0.2.1', 53))\n"
        "print('out')\n"
    )
    done = await run(sandbox, places.python(text))
    assert done.out == (b"itself\n" if sandbox.name == "bubblewrap" else b"")
    assert b"OSError" in done.err or b"PermissionError" in done.err


async def test_git_works_inside(sandbox: Sandbox, places: Places) -> None:
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    commit = "git -c user.name=a -c user.email=a@b commit -qm one"
    make = f"git init -q one && cd one && echo x >x && git add x && {commit} && cd .."
    text = f"{make} && git clone -q one two && cat two/x"
    done = await run(sandbox, places.command(text))
    assert (done.ending.code, done.out) == (0, b"x\n"), done


# -- users


@pytest.mark.skipif(os.geteuid() != 0, reason="the tests do not run as root")
async def test_root_runs_commands_as_the_owner_of_the_folder(sandbox: Sandbox, places: Places) -> None:
    done = await run(sandbox, places.command("id -u; touch made"))
    uid, _ = command_user(places.folder)
    assert uid > 1_000_000
    assert done.out.decode() == f"{uid}\n"
    assert (places.folder / "made").stat().st_uid == uid

    os.chown(places.folder, 0, 0)
    with pytest.raises(SandboxError, match="belongs to root, and commands do not run as root"):
        await run(sandbox, places.command("true"))

    for path in (places.folder, places.home, places.tmp):
        os.chown(path, UID, UID)
    assert (await run(sandbox, places.command("id -u"))).out.decode() == f"{UID}\n"


_TOUCH_OTHERS = """\
import os, sys
for attempt in (
    lambda: os.chmod(sys.argv[1], 0o777),
    lambda: os.utime(sys.argv[1]),
    lambda: os.utime(sys.argv[1], (1, 1)),
    lambda: os.setxattr(sys.argv[1], "user.mark", b"x"),
    lambda: os.sched_setaffinity(int(sys.argv[2]), {min(os.sched_getaffinity(0))}),
    lambda: os.setpriority(os.PRIO_PROCESS, int(sys.argv[2]), 19),
):
    try:
        attempt()
    except OSError:
        pass
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the tests do not run as root")
@pytest.mark.parametrize("uid", [UID, None], ids=["of a person", "of the chat alone"])
async def test_root_keeps_commands_from_what_their_user_has_elsewhere(
    sandbox: Sandbox, places: Places, tmp_path: Path, uid: int | None
) -> None:
    """A command in a project's folder runs as a person who owns other files and processes."""
    if uid is not None:
        for path in (places.folder, places.home, places.tmp):
            os.chown(path, uid, uid)
    user, _ = command_user(places.folder)
    tmp_path.chmod(0o755)
    outside = tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o666)
    if uid is not None:
        os.chown(outside, user, user)
    drop = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "cat"]
    other = subprocess.Popen(drop, stdin=subprocess.PIPE)
    try:
        before = outside.stat(), os.listxattr(outside), os.sched_getaffinity(other.pid)
        command = places.command("/usr/bin/env", "python3", "-c", _TOUCH_OTHERS, str(outside), str(other.pid))
        await run(sandbox, command)
        now = outside.stat(), os.listxattr(outside), os.sched_getaffinity(other.pid)
        assert now == before
        assert os.getpriority(os.PRIO_PROCESS, other.pid) == os.getpriority(os.PRIO_PROCESS, 0)
    finally:
        other.communicate(b"")


@pytest.mark.skipif(os.geteuid() != 0, reason="the tests do not run as root")
def test_folders_are_handed_over_without_following_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("")
    folder = tmp_path / "chat"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "file").write_text("")
    (folder / "link").symlink_to(outside)
    hand_over((folder,))
    uid = folder.stat().st_uid
    assert uid != 0
    assert {path.lstat().st_uid for path in folder.rglob("*")} == {uid}
    assert outside.stat().st_uid == 0


def _restricted(program: str, *prefix: str, home: Path, uid: int | None = None) -> dict[str, str]:
    """Run a program that prints JSON, with the package, in another process."""
    site = Path(msgspec.__file__).parents[1]
    path = f"{Path(talaria.__file__).parents[1]}:{site}:{Path(__file__).parent}"
    python = sys.executable if uid is None else "/usr/bin/python3"
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(home),
    }
    done = subprocess.run(
        [*prefix, python, "-c", program, str(home), *(["auto"] if uid is None else [])],
        check=False,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


_PROVE = """\
import asyncio, json, sys
from pathlib import Path
from talaria.workspace.sandbox.choice import choose
async def main():
    for kind in ("bubblewrap", "landlock", "auto"):
        if kind == "auto" and not sys.argv[2:]:
            continue
        choice = await choose(kind, Path(sys.argv[1]))
        yield kind, choice.sandbox.name if choice.sandbox else choice.reason + " | " + choice.hint
async def collect():
    return {kind: name async for kind, name in main()}
print(json.dumps(asyncio.run(collect())))
"""


def _as_ordinary_user() -> list[str]:
    return ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]


def test_an_ordinary_user_is_held_too(gateway_home: Path) -> None:
    """The other tests run as whoever runs them; this one drops from root."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("the tests do not run as root, or there is no setpriv")
    try_import = [*_as_ordinary_user(), "/usr/bin/python3", "-c", "import msgspec._core"]
    site = str(Path(msgspec.__file__).parents[1])
    if (
        not Path("/usr/bin/python3").exists()
        or subprocess.run(try_import, check=False, env={"PYTHONPATH": site}, capture_output=True).returncode
    ):
        pytest.skip("an ordinary user cannot run a Python that has msgspec")
    gateway_home.chmod(0o755)
    found = _restricted(_PROVE, *_as_ordinary_user(), home=gateway_home, uid=UID)
    for name, outcome in found.items():
        missing = ("not installed", "Landlock is")
        assert outcome == name or any(each in outcome for each in missing), outcome


# Sets a filter like that of a container's default seccomp profile before anything is proved.
_UNDER_A_FILTER = (
    """\
import ctypes, struct, sys
from talaria.workspace.sandbox.seccomp import MACHINES
import os
machine = MACHINES[os.uname().machine]
refused = {refused}
program = [(0x20, 0, 0, 0)]
for name in refused:
    program += [(0x15, 0, 1, machine.calls[name] if isinstance(name, str) else name), (0x06, 0, 0, 0x50001)]
program += [(0x06, 0, 0, 0x7FFF0000)]
class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))
packed = b"".join(struct.pack("<HBBI", *each) for each in program)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(len(program), packed))) == 0
"""
    + _PROVE
)


def test_landlock_holds_where_bubblewrap_cannot_run(gateway_home: Path) -> None:
    refused = (
        "mount",
        "umount2",
        "pivot_root",
        "unshare",
        "setns",
        "open_tree",
        "move_mount",
        "fsopen",
        "keyctl",
    )
    found = _restricted(_UNDER_A_FILTER.replace("{refused}", repr(refused)), home=gateway_home)
    if "Landlock is" in found["landlock"]:
        pytest.skip(found["landlock"])
    assert found["auto"] == found["landlock"] == "landlock"
    assert found["bubblewrap"].startswith("No sandbox holds here, so commands are refused. bubblewrap: ")


def test_without_any_sandbox_commands_are_refused_and_the_hint_says_what_to_do(gateway_home: Path) -> None:
    refused = ("mount", "unshare", 444)  # 444: Landlock
    found = _restricted(_UNDER_A_FILTER.replace("{refused}", repr(refused)), home=gateway_home)
    assert found["auto"].startswith("No sandbox holds here, so commands are refused. bubblewrap: ")
    assert "landlock: Landlock is not in this kernel." in found["auto"]
    assert found["auto"].partition(" | ")[2]


async def test_the_proof_is_run_once(gateway_home: Path) -> None:
    from talaria.workspace.sandbox.choice import Sandboxes

    chooser = Sandboxes("auto", gateway_home)
    impatient = asyncio.create_task(chooser.choose())
    await asyncio.sleep(0)
    impatient.cancel()
    first, second = await asyncio.gather(chooser.choose(), chooser.choose())
    assert first is second
    assert impatient.cancelled()
