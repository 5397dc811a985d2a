"""Inside a container under the default seccomp profile of Podman, where bubblewrap cannot run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import talaria

_ROOT = Path(talaria.__file__).parents[2]
_USER = 10001  # of the image
_PROVE = """\
import asyncio, json, sys
from pathlib import Path
from talaria.workspace.sandbox.choice import choose
found = {}
for kind in ("auto", "landlock", "bubblewrap"):
    choice = asyncio.run(choose(kind, Path("/data")))
    found[kind] = [choice.sandbox.name if choice.sandbox else None, choice.reason]
found["seccomp"] = "Seccomp:\\t2" in Path("/proc/self/status").read_text()
print(json.dumps(found))
"""
_ATTACK = """\
import asyncio, json
from trial.attacks.escapes import family_names
from trial.attacks.sandbox import SandboxRun, Setting
from trial.report import Progress
run = SandboxRun(len(family_names()), Progress(is_quiet=True), settings=(Setting("landlock", is_root=False),))
figures = asyncio.run(run.run())
missed = [each.name for each in figures if not each.is_reached]
print(json.dumps({"missed": missed, "evidence": run.evidence}))
"""


@pytest.fixture
def container(tmp_path: Path) -> list[str]:
    """The words that run a program in a container whose programs are this machine's."""
    if os.geteuid() != 0 or shutil.which("podman") is None or shutil.which("runc") is None:
        pytest.skip("needs root, podman and runc")
    if not Path("/usr/bin/python3").exists() or sys.version_info[:2] != (3, 11):
        pytest.skip("needs the packages of /usr/bin/python3")
    root = tmp_path / "root"
    for name in ("usr", "etc", "tmp", "proc", "sys", "dev", "data", "run", "var", "opt"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    for name in ("passwd", "group", "ld.so.cache"):
        shutil.copy(f"/etc/{name}", root / "etc")
    os.chown(root / "data", _USER, _USER)
    words = ["podman", "--runtime", "runc", "--cgroup-manager=cgroupfs", "run", "--rm", "--network=none"]
    for limit in ("nofile=1024:1024", "nproc=4096:4096"):
        words += ["--ulimit", limit]
    site = Path(msgspec.__file__).parents[1]
    for source, target in (("/usr", "/usr"), (_ROOT, "/opt/tree"), (site, "/opt/site")):
        words += ["--volume", f"{source}:{target}:ro"]
    for variable in (
        "PYTHONPATH=/opt/tree/src:/opt/tree:/opt/site",
        "PYTHONDONTWRITEBYTECODE=1",
        "PATH=/usr/bin:/bin",
    ):
        words += ["--env", variable]
    done = subprocess.run(
        [*words, "--rootfs", str(root), "true"], check=False, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"podman cannot run here: {done.stderr.strip()[-200:]}")
    return [*words, f"--user={_USER}", "--rootfs", str(root), "python3", "-c"]


def test_landlock_holds_in_a_container(container: list[str]) -> None:
    done = subprocess.run([*container, _PROVE], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["seccomp"]
    if "Landlock is" in found["landlock"][1]:
        pytest.skip(found["landlock"][1])
    assert found["auto"][0] == found["landlock"][0] == "landlock", found
    assert found["bubblewrap"][0] is None


@pytest.mark.long
def test_hostile_commands_reach_nothing_outside_in_a_container(container: list[str]) -> None:
    done = subprocess.run([*container, _ATTACK], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {"missed": [], "evidence": []}
