"""The exact credentials and mounts of a command, for each sandbox and each kind of gateway user.

A line of /proc/PID/status that changes must be changed here too, so that someone decides about it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import talaria
from talaria.workspace.sandbox.command import system_paths
from workspace.sandbox import credentials_probe, mount_attacks

UID = 12345
GROUPS = "4 24 27"  # the gateway's, so that a sandbox that keeps them is noticed
ROOT, ORDINARY = ("--reuid=0",), (f"--reuid={UID}", f"--regid={UID}")
NONE, READ_SEARCH = "0" * 16, f"{4:016x}"

# "chat" is the user of the chat, and "gateway" the value that the gateway itself has.
STATUS: dict[tuple[str, tuple[str, ...]], dict[str, str]] = {
    ("bubblewrap", ROOT): {
        "Uid": "chat", "Gid": "chat", "Groups": "", "CapInh": NONE, "CapPrm": NONE, "CapEff": NONE,
        "CapBnd": "gateway", "CapAmb": NONE, "NoNewPrivs": "1", "Seccomp": "2",
    },
    ("landlock", ROOT): {
        # Landlock limits what a command reads with CAP_DAC_READ_SEARCH, which it needs below closed folders.
        "Uid": "chat", "Gid": "chat", "Groups": "", "CapInh": READ_SEARCH, "CapPrm": READ_SEARCH,
        "CapEff": READ_SEARCH, "CapBnd": "gateway", "CapAmb": READ_SEARCH, "NoNewPrivs": "1", "Seccomp": "2",
    },
    ("none", ROOT): {
        "Uid": "gateway", "Gid": "gateway", "Groups": GROUPS, "CapInh": NONE, "CapPrm": "gateway",
        "CapEff": "gateway", "CapBnd": "gateway", "CapAmb": NONE, "NoNewPrivs": "1", "Seccomp": "0",
    },
    # An ordinary user cannot drop groups.
    ("bubblewrap", ORDINARY): {
        "Uid": "gateway", "Gid": "gateway", "Groups": GROUPS, "CapInh": NONE, "CapPrm": NONE, "CapEff": NONE,
        "CapBnd": NONE, "CapAmb": NONE, "NoNewPrivs": "1", "Seccomp": "2",
    },
    ("landlock", ORDINARY): {
        "Uid": "gateway", "Gid": "gateway", "Groups": GROUPS, "CapInh": NONE, "CapPrm": NONE, "CapEff": NONE,
        "CapBnd": "gateway", "CapAmb": NONE, "NoNewPrivs": "1", "Seccomp": "2",
    },
    ("none", ORDINARY): {
        "Uid": "gateway", "Gid": "gateway", "Groups": GROUPS, "CapInh": NONE, "CapPrm": NONE, "CapEff": NONE,
        "CapBnd": "gateway", "CapAmb": NONE, "NoNewPrivs": "1", "Seccomp": "0",
    },
}  # fmt: skip

# Without the system's folders, all of which are read-only, and what bubblewrap hides below /proc.
MOUNTS = {
    "/": "ro", "/proc": "ro", "/dev": "ro", "/dev/null": "rw", "/dev/zero": "rw", "/dev/full": "rw",
    "/dev/random": "rw", "/dev/urandom": "rw", "/dev/tty": "rw", "/dev/pts": "rw", "/dev/shm": "rw",
    "/etc/passwd": "ro", "/etc/group": "ro", "/run/variables": "ro",
    "BASE/chat": "rw", "BASE/home": "rw", "/tmp": "rw",
}  # fmt: skip


def _probe(base: Path, options: tuple[str, ...]) -> dict[str, Any]:
    """Run the probe as a gateway with this user and these groups."""
    python = sys.executable if options == ROOT else "/usr/bin/python3"
    words = ["setpriv", *options, f"--groups={GROUPS.replace(' ', ',')}", python]
    site = Path(msgspec.__file__).parents[1]
    path = f"{Path(talaria.__file__).parents[1]}:{site}"
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    if subprocess.run([*words, "-c", "import msgspec._core"], check=False, env=environ).returncode:
        pytest.skip("this user cannot run a Python that has msgspec")
    words += [credentials_probe.__file__, str(base)]
    done = subprocess.run(words, check=True, env=environ, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(params=[ROOT, ORDINARY], ids=["root", "ordinary user"])
def options(request: pytest.FixtureRequest) -> tuple[str, ...]:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("the tests do not run as root, or there is no setpriv")
    found: tuple[str, ...] = request.param
    return found


@pytest.fixture
def base(options: tuple[str, ...]) -> Iterator[Path]:
    """A folder of the gateway's user that is not below /tmp, as a home usually is."""
    found = mount_attacks.new_root("/var/tmp")
    if options == ORDINARY:
        os.chown(found, UID, UID)
    yield found
    shutil.rmtree(found)


def test_the_credentials_and_mounts_of_a_command_are_exactly_these(
    options: tuple[str, ...], base: Path
) -> None:
    found = _probe(base, options)
    gateway, chat = found["gateway"]["status"], found["gateway"]["chat"]
    assert gateway["Groups"] == GROUPS
    for name in ("bubblewrap", "landlock", "none"):
        if error := found[name].get("error"):
            assert "not installed" in error or "Landlock is" in error, error
            continue
        expected = {
            field: gateway[field]
            if value == "gateway"
            else " ".join([str(chat)] * 4)
            if value == "chat"
            else value
            for field, value in STATUS[name, options].items()
        }
        assert found[name]["status"] == expected, name
        if name != "bubblewrap":
            assert found[name]["mounts"] is None, f"{name} has its own mounts"
            continue
        system = {
            str(path): "ro" for path in system_paths(()) if path.parent != Path("/") or not path.is_symlink()
        }
        own = {path.replace("BASE", str(base)): mode for path, mode in MOUNTS.items()}
        machines = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
        seen = {
            path: mode
            for path, mode in found[name]["mounts"].items()
            if path in (*system, *own) or (not path.startswith("/proc/") and path not in machines)
        }
        assert {path: mode for path, mode in seen.items() if path not in system} == own
        assert {path: mode for path, mode in seen.items() if path in system} == system
