"""The wheel as pip, uv and pipx install it, with packages from the index. `./dev build --check` runs this."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from cli.installed import ROOT, InstalledProgram, build, try_out

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
MISSING = (
    "from talaria.models.local.runtime import missing_requirement as m; print(m().hint if m() else 'nothing')"
)


class Installer(NamedTuple):
    """Command lines for a shell. `$WHEEL` is the wheel, with an extra in brackets or without."""

    install: str
    upgrade: str
    uninstall: str
    folder: str = ".local/bin"


PIP = Installer(
    install='[ -d venv ] || "$PYTHON" -m venv venv && venv/bin/pip install "$WHEEL"',
    upgrade='venv/bin/pip install --force-reinstall --no-deps "$WHEEL"',
    uninstall="venv/bin/pip uninstall --yes talaria-gateway",
    folder="venv/bin",
)
INSTALLERS = {
    "pip": PIP,
    "uv": Installer(
        install='uv tool install "$WHEEL"',
        upgrade='uv tool install --reinstall-package talaria-gateway "$WHEEL"',
        uninstall="uv tool uninstall talaria-gateway",
    ),
    "pipx": Installer(
        install='pipx install "$WHEEL"',
        upgrade='pipx install --force "$WHEEL"',
        uninstall="pipx uninstall talaria-gateway",
    ),
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("dist"), "wheel")[0]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with uv and pipx."""
    folder = tmp_path_factory.mktemp("tools")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    subprocess.run([folder / "venv" / "bin" / "pip", "install", "--quiet", "uv", "pipx"], check=True)
    (folder / "bin").mkdir()
    for name in ("uv", "pipx"):
        (folder / "bin" / name).symlink_to(folder / "venv" / "bin" / name)
    return folder / "bin"


def shell(line: str, user: Path, environ: Mapping[str, str]) -> str:
    done = subprocess.run(
        ["sh", "-c", line], env=environ, cwd=user, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.parametrize("name", list(INSTALLERS))
def test_a_wheel_is_installed_upgraded_and_removed(
    name: str, wheel: Path, tools: Path, tmp_path: Path, model_url: str
) -> None:
    installer, user = INSTALLERS[name], tmp_path / "user"
    user.mkdir()
    folder = user / installer.folder
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "TALARIA_"))}
    path = f"{folder}:{tools}:{os.environ['PATH']}"
    environ = {**inherited, "HOME": str(user), "PATH": path, "WHEEL": str(wheel), "PYTHON": sys.executable}
    shell(installer.install, user, environ)
    program = InstalledProgram(folder, user)
    try_out(program, wheel.name.split("-")[1], model_url)
    python = (folder / "talaria").resolve().parent / "python"

    hint = shell(f'{python} -c "{MISSING}"', user, environ)
    assert "Install it with `" in hint, "without the extra there is no runtime"
    shell(hint.split("`")[1], user, environ)
    assert shell(f'{python} -c "{MISSING}"', user, environ) == "nothing\n", "the hint was right"

    shell(installer.upgrade, user, {**environ, "WHEEL": f"{wheel}[local]"})
    shell(f"{python} -m pip --version && {python} -c 'import xllamacpp'", user, environ)
    assert "hello again" in program.run("ask", "hello again"), "the home was kept"

    shell(installer.uninstall, user, environ)
    assert not (folder / "talaria").exists()
    assert (user / ".talaria" / "talaria.db").is_file()


@pytest.mark.parametrize("python", ["/usr/bin/python3", "python3.12", "python3.13", "python3.14"])
def test_other_pythons_run_it(python: str, wheel: Path, tmp_path: Path, model_url: str) -> None:
    if subprocess.run(["sh", "-c", f"{python} --version"], capture_output=True, check=False).returncode:
        pytest.skip(f"{python} is not installed")
    environ = {**os.environ, "WHEEL": str(wheel), "PYTHON": python}
    shell(PIP.install, tmp_path, environ)
    try_out(InstalledProgram(tmp_path / PIP.folder, tmp_path / "user"), wheel.name.split("-")[1], model_url)
