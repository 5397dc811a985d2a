"""Clients that generators make of `/openapi.json`: they are made without a complaint, and they work."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from clients import installation
from clients.installation import SCRIPTS
from support.gateway import TOKEN, in_process
from talaria.testing.model_server import ModelServer

pytestmark = pytest.mark.timeout(600)  # the compiler takes a minute on a machine with other work


def run(folder: Path, *words: str | Path, path: Path) -> str:
    """Run a program in a folder, with another one before the PATH. Return what it prints."""
    environ = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def use_python(folder: Path, url: str) -> str:
    python = installation.python_of("generators-python")
    assert python is not None
    arguments = ("generate", "--path", "openapi.json", "--meta", "none", "--output-path", "generated")
    said = run(folder, python.parent / "openapi-python-client", *arguments, path=python.parent)
    assert "warning" not in said.lower(), said
    assert "error" not in said.lower(), said
    return run(folder, python, SCRIPTS / "generated.py", url, TOKEN, folder / "generated", path=python.parent)


def use_typescript(folder: Path, url: str) -> str:
    modules = installation.folder() / "generators-node" / "node_modules"
    node, programs = installation.node("generators-node"), modules / ".bin"
    assert node is not None
    (folder / "node_modules").symlink_to(modules)
    (folder / "generated.ts").write_bytes((SCRIPTS / "generated.ts").read_bytes())
    for command in (
        ("openapi-typescript", "openapi.json", "-o", "talaria.ts"),
        ("openapi-ts", "-i", "openapi.json", "-o", "hey"),
    ):
        said = run(folder, programs / command[0], *command[1:], path=programs)
        assert "warn" not in said.lower(), said
    options = ("--strict", "--skipLibCheck", "--target", "es2022", "--module", "commonjs")
    run(folder, programs / "tsc", *options, "--moduleResolution", "node10", "generated.ts", path=programs)
    return run(folder, node, "generated.js", url, TOKEN, path=programs)


@pytest.mark.parametrize(
    ("environment", "use"),
    [
        ("generators-python", use_python),
        pytest.param("generators-node", use_typescript, marks=pytest.mark.long),
    ],
)
async def test_a_generated_client_works(
    tmp_path: Path, environment: str, use: Callable[[Path, str], str]
) -> None:
    if why := installation.missing(environment):
        pytest.skip(f"{environment}: {why}: ./dev clients --install generators")
    folder = tmp_path / "made"
    folder.mkdir()
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        async with api.client.get(f"{api.url}/openapi.json") as response:
            (folder / "openapi.json").write_bytes(await response.read())
        assert "good" in await asyncio.to_thread(use, folder, api.url)
