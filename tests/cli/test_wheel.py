"""The wheel and the sdist: their files, that every build is the same, and that an installed wheel works."""

from __future__ import annotations

import email
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from cli.installed import DEADLINE, ROOT, InstalledProgram, build, try_out
from support.repositories import git, needs_git

pytestmark = needs_git
PACKAGE = ROOT / "src" / "talaria"
IN_SDIST = ["CHANGELOG.md", "LICENSE", "README.md", "hatch_build.py", "pyproject.toml", "src"]
ADDED_TO_SDIST = [".gitignore", "PKG-INFO"]
VERSION = "7.8.9"


class Built(NamedTuple):
    source: Path
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A clone of this source with a tag and the remains of a run, and both archives of it."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    source.mkdir()
    for name in [*IN_SDIST, ".gitignore"]:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    for command in (["init"], ["add", "."], ["commit", "--message", "all"], ["tag", f"v{VERSION}"]):
        git(source, *command)
    for remains in ("tests/test_a.py", "dist/a.whl", "src/talaria/core/__pycache__/a.pyc", ".venv/a.py"):
        (source / remains).parent.mkdir(parents=True, exist_ok=True)
        (source / remains).touch()
    return Built(source, *build(source, folder / "dist", "sdist", "wheel"))


def test_the_wheel_has_every_file_of_the_package_and_no_others(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        assert wheel.read("talaria/VERSION").decode() == f"{VERSION}\n"
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert names == {f"talaria/{path.relative_to(PACKAGE)}" for path in files} | {"talaria/VERSION"}
    for kind in ("channels/web/assets/index.html", "store/sqlite/migrations/0001_initial.sql", "py.typed"):
        assert f"talaria/{kind}" in names


def test_its_metadata_are_those_of_the_project(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        folder = f"talaria_gateway-{VERSION}.dist-info"
        metadata = email.message_from_bytes(wheel.read(f"{folder}/METADATA"))
        assert wheel.read(f"{folder}/entry_points.txt").decode().endswith("talaria = talaria.cli.main:run\n")
        assert wheel.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (metadata["Name"], metadata["Version"]) == (project["name"], VERSION)
    assert metadata["Requires-Python"] == project["requires-python"]
    assert metadata["License-Expression"] == "MIT"
    extras = ["dev", "fuzz", "local", "mcp", "openclaw", "postgres", "web"]
    assert metadata.get_all("Provides-Extra") == extras
    runtime = project["optional-dependencies"]["local"][0]
    assert f"{runtime}; extra == 'local'" in metadata.get_all("Requires-Dist", [])
    assert metadata.get_payload(decode=True) == (ROOT / "README.md").read_bytes()


def test_the_sdist_has_only_what_a_build_needs(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        tops = {name.split("/")[1] for name in sdist.getnames()}
    assert sorted(tops) == sorted([*IN_SDIST, *ADDED_TO_SDIST])


def test_a_clone_and_its_sdist_build_the_same_bytes(built: Built, tmp_path: Path) -> None:
    # The parameter `filter` of `extractall` is newer than Python 3.11.2.
    subprocess.run(["tar", "-xzf", built.sdist, "-C", tmp_path], timeout=DEADLINE, check=True)
    again = build(tmp_path / f"talaria_gateway-{VERSION}", tmp_path / "dist", "sdist", "wheel")
    assert [path.name for path in again] == [built.sdist.name, built.wheel.name]
    assert again[0].read_bytes() == built.sdist.read_bytes()
    assert again[1].read_bytes() == built.wheel.read_bytes()


def test_a_tree_without_a_repository_can_be_built(built: Built, tmp_path: Path) -> None:
    shutil.copytree(built.source, tmp_path / "tree", ignore=shutil.ignore_patterns(".git"))
    command = [sys.executable, "-m", "hatchling", "version"]
    done = subprocess.run(command, cwd=tmp_path / "tree", capture_output=True, timeout=DEADLINE, check=True)
    assert done.stdout.decode() == "0.2.0.dev0+unknown\n"


def another_python() -> str:
    """Return the system's Python if it can load the same extension modules, else this one.

    Systems keep early patch releases. Python 3.11.2 of Debian 12 has faults that are mended in 3.11.7.
    """
    system = "/usr/bin/python3"
    code = "import sys, sysconfig as s; print(sys.version_info[:2], s.get_config_var('SOABI'))"
    try:
        ours, theirs = (
            subprocess.run([python, "-c", code], capture_output=True, timeout=DEADLINE, check=True).stdout
            for python in (sys.executable, system)
        )
    except (OSError, subprocess.CalledProcessError):
        return sys.executable
    return system if ours == theirs else sys.executable


def test_the_program_of_an_installed_wheel_works(built: Built, tmp_path: Path, model_url: str) -> None:
    """An empty environment gets the wheel by pip, and sees the dependencies of this environment."""
    target = tmp_path / "venv"
    command = [another_python(), "-m", "venv", "--without-pip", str(target)]
    subprocess.run(command, capture_output=True, timeout=DEADLINE, check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(target / "bin" / "python"), "install"]
    quickly = ["--no-deps", "--no-index", "--no-compile", "--quiet", str(built.wheel)]
    subprocess.run([*pip, *quickly], capture_output=True, timeout=DEADLINE, check=True)
    packages = next(target.glob("lib/python*/site-packages"))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    program = InstalledProgram(target / "bin", tmp_path / "user")
    try_out(program, VERSION, model_url)
    said = program.run("chta", path="/usr/bin:/bin", status=2)
    assert f"Try: {target / 'bin' / 'talaria'} --help" in said, "its folder need not be on the path"
