"""The `dev` script in a clone of its own, with a Python that only writes down what it was asked to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Dev = Callable[..., subprocess.CompletedProcess[str]]

# `-m venv` makes a folder with the same Python in it; every tool in there is that Python too.
PYTHON = """#!/bin/sh
case "$*" in
"-c import importlib"*) grep -q "$3" "$LOG" ;;
"-m venv"*) for last; do :; done; mkdir -p "$last/bin"
    for tool in python talaria ruff mypy lint-imports; do cp "$0" "$last/bin/$tool"; done ;;
"-m pip install"*xllamacpp*) [ ! -e "$NO_WHEEL" ] || exit 1
    for last; do :; done; echo "install $last" >>"$LOG"; sleep 0.2 ;;
"-m pip install"*) sleep 0.2; for last; do :; done; echo "install $last" >>"$LOG" ;;
*/tests/support/programs.py) echo "$MISSING" ;;
"check") [ ! -e "$BROKEN" ] ;;
"-m pytest"*) echo "pytest" >>"$LOG" ;;
esac
"""


@pytest.fixture
def dev(tmp_path: Path) -> Dev:
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in ("dev", "pyproject.toml"):
        shutil.copy(ROOT / name, clone / name)
    python = tmp_path / "python3"
    python.write_text(PYTHON)
    python.chmod(0o755)
    environ = {
        **os.environ,
        "PYTHON": str(python),
        "LOG": str(tmp_path / "log"),
        "BROKEN": str(tmp_path / "broken"),
        "NO_WHEEL": str(tmp_path / "no wheel"),
        "MISSING": "",
    }

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        script = [str(next(tmp_path.glob("*/dev"))), *arguments]
        return subprocess.run(script, env={**environ, **more}, capture_output=True, text=True, check=False)

    return run


def installed(tmp_path: Path) -> list[str]:
    log = tmp_path / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.rpartition("/")[2] for line in lines if line.startswith("install")]


def test_it_installs_what_is_missing_and_nothing_twice(dev: Dev, tmp_path: Path) -> None:
    assert "installing into .venv; this happens once" in dev("run").stderr
    assert dev("run").stderr == ""
    assert installed(tmp_path) == ["clone"]
    assert dev("pytest").returncode == 0
    assert dev("run").stderr == dev("pytest").stderr == ""
    assert installed(tmp_path) == ["clone", "clone[dev]"]
    with (tmp_path / "clone" / "pyproject.toml").open("a") as file:
        file.write("# another\n")
    dev("chat")
    assert installed(tmp_path) == ["clone", "clone[dev]", "clone"]
    (tmp_path / "clone").rename(tmp_path / "moved")
    dev("chat")
    assert installed(tmp_path)[3:] == ["moved"]
    assert not list(tmp_path.glob("*/.venv.lock"))


def test_without_a_wheel_of_the_runtime_it_goes_on(dev: Dev, tmp_path: Path) -> None:
    (tmp_path / "no wheel").touch()
    done = dev("run")
    assert done.returncode == 0
    assert "cannot be installed here; going on without it" in done.stderr
    assert installed(tmp_path) == ["clone"]
    assert dev("run").stderr == "", "and is not tried for at every start"


def test_two_at_once_install_once(dev: Dev, tmp_path: Path) -> None:
    script = f"{tmp_path / 'clone' / 'dev'} run & {tmp_path / 'clone' / 'dev'} run & wait"
    environ = {
        **os.environ,
        "PYTHON": str(tmp_path / "python3"),
        "LOG": str(tmp_path / "log"),
        "BROKEN": "",
        "NO_WHEEL": "",
    }
    subprocess.run(["sh", "-c", script], env=environ, capture_output=True, check=True)
    assert installed(tmp_path) == ["clone"]


def test_the_lock_of_a_dead_process_holds_nobody_up(dev: Dev, tmp_path: Path) -> None:
    lock = tmp_path / "clone" / ".venv.lock"
    lock.mkdir()
    with subprocess.Popen(["true"]) as dead:
        (lock / "pid").write_text(str(dead.pid))
    assert dev("run").returncode == 0
    assert installed(tmp_path) == ["clone"]


def test_a_lint_that_fails_ends_the_test(dev: Dev, tmp_path: Path) -> None:
    assert dev("test").returncode == 0
    (tmp_path / "broken").touch()
    assert dev("test").returncode == 1
    assert (tmp_path / "log").read_text().splitlines().count("pytest") == 1


@pytest.mark.parametrize("user", ["0", "1000"])
def test_only_root_installs_the_packages_that_tests_need(user: str, dev: Dev, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, line in (("id", f"echo {user}"), ("apt-get", 'echo "apt-get $*" >>"$LOG"')):
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    assert "Debian packages" not in dev("test", PATH=path, MISSING="").stderr
    done = dev("test", PATH=path, MISSING="tmux bubblewrap")
    log = (tmp_path / "log").read_text().splitlines()
    install = "apt-get install -y -qq --no-install-recommends tmux bubblewrap"
    is_root = user == "0"
    assert done.returncode == 0
    assert log.count(install) == is_root
    assert ("installing Debian packages that some tests need: tmux bubblewrap" in done.stderr) == is_root
    (programs / "apt-get").write_text("#!/bin/sh\nexit 100\n")
    assert dev("test", PATH=path, MISSING="tmux").returncode == 0, "and the tests run without them"


def test_a_python_that_cannot_be_used_is_named(dev: Dev, tmp_path: Path) -> None:
    done = dev("run", PYTHON="/no/such/python")
    assert done.returncode == 1
    assert "needs Python 3.11 or newer, and /no/such/python is not that" in done.stderr
    assert "PYTHON=/path/to/python3 ./dev run" in done.stderr
    assert not list(tmp_path.glob("*/.venv*"))


def test_help_installs_nothing(dev: Dev, tmp_path: Path) -> None:
    for word in ((), ("help",), ("--help",)):
        assert "./dev run" in dev(*word).stdout
    assert installed(tmp_path) == []


def test_help_lists_what_users_do_before_what_developers_do(dev: Dev) -> None:
    said = dev("--help").stdout
    for verb in ("run", "chat", "setup", "open", "connect", "service", "logs", "backup"):
        assert 0 <= said.index(f"./dev {verb} ") < said.index("./dev test")
    assert "40,000 interleavings" in said


@pytest.mark.parametrize(
    ("name", "package"),
    [("postgres", "psycopg[binary]>=3.2"), ("web", "lxml_html_clean>=0.4"), ("mcp", "jsonschema>=4.20")],
)
def test_an_extra_is_installed_once(dev: Dev, tmp_path: Path, name: str, package: str) -> None:
    assert dev("extra", name).returncode == 0
    assert installed(tmp_path)[1].startswith(f"install {package}")
    (tmp_path / "log").write_text("psycopg trafilatura mcp")
    assert dev("extra", name).stderr == ""
    assert dev("mcp", "list").returncode == 0
    assert installed(tmp_path) == []


def test_an_unknown_extra_is_named(dev: Dev) -> None:
    done = dev("extra", "x.*")
    assert done.returncode == 1
    assert "there is no extra 'x.*'" in done.stderr
    assert "local, mcp, openclaw, postgres, web" in done.stderr
