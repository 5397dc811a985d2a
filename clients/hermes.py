"""Homes of a real hermes-agent, installed as pins.toml says, for the tests of `talaria import`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from clients import installation

ENVIRONMENT = "import-hermes"
_STOP_SECONDS = 30.0
# Run by hermes-agent's Python: it writes rows as hermes-agent writes them.
_APPEND = """
import json, sys
from hermes_state import SessionDB
database = SessionDB()
session = database.create_session(sys.argv[1], "cli", model="scripted") or sys.argv[1]
for line in sys.stdin:
    row = json.loads(line)
    database.append_message(sys.argv[1], row.pop("role"), **row)
"""


class RealHermes:
    """A home of hermes-agent, whose model is the scripted server at `model_url`. With `telegram_url` its
    gateway has a bot there. Everything runs as its users run it, by its own command."""

    def __init__(
        self, home: Path, python: Path, model_url: str, telegram_url: str = "", token: str = ""
    ) -> None:
        self.home = home
        self._python = python
        home.mkdir(parents=True)
        telegram = {"enabled": True, "token": token, "extra": {"base_url": f"{telegram_url}/bot"}}
        model = {"default": "scripted", "provider": "custom", "base_url": f"{model_url}/v1"}
        config: dict[str, Any] = {
            "model": {**model, "api_key": "sk-local-0123456789", "context_length": 10_000_000},
            "compression": {"enabled": False},
            "timezone": "Europe/Berlin",
            "approvals": {"mode": "off"},
            "session_reset": {"mode": "none"},
        }
        if telegram_url:
            config["platforms"] = {"telegram": telegram}
        self.write("config.yaml", json.dumps(config))  # YAML takes JSON

    @classmethod
    def installed(cls) -> Path | None:
        """Return its Python, or None if it is not installed: `./dev clients --install hermes`."""
        return installation.python_of(ENVIRONMENT)

    def write(self, name: str, text: str) -> None:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    async def run(self, *words: str) -> str:
        """Run `hermes WORDS` and return what it prints. Raises RuntimeError if it fails."""
        return await self._finish(self._python.with_name("hermes"), *words)

    async def append(self, session: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows to a session by the functions with which hermes-agent adds them."""
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        await self._finish(self._python, "-c", _APPEND, session, given=lines.encode())

    @asynccontextmanager
    async def gateway(self) -> AsyncIterator[None]:
        """Run its gateway."""
        process = await asyncio.create_subprocess_exec(
            self._python.with_name("hermes"), "gateway", "run", env=self._environ(), cwd=self.home,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield
        finally:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _STOP_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()

    def _environ(self) -> dict[str, str]:
        own = ("HERMES", "TALARIA")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        return {**kept, "HERMES_HOME": str(self.home), "HOME": str(self.home.parent), "NO_COLOR": "1"}

    async def _finish(self, *command: str | Path, given: bytes = b"") -> str:
        process = await asyncio.create_subprocess_exec(
            *command, env=self._environ(), cwd=self.home,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        said, errors = await process.communicate(given)
        if process.returncode:
            raise RuntimeError(f"{command} failed: {(said + errors).decode()[-2000:]}")
        return said.decode()
