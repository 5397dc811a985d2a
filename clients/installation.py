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
_PROGRAMS = (b"#!", b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")  # scripts, ELF and Mach-O


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
    return None if missing(environment) else folder() / environment / "bin" / "python"


def node(place: str = "node") -> str | None:
    """Return the command `node`, if it is new enough and the packages of a folder are installed as pinned."""
    return None if missing(place) else _node_command()


def missing(environment: str) -> str:
    """Return why an environment, or a folder of node, cannot be used. Empty if it is installed as pinned."""
    python, packages = read_pins()
    place = folder() / environment
    wanted = python.get(environment) or packages[environment]
    if not _is_marked(place, wanted):
        return "not installed"
    if environment in packages:
        if _node_command() is None:
            return f"node is not installed, or older than {NODE_NEEDED}"
        return next(filter(None, (_half(place / "node_modules", name) for name in wanted)), "")
    return ""


def _half(modules: Path, name: str) -> str:
    """Return why a package of node is installed in part, or an empty string.

    npm reports success if the script of a package did not run, which leaves a placeholder where its program
    should be, and if a package for this platform could not be downloaded.
    """
    try:
        manifest = json.loads((modules / name / "package.json").read_text())
        programs = manifest.get("bin", {})
        for program in [programs] if isinstance(programs, str) else programs.values():
            with (modules / name / program).open("rb") as opened:
                if not opened.read(4).startswith(_PROGRAMS):
                    return f"half installed: {name}/{program} is a placeholder, not a program"
    except (OSError, ValueError) as error:
        return f"half installed: {name}: {error}"
    ours = [each for each in manifest.get("optionalDependencies", {}) if f"-{sys.platform}-" in each]
    if ours and not any((modules / each / "package.json").exists() for each in ours):
        return f"half installed: {name} has no package for this platform ({', '.join(ours)})"
    return ""


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
        if is_wanted(name) and missing(name):
            status |= _install_python(name, wanted)
    for name, wanted in packages.items():
        if is_wanted(name) and missing(name):
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
    prefix = ["--prefix", str(place)]
    options = ["--no-audit", "--no-fund", "--no-package-lock", "--include=optional"]
    # Few scripts are needed, and that of openclaw refuses an older node.
    if not _run(f"{name}: {', '.join(packages)}", [npm, "install", *prefix, *options, "--ignore-scripts"]):
        return 1
    modules = place / "node_modules"
    if half := [package for package in packages if _half(modules, package)]:
        rebuild = [npm, "rebuild", *prefix, "--ignore-scripts=false"]
        _run(f"{name}: scripts of {', '.join(half)}", [*rebuild, *half])
    for package in half:
        if why := _half(modules, package):
            print(f"{name}: {why}")
            return 1
    return _mark(place, packages)


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
