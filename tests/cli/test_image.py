"""The Dockerfile, as far as it can be tried without a container: what it copies, sets and starts."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from cli.conftest import DEADLINE, Serve
from talaria.channels.http.part import HTTP
from talaria.config.load import load
from talaria.core.program import this_version
from talaria.models.local.weights import CACHE_VARIABLE
from talaria.parts import PARTS

ROOT = Path(__file__).parents[2]


def instructions(word: str) -> list[str]:
    """What stands behind each such word, with its lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [line.partition(" ")[2] for line in text.splitlines() if line.split(" ")[0] == word]


@pytest.fixture
def variables() -> dict[str, str]:
    pairs = (pair.partition("=") for pair in shlex.split(instructions("ENV")[0]))
    return {name: value for name, _, value in pairs if name.startswith("TALARIA_")}


def test_it_copies_the_wheel_that_dev_builds_and_nothing_else_is_sent_to_the_builder() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    (copied,) = (line.split()[0] for line in instructions("COPY") if "--from" not in line)
    wheel = f"dist/talaria_gateway-{this_version()}-py3-none-any.whl"
    assert fnmatch.fnmatch(wheel, copied)
    assert ignored == ["*", "!dist/*.whl"]


def test_its_variables_are_settings_that_let_others_in(tmp_path: Path, variables: dict[str, str]) -> None:
    loaded = load(tmp_path, variables, PARTS)
    assert loaded.warnings == ()
    http, port = loaded.settings.of(HTTP), int(*instructions("EXPOSE"))
    assert (http.host, http.port) == ("0.0.0.0", port)
    assert http.hosts == (f"localhost:{port}", f"127.0.0.1:{port}")
    volume = Path(*instructions("VOLUME"))
    assert Path(variables["TALARIA_HOME"]) == volume
    assert volume in Path(variables[CACHE_VARIABLE]).parents


def test_what_it_starts_is_healthy_until_it_is_stopped(
    serve: Serve, home: Path, environ: dict[str, str], variables: dict[str, str]
) -> None:
    entry, command = (json.loads(*instructions(word)) for word in ("ENTRYPOINT", "CMD"))
    assert [*entry, *command] == ["tini", "--", "talaria", "serve"]
    gateway = serve(env={**variables, "TALARIA_HOME": str(home), "TALARIA_HTTP__HOST": "127.0.0.1"})
    port = json.loads((home / "gateway.json").read_text())["url"].rpartition(":")[2]

    def health() -> int:
        words = json.loads(instructions("HEALTHCHECK")[0].partition("CMD ")[2])
        inside = {**environ, "TALARIA_HTTP__PORT": port}
        return subprocess.run(words, env=inside, capture_output=True, check=False).returncode

    assert health() == 0
    gateway.terminate()
    assert gateway.wait(DEADLINE) == 0
    assert health() == 1
