"""A gateway as a process of its own: started, killed, asked how it is, and gone when its scope is left."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from talaria.core.failpoints import VARIABLE
from talaria.testing.model_server import ModelServer

_READY_SECONDS = 60.0


class GatewayProcess:
    """`talaria serve` on one home, life after life. What it logs is in `log`, of all lives together.

    `settings` are configuration keys as variables, without `TALARIA_`. `source` is another tree to run from.
    """

    def __init__(
        self, home: Path, log: Path, settings: Mapping[str, str], *, source: Path | None = None
    ) -> None:
        self.home = home
        self.log = log
        self.lives = 0
        self._settings = settings
        self._source = source
        self._process: asyncio.subprocess.Process | None = None
        self._session: aiohttp.ClientSession | None = None
        self._url = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.kill()
        if self._session is not None:
            await self._session.close()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def spawn(self, failpoints: str = "") -> None:
        """Another life; `failpoints` are those of `core.failpoints`. It is not ready yet."""
        assert not self.is_running
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("TALARIA_") and name != "PYTHONDONTWRITEBYTECODE"
        }
        settings = {"HTTP__PORT": "0", **self._settings, "HOME": str(self.home)}
        given = {f"TALARIA_{name}": value for name, value in settings.items()} | {VARIABLE: failpoints}
        if self._source is not None:
            given["PYTHONPATH"] = str(self._source)
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "talaria", "serve", env=inherited | given, cwd=self.home,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log,
                start_new_session=True,  # Ctrl-C is for whoever drives it
            )  # fmt: skip
        self.lives += 1
        self._url = ""

    async def ready(self) -> bool:
        """Until it can be called. False: it is dead."""
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(_READY_SECONDS):
            first = await self._process.stdout.readline()
        words = first.decode().split()
        self._url = next((word.partition("/#")[0] for word in words if word.startswith("http")), "")
        return bool(first)

    async def start(self) -> None:
        """Another life, ready. Raises `RuntimeError` with the end of its log when it does not come to be."""
        await self.spawn()
        if not await self.ready():
            await self.wait()
            raise RuntimeError("the gateway did not start:\n" + self.log.read_text()[-2000:])

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal it, and wait until it is gone."""
        if self._process is not None:
            self.send_signal(number)
            await self.wait()

    def send_signal(self, number: signal.Signals) -> None:
        """One that died by itself is no error. Before Python 3.13, asyncio's own way of doing this may take
        away the status that `wait` is waiting for."""
        if self.is_running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def wait(self, seconds: float | None = None) -> int | None:
        """Its status, negative for a signal; None: it lives on after `seconds`."""
        assert self._process is not None
        try:
            async with asyncio.timeout(seconds):
                return await self._process.wait()
        except TimeoutError:
            return None

    async def call(self, method: str, path: str, **more: Any) -> Any:
        """An HTTP call with the home's token. Raises `aiohttp.ClientError`."""
        if self._session is None:
            token = (self.home / "http.token").read_text().strip()
            connector = aiohttp.TCPConnector(limit=0)
            headers = {"Authorization": f"Bearer {token}"}
            self._session = aiohttp.ClientSession(connector=connector, headers=headers, raise_for_status=True)
        async with self._session.request(method, self._url + path, **more) as answer:
            return await answer.json()

    async def ended(self, turn_id: str) -> dict[str, Any]:
        """The turn when it is over."""
        while True:
            turn: dict[str, Any] = await self.call("GET", f"/api/turns/{turn_id}")
            if turn["state"] in ("done", "failed", "cancelled"):
                return turn
            await asyncio.sleep(0.02)


@asynccontextmanager
async def lone_gateway(
    settings: Mapping[str, str] | None = None, config: str = ""
) -> AsyncIterator[tuple[GatewayProcess, ModelServer]]:
    """Ready, with HTTP alone and a model of its own. `config` is what its config.toml says."""
    with tempfile.TemporaryDirectory(prefix="talaria-gateway-") as folder:
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        (home / "config.toml").write_text(config)
        async with ModelServer(record=False) as model:
            given = {
                "MODEL__PROVIDER": "scripted",
                "PROVIDERS__SCRIPTED__BASE_URL": model.base_url,
                "LOG__LEVEL": "error",
                **(settings or {}),
            }
            async with GatewayProcess(home, Path(folder) / "log", given) as gateway:
                await gateway.start()
                yield gateway, model
