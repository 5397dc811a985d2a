"""The `talaria` program as its users run it: real processes on a home of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from cli.terminal import Terminal
from support.forks import ForkedProcess, forks

Talaria = Callable[..., subprocess.CompletedProcess[str]]
Serve = Callable[..., ForkedProcess]
DEADLINE = 60


@contextmanager
def started(server: str, *options: str) -> Iterator[str]:
    """A server of `talaria.testing` in a process of its own; gives its address."""
    command = [sys.executable, "-m", f"talaria.testing.{server}", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield next(word for word in process.stdout.readline().split() if "://" in word).rstrip(";,.")
        finally:
            process.terminate()


class Caller:
    """Calls the gateway that serves a home."""

    def __init__(self, home: Path) -> None:
        self._url = json.loads((home / "gateway.json").read_text())["url"]
        self._token = (home / "http.token").read_text().strip()

    def call(self, path: str, body: bytes | None = None) -> Any:
        with self.open(path, body) as answer:
            return json.load(answer)

    def open(self, path: str, body: bytes | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self._token}"}
        return urlopen(Request(self._url + path, body, headers), timeout=DEADLINE)


@pytest.fixture(scope="session")
def model_url() -> Iterator[str]:
    """A scripted model that runs for all tests of this folder."""
    with started("model_server") as url:
        yield url


@pytest.fixture
def home(tmp_path: Path, model_url: str) -> Path:
    """A home with a model configured."""
    path = tmp_path / "home"
    path.mkdir(mode=0o700)
    config = f'[providers.scripted]\nbase_url = "{model_url}"\n[model]\nprovider = "scripted"\nname = "m"\n'
    (path / "config.toml").write_text(config)
    return path


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Nothing of the developer's own settings; `talaria` is on the path, so that hints name it."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("TALARIA_")}
    path = f"{Path(sys.prefix) / 'bin'}:{kept['PATH']}"
    return {**kept, "PATH": path, "TERM": "xterm-256color", "PYTHONWARNINGS": "error", "HOME": str(tmp_path)}


@pytest.fixture
def talaria(home: Path, environ: dict[str, str]) -> Talaria:
    """Run a command on the home to its end."""

    def run(
        *arguments: str, stdin: str = "", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        given = {"TALARIA_HOME": str(home), **environ, **(env or {})}
        return forks().run(arguments, given, stdin, DEADLINE)

    return run


@pytest.fixture
def serve(home: Path, environ: dict[str, str], tmp_path: Path) -> Iterator[Serve]:
    """Start gateways that print their banner and then run until the test ends. The banner's first line is in
    the file `title`, the rest on their stdout."""
    started: list[ForkedProcess] = []

    def start(*options: str, env: dict[str, str] | None = None) -> ForkedProcess:
        given = {"TALARIA_HOME": str(home), **environ, **(env or {})}
        with (tmp_path / "serve.log").open("a") as log:
            process = forks().start_with_pipe(["serve", *(options or ("--port", "0"))], given, log.fileno())
        started.append(process)
        assert process.stdout is not None
        title = process.stdout.readline()
        assert title.startswith(" Talaria"), (tmp_path / "serve.log").read_text()
        (tmp_path / "title").write_text(title)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(DEADLINE)
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def terminal(tmp_path: Path, environ: dict[str, str]) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path, environ)
    try:
        yield terminal
    finally:
        terminal.stop()
