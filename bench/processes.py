"""The measured processes. They are started here, metered from outside, and always stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

_ADDRESS = re.compile(rb"http://[\d.]+:\d+")


class Metered:
    """A child process whose CPU and memory are read from /proc."""

    def __init__(self, process: subprocess.Popen[Any], url: str) -> None:
        self._process = process
        self.url = url

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu(self) -> float:
        """Return the CPU seconds of all threads so far, user and system, as the scheduler counts them."""
        threads = Path(f"/proc/{self._process.pid}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9

    def rss(self) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@contextmanager
def model_server(latency: float = 0.0) -> Iterator[Metered]:
    """Run the scripted model server without checks and recording."""
    command = [sys.executable, "-m", "talaria.testing.model_server", "--port", "0", "--fast"]
    with _running([*command, "--latency", str(latency)], {}) as process:
        yield process


@contextmanager
def connection(platform: str, url: str, token: str) -> Iterator[Metered]:
    """Run nothing but a connection to a platform, until the context is left."""
    command = [sys.executable, "-m", "bench.idle_channels", platform, url, token]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield Metered(process, url)
        finally:
            process.kill()


@contextmanager
def gateway(
    model_url: str,
    deadline: str = "10s",
    python: str = sys.executable,
    wrapper: Sequence[str] = (),
    settings: Mapping[str, str] = MappingProxyType({}),
    home: Path | None = None,
) -> Iterator[tuple[Metered, str]]:
    """Run `talaria serve` with that interpreter in a new home, or in `home`. Gives the process and the token
    of its API.

    A wrapper is a command that runs another, such as valgrind. The settings are added to the environment.
    """
    with tempfile.TemporaryDirectory(prefix="talaria-bench-") as new:
        used = home or Path(new)
        environ = {
            "TALARIA_HOME": str(used),
            "TALARIA_HTTP__PORT": "0",
            "TALARIA_MODEL__PROVIDER": "bench",
            "TALARIA_MODEL__NAME": "scripted",
            "TALARIA_PROVIDERS__BENCH__BASE_URL": f"{model_url}/v1",
            "TALARIA_LOG__LEVEL": "error" if deadline != "10s" else "warning",
            "TALARIA_SHUTDOWN__DEADLINE": deadline,
            **settings,
        }
        with _running([*wrapper, python, "-P", "-m", "talaria", "serve"], environ) as process:
            yield process, (used / "http.token").read_text().strip()


@contextmanager
def _running(command: list[str], environ: dict[str, str]) -> Iterator[Metered]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=_environ(environ))
    try:
        yield Metered(process, _address(process))
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _environ(added: dict[str, str]) -> dict[str, str]:
    """Bytecode is written, as for an installed program; otherwise each start would compile everything."""
    return {**{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}, **added}


def _address(process: subprocess.Popen[bytes]) -> str:
    """Return the first address that the child prints."""
    assert process.stdout is not None
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        line = process.stdout.readline()
        if not line:
            break
        if match := _ADDRESS.search(line):
            return match[0].decode()
    raise SystemExit(f"the process {process.args!r} did not say where it listens")
