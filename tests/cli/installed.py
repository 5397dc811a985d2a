"""Talaria as somebody has it who installed a wheel: `talaria` on the path, and no clone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from support.programs import find_program
from talaria.channels.web.pages import Assets

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "src" / "talaria" / "channels" / "web" / "assets"
DEADLINE = 100  # for programs that are compiled as they are run for the first time
NO_NETWORK = [
    "warn     network   Commands run without a network: bubblewrap is not installed. "
    "Install the package bubblewrap."
]
_ENDINGS = {"sdist": ".tar.gz", "wheel": ".whl"}


def build(source: Path, target: Path, *kinds: str) -> list[Path]:
    """Build a source tree into a folder, as `./dev build` does. Return the files in the order of `kinds`."""
    options = [word for kind in kinds for word in ("-t", kind)]
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target), *options]
    environ = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run(command, cwd=source, env=environ, capture_output=True, timeout=DEADLINE, check=True)
    return [next(target.glob(f"*{_ENDINGS[kind]}")) for kind in kinds]


class InstalledProgram:
    """The program that was installed into `folder`, run by a user who had nothing of Talaria before."""

    def __init__(self, folder: Path, user: Path) -> None:
        self._program = folder / "talaria"
        self._user = user
        self._environ = {"HOME": str(user), "PATH": f"{folder}:/usr/bin:/bin", "LANG": "C.UTF-8"}
        user.mkdir(exist_ok=True)

    def run(self, *arguments: str, path: str | None = None, status: int = 0) -> str:
        """Run a command to its end and return what it prints. It must end with the status."""
        done = subprocess.run(
            [self._program, *arguments],
            env=self._environ | ({"PATH": path} if path is not None else {}),
            cwd=self._user,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == status, (arguments, done.stdout)
        return done.stdout

    def configure(self, model_url: str) -> None:
        """Use a model server with the default home."""
        home = self._user / ".talaria"
        home.mkdir(mode=0o700)
        model = '[model]\nprovider = "scripted"\nname = "m"\n'
        (home / "config.toml").write_text(f'[providers.scripted]\nbase_url = "{model_url}"\n{model}')

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Run a gateway. Gives the first line that it prints. At the end it must stop when it is asked to."""
        with (
            (self._user / "serve.log").open("w") as log,
            subprocess.Popen(
                [self._program, "serve", "--port", "0"],
                env=self._environ,
                cwd=self._user,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            ) as gateway,
        ):
            try:
                assert gateway.stdout is not None
                yield gateway.stdout.readline() or (self._user / "serve.log").read_text()
                gateway.terminate()
                assert gateway.wait(DEADLINE) == 0
            finally:
                gateway.kill()


def try_out(program: InstalledProgram, version: str, model_url: str) -> None:
    """Do what a new user does: ask for the version, start, write, open the page, let doctor look."""
    assert program.run("--version") == f"talaria {version}\n"
    assert "Try: talaria --help" in program.run("chta", status=2)
    program.configure(model_url)
    with program.serving() as title:
        found = re.match(r" Talaria (\S+)   (http://\S+)    \(talaria open logs a browser in\)", title)
        assert found, title
        assert found[1] == version
        assert "hello there" in program.run("ask", "hello there")
        assets = Assets()  # of this tree
        for asset in PAGE.iterdir():
            path = "/" if asset.name == "index.html" else f"/assets/{asset.name}"
            with urlopen(found[2] + path, timeout=DEADLINE) as answer:
                served = answer.read()
            if asset.suffix == ".html":  # it names the files of this version
                assert b"<title>" in served, asset
            else:
                assert served == assets.by_name[asset.name].body, asset
        said = program.run("doctor")
        assert re.search(r"^ok +gateway +Running at ", said, re.MULTILINE), said
        expected = NO_NETWORK if find_program("bwrap") is None else []
        assert re.findall(r"^(?:warn|problem).*", said, re.MULTILINE) == expected, said
