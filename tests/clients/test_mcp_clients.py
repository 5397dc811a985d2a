"""Clients of MCP against `talaria mcp serve`, each over HTTP and over stdio.

The official SDK for Python is in tests/cli/test_mcp_serve.py.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import Serve, environ, home, model_url, serve, talaria  # noqa: F401 - fixtures
from cli.test_mcp_serve import url  # noqa: F401 - a fixture
from clients import installation
from clients.installation import SCRIPTS

CLIENTS = {
    "fastmcp": "mcp-clients",
    "langchain": "mcp-langchain",
    "openai-agents": "mcp-langchain",
    "typescript": "mcp-clients-node",
}


def command(name: str) -> list[str]:
    """Return the command of the client. Those of node find packages beside their script only."""
    place = CLIENTS[name]
    if why := installation.missing(place):
        pytest.skip(f"{name}: {why}: ./dev clients --install {place}")
    if not place.endswith("node"):
        return [str(installation.python_of(place)), str(SCRIPTS / "mcp_clients.py"), name]
    script = installation.folder() / place / "mcp_client.mjs"
    script.write_bytes((SCRIPTS / script.name).read_bytes())
    return [str(installation.node(place)), str(script), name]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CLIENTS)
async def test_a_client_of_mcp_asks(
    name: str,
    url: str,  # noqa: F811
    home: Path,  # noqa: F811
    serve: Serve,  # noqa: F811
    environ: dict[str, str],  # noqa: F811
) -> None:
    words = command(name)
    await asyncio.to_thread(serve)
    token = (home / "http.token").read_text().strip()
    stdio = [sys.executable, "-m", "talaria", "mcp", "serve", "--home", str(home)]
    more = {**environ, "PYTHONWARNINGS": "ignore"}  # they use what their SDK has deprecated
    done = await asyncio.to_thread(
        subprocess.run, [*words, url, token, *stdio], env=more, capture_output=True, text=True, check=False
    )
    assert "good" in done.stdout, done.stdout + done.stderr
