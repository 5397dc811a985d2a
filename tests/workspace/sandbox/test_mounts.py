"""A folder or link that a command controls never changes what a later command or the gateway sees (G29)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import talaria
from talaria.workspace.sandbox import mounts
from talaria.workspace.sandbox.bubblewrap import BubblewrapSandbox
from talaria.workspace.sandbox.command import Launch, Sandbox, SandboxCommand, SandboxError, hand_over
from talaria.workspace.sandbox.mounts import (
    Mount,
    bind,
    check_plan,
    find_helper,
    mount_options,
    takes_descriptors,
)
from talaria.workspace.sandbox.process import run
from workspace.sandbox import mount_attacks
from workspace.sandbox.conftest import Places

UID = 12345
BUBBLEWRAP = [pytest.param(BubblewrapSandbox(), id="bubblewrap")]
in_bubblewrap = pytest.mark.parametrize("sandbox", BUBBLEWRAP, indirect=True)


# -- the rule, over paths inside the sandbox


def _plan(*mounts: Mount) -> dict[str, Mount]:
    return {mount.destination: mount for mount in mounts}


def _bind(path: str, *, writable: bool = False, link: bool = False) -> Mount:
    return Mount(path, ("--bind", path, path), is_writable=writable, is_link=link)


@pytest.mark.parametrize(
    ("inner", "outer", "is_refused"),
    [
        (_bind("/srv/p"), _bind("/srv"), False),
        (_bind("/srv/p", writable=True), _bind("/srv"), False),
        (_bind("/srv/p"), _bind("/srv", writable=True), True),
        (_bind("/srv/p", writable=True), _bind("/srv", writable=True), True),
        (_bind("/srv/a/b/p"), _bind("/srv", writable=True), True),
        (_bind("/usr"), _bind("/", writable=True), True),
        (_bind("/srv/p"), _bind("/srv", link=True), True),
        (_bind("/srv-p"), _bind("/srv", writable=True), False),
    ],
)
def test_a_mount_below_a_writable_folder_or_a_link_is_refused(
    inner: Mount, outer: Mount, is_refused: bool
) -> None:
    for order in ((inner, outer), (outer, inner)):
        if is_refused:
            with pytest.raises(SandboxError, match="which commands can change"):
                mount_options(order)
        else:
            options = mount_options(order)
            assert options.index(outer.destination) < options.index(inner.destination)
            assert options[-2:] == ["--remount-ro", "/"]


@pytest.mark.parametrize("folder", ["/usr", "/usr/bin", "/bin"])
def test_programs_that_start_commands_are_never_in_a_folder_that_commands_can_write(folder: str) -> None:
    system = _plan(_bind("/usr"), _bind("/bin", link=True))
    check_plan(system, ["/usr/bin/setpriv", "/bin/sh"])
    with pytest.raises(SandboxError, match="cannot be used to start commands"):
        check_plan(system | _plan(_bind(folder, writable=True)), ["/usr/bin/setpriv", "/bin/sh"])
    with pytest.raises(SandboxError, match="cannot be used to start commands"):
        check_plan({}, ["/usr/bin/setpriv"])


def test_of_two_mounts_at_one_path_the_later_one_is_used() -> None:
    options = mount_options([bind(Path("/one"), "/a"), bind(Path("/two"), "/a", is_writable=True)])
    assert options == ["--bind", "/two", "/a", "--remount-ro", "/"]


def test_the_commands_own_proc_and_dev_cannot_be_replaced_by_the_machines() -> None:
    own = Mount("/proc", ("--proc", "/proc"), is_sealed=True)
    with pytest.raises(SandboxError, match="/proc cannot be a folder of commands"):
        mount_options([own, bind(Path("/proc"), "/proc")])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create files that belong to root")
def test_a_helper_that_others_can_change_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = Path(os.path.realpath("/usr/bin"))
    folder = tmp_path / "bin"
    folder.mkdir(mode=0o755)
    (folder / "true").symlink_to(trusted / "true")
    monkeypatch.setattr(mounts, "PATH", f"{folder}:{trusted}")
    for parent in tmp_path.parents:
        if parent.stat().st_mode & 0o022:  # /tmp itself
            break
    else:
        pytest.skip("the temporary folder is in no folder that others can write")
    find_helper.cache_clear()
    try:
        assert find_helper("true", "coreutils") == f"{trusted}/true"
        monkeypatch.setattr(mounts, "PATH", str(folder))
        find_helper.cache_clear()
        with pytest.raises(SandboxError, match=f"{folder}/true cannot be trusted: users other than root"):
            find_helper("true", "coreutils")
        with pytest.raises(SandboxError, match=r"^things is not installed\. Install the package things\.$"):
            find_helper("no-such-program", "things")
    finally:
        find_helper.cache_clear()


# -- the attack, in real sandboxes


@pytest.fixture
def below_tmp() -> Iterator[Places]:
    """The folders of a chat below /tmp, whatever the folder of the tests is."""
    top = mount_attacks.new_root("/tmp")
    found = Places(*(top / name for name in ("chat", "home", "tmp")))
    for path in (found.folder, found.home, found.tmp):
        path.mkdir()
    hand_over((found.folder, found.home, found.tmp))
    yield found
    shutil.rmtree(top)


@in_bubblewrap
async def test_a_folder_that_was_renamed_below_tmp_is_not_mounted_over_the_system(
    sandbox: Sandbox, below_tmp: Places
) -> None:
    """The command plants a link to /usr/bin where its chat folder is mounted, and a setpriv in the folder."""
    for name, text in (("setpriv", "#!/bin/sh\necho PLANTED\n"), ("id", "#!/bin/sh\necho PLANTED\n")):
        (below_tmp.folder / name).write_text(text)
        (below_tmp.folder / name).chmod(0o755)
    shutil.copy("/bin/sh", below_tmp.folder / "sh")
    chat, top = below_tmp.folder, below_tmp.folder.parent
    text = f"mv {top} /tmp/moved; mkdir -p {top} {below_tmp.home}; ln -s ../../usr/bin {chat}"
    await run(sandbox, below_tmp.command(text))
    done = await run(sandbox, below_tmp.command("id -u; ls /usr/bin | wc -l"))
    uid, count = done.out.decode().split()
    assert int(uid) == below_tmp.folder.stat().st_uid
    assert int(count) > 10


@in_bubblewrap
async def test_a_link_to_the_hosts_root_creates_nothing_on_the_host(
    sandbox: Sandbox, below_tmp: Places, tmp_path: Path
) -> None:
    """While bubblewrap mounts, the host is below /oldroot."""
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o777)
    top = below_tmp.folder.parent
    await run(sandbox, below_tmp.command(f"mv {top} /tmp/moved; ln -s /oldroot{outside} {top}"))
    done = await run(sandbox, below_tmp.command("echo ran"))
    assert done.out == b"ran\n"
    assert [*outside.iterdir()] == []


@in_bubblewrap
async def test_the_temporary_folder_is_elsewhere_if_another_folder_is_below_tmp(
    sandbox: Sandbox, below_tmp: Places
) -> None:
    text = 'echo "$TMPDIR $TMP $TEMP"; echo x >"$TMPDIR/x"; touch /tmp/x; mktemp -u'
    done = await run(sandbox, below_tmp.command(text))
    assert done.out.decode().splitlines()[0] == "/run/tmp /run/tmp /run/tmp"
    assert done.out.decode().splitlines()[1].startswith("/run/tmp/")
    assert b"Read-only file system" in done.err
    assert [path.name for path in below_tmp.tmp.iterdir()] == ["x"]


@in_bubblewrap
async def test_the_temporary_folder_is_tmp_if_no_other_folder_is_below_it(sandbox: Sandbox) -> None:
    top = mount_attacks.new_root("/var/tmp")
    try:
        places = Places(*(top / name for name in ("chat", "home", "tmp")))
        for path in (places.folder, places.home, places.tmp):
            path.mkdir()
        hand_over((places.folder, places.home, places.tmp))
        done = await run(sandbox, places.command('echo "$TMPDIR $TMP $TEMP"; echo x >/tmp/x'))
        assert done.out == b"/tmp /tmp /tmp\n"
        assert [path.name for path in places.tmp.iterdir()] == ["x"]
    finally:
        shutil.rmtree(top)


async def test_a_readable_folder_in_a_writable_one_is_refused(sandbox: Sandbox, places: Places) -> None:
    """The command could replace it by a link, which the next one would read through."""
    inner = places.folder / "skills"
    inner.mkdir()
    with pytest.raises(SandboxError, match="lies in another one that the command can write"):
        await run(sandbox, places.command("true", readable=(inner,)))


@dataclass(frozen=True)
class Replaced:
    """A sandbox in which another chat replaces a folder by a link just before the command starts."""

    inner: Sandbox
    folder: Path
    target: Path
    name: str = "replaced"

    def temporary(self, command: SandboxCommand) -> str:
        return self.inner.temporary(command)

    def prepare(self, command: SandboxCommand) -> Launch:
        launch = self.inner.prepare(command)
        self.folder.rename(self.folder.with_name("moved"))
        self.folder.symlink_to(self.target)
        return launch


@pytest.mark.parametrize("is_around", [False, True], ids=["the folder", "a folder around it"])
async def test_a_link_planted_while_a_command_starts_leads_nowhere(
    sandbox: Sandbox, places: Places, tmp_path: Path, is_around: bool
) -> None:
    if sandbox.name == "bubblewrap" and not takes_descriptors(find_helper("bwrap", "bubblewrap")):
        pytest.skip("this bubblewrap cannot mount descriptors")
    project = tmp_path / "around" / "project"
    victim = tmp_path / "victim"
    for path in (project, victim / "project"):
        path.mkdir(parents=True)
    hand_over((places.folder, project, victim, victim / "project"))
    replaced, target = (project.parent, victim) if is_around else (project, victim / "project")
    raced = Replaced(sandbox, replaced, target)
    try:
        await run(raced, replace(places.command(f"touch {project}/made"), more_writable=(project,)))
    except SandboxError as error:
        assert "goes through a link" in str(error)
    assert replaced.is_symlink()
    assert [*(victim / "project").iterdir()] == []


@in_bubblewrap
async def test_a_command_cannot_lower_its_score_for_the_case_that_memory_runs_out(
    sandbox: Sandbox, places: Places
) -> None:
    file = "/proc/self/oom_score_adj"
    text = f"for score in 0 999 -1000; do echo $score >{file}; done; cat {file}"
    done = await run(sandbox, places.command(text))
    assert done.out == b"1000\n"


# -- generated layouts


def _run_as_ordinary_user(seed: int, count: int) -> dict[str, dict[str, Any]]:
    site = Path(msgspec.__file__).parents[1]
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{Path(talaria.__file__).parents[1]}:{site}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    drop = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "/usr/bin/python3"]
    if subprocess.run([*drop, "-c", "import msgspec._core"], check=False, env=environ).returncode:
        pytest.skip("an ordinary user cannot run a Python that has msgspec")
    order = [*drop, mount_attacks.__file__, str(seed), str(count)]
    done = subprocess.run(order, check=True, env=environ, stdout=subprocess.PIPE)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


COUNTS = [
    pytest.param(24, id="short"),
    pytest.param(1000, id="1,000", marks=[pytest.mark.long, pytest.mark.timeout(1200)]),
]


@in_bubblewrap
@pytest.mark.parametrize("count", COUNTS)
async def test_no_layout_of_folders_lets_planted_links_out(sandbox: Sandbox, count: int) -> None:
    found = await mount_attacks.attack_many(7, count)
    assert found["escapes"] == {}
    assert found["outcomes"]["attacked"] > count / 2


@in_bubblewrap
@pytest.mark.parametrize("count", COUNTS)
def test_no_layout_of_folders_of_an_ordinary_user_lets_planted_links_out(
    sandbox: Sandbox, count: int
) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("the tests do not run as root, or there is no setpriv")
    found = _run_as_ordinary_user(11, count)
    assert found["escapes"] == {}
    assert found["outcomes"]["attacked"] > count / 2
