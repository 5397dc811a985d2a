"""Where the clients and the MCP servers of tests are installed, and how. Nothing of it is inside the clone or
its `.venv`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

PINS = Path(__file__).parent / "pins.toml"
SCRIPTS = Path(__file__).parent / "scripts"
NODE_NEEDED = 20


def folder() -> Path:
    """Return the folder of the installed clients: $TALARIA_CLIENTS, or one in the user's cache."""
    if given := os.environ.get("TALARIA_CLIENTS"):
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "talaria" / "clients"


def read_pins() -> tuple[Mapping[str, Mapping[str, str]], Mapping[str, Mapping[str, str]]]:
    """Return the packages of each Python environment, and of each folder of node."""
    pins = tomllib.loads(PINS.read_text())
    return pins["python"], pins["node"]


def python_of(environment: str) -> Path | None:
    """Return the interpreter of an environment that is installed as pinned, or None."""
    python, _ = read_pins()
    is_there = _is_marked(folder() / environment, python[environment])
    return folder() / environment / "bin" / "python" if is_there else None


def node(place: str = "node") -> str | None:
    """Return the command `node`, if it is new enough and the packages of a folder are installed as pinned."""
    _, packages = read_pins()
    return _node_command() if _is_marked(folder() / place, packages[place]) else None


def _node_command() -> str | None:
    command = shutil.which("node")
    if command is None:
        return None
    said = subprocess.run([command, "--version"], capture_output=True, text=True, check=False).stdout
    major = said.removeprefix("v").partition(".")[0]
    return command if major.isdecimal() and int(major) >= NODE_NEEDED else None


def install(names: Sequence[str] = ()) -> int:
    """Install what is missing, or what is missing of the environments whose names contain one of `names`.
    Returns the exit status."""

    def is_wanted(environment: str) -> bool:
        return not names or any(name in environment for name in names)

    python, packages = read_pins()
    status = 0
    for name, wanted in python.items():
        if is_wanted(name) and python_of(name) is None:
            status |= _install_python(name, wanted)
    for name, wanted in packages.items():
        if is_wanted(name) and node(name) is None:
            status |= _install_node(name, wanted)
    return status


def _install_python(name: str, wanted: Mapping[str, str]) -> int:
    place = folder() / name
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    packages = [f"{package}=={version}" for package, version in wanted.items()]
    done = _run(f"{name}: environment", [sys.executable, "-m", "venv", str(place)]) and _run(
        f"{name}: {', '.join(wanted)}", [*pip, *packages]
    )
    return _mark(place, wanted) if done else 1


def _install_node(name: str, packages: Mapping[str, str]) -> int:
    npm = shutil.which("npm")
    if _node_command() is None or npm is None:
        print(
            f"node: not installed, or older than {NODE_NEEDED}. The clients of node are left out.\n"
            "  Debian, Ubuntu: apt-get install nodejs npm; macOS: brew install node; "
            "then ./dev clients --install"
        )
        return 1
    place = folder() / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    manifest = {"private": True, "dependencies": dict(packages)}
    (place / "package.json").write_text(json.dumps(manifest))
    command = [npm, "install", "--prefix", str(place), "--no-audit", "--no-fund", "--no-package-lock"]
    command.append("--ignore-scripts")  # none is needed, and that of openclaw refuses an older node
    return _mark(place, packages) if _run(f"{name}: {', '.join(packages)}", command) else 1


def _run(what: str, command: list[str]) -> bool:
    """Run a command. Shows on one line what it is doing and for how long."""
    began, shown = time.monotonic(), ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if sys.stdout.isatty():
                shown = f"{what} … {time.monotonic() - began:.0f} s  {line.strip()[:50]}"
                print(f"\r\033[K{shown[:100]}", end="", flush=True)
    end = "\r\033[K" if shown else ""
    if process.returncode == 0:
        print(f"{end}{what}: installed in {time.monotonic() - began:.0f} s", flush=True)
        return True
    print(f"{end}{what}: failed\n{''.join(lines[-12:])}")
    return False


def _mark(place: Path, wanted: Mapping[str, str]) -> int:
    (place / ".installed").write_text(json.dumps(dict(wanted)))
    return 0


def _is_marked(place: Path, wanted: Mapping[str, str]) -> bool:
    try:
        return bool(json.loads((place / ".installed").read_text()) == wanted)
    except (OSError, ValueError):
        return False
