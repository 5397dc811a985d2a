"""The processes that clients are run against: the scripted model server, and a gateway in a new home."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_ADDRESS = re.compile(r"http://[\d.]+:\d+")


@dataclass(frozen=True, slots=True)
class Servers:
    """Where they listen. `token` is the gateway's."""

    url: str
    token: str
    model_url: str


@contextmanager
def run_servers() -> Iterator[Servers]:
    """Run both. They are stopped, and the home is deleted, at the end."""
    with (
        _running([sys.executable, "-m", "talaria.testing.model_server", "--port", "0"], {}) as model_url,
        tempfile.TemporaryDirectory(prefix="talaria-clients-") as home,
    ):
        settings = {
            "TALARIA_HOME": home,
            "TALARIA_HTTP__PORT": "0",
            "TALARIA_MODEL__PROVIDER": "scripted",
            "TALARIA_MODEL__NAME": "scripted",
            "TALARIA_PROVIDERS__SCRIPTED__BASE_URL": f"{model_url}/v1",
            "TALARIA_PROVIDERS__SCRIPTED__MAX_RETRIES": "0",
            "TALARIA_LOG__LEVEL": "error",
        }
        with _running([sys.executable, "-P", "-m", "talaria", "serve"], settings) as url:
            yield Servers(url, (Path(home) / "http.token").read_text().strip(), model_url)


@contextmanager
def _running(command: list[str], settings: dict[str, str]) -> Iterator[str]:
    """Run a server and give the first address that it prints."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **settings}, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if match := _ADDRESS.search(line):
                yield match[0]
                break
        else:
            raise SystemExit(f"{' '.join(command)} did not say where it listens.")
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
