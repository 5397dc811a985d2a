"""A gateway in its own process, which tests start, kill and call."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

import aiohttp

from talaria.core.failpoints import VARIABLE
from talaria.testing.model_server import ModelServer

_READY_SECONDS = 60.0


class LaunchedProcess(Protocol):
    """The part of `asyncio.subprocess.Process` that a `GatewayProcess` uses."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    @property
    def stdout(self) -> asyncio.StreamReader | None: ...
    async def wait(self) -> int: ...


Launch = Callable[[Mapping[str, str], Path, IO[bytes]], Awaitable[LaunchedProcess]]


class GatewayProcess:
    """`talaria serve` on one home, started as often as wanted. `log` collects the log of all runs.

    `settings` are environment variables without `TALARIA_`. `source` is another source tree to run, and
    `program` the words that start Python. `launch` starts the process in another way: it gets the
    environment, the folder and the log. The process is killed at the end of the `async with` block.
    """

    def __init__(
        self,
        home: Path,
        log: Path,
        settings: Mapping[str, str],
        *,
        source: Path | None = None,
        program: Sequence[str] = (sys.executable,),
        launch: Launch | None = None,
    ) -> None:
        self.home = home
        self.log = log
        self.lives = 0
        self._settings = settings
        self._source = source
        self._program = program
        self._launch = launch or self._execute
        self._process: LaunchedProcess | None = None
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
    def url(self) -> str:
        """The root of the gateway's address, once it is ready."""
        return self._url

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def spawn(self, failpoints: str = "") -> None:
        """Start the process with armed `failpoints`. Does not wait until it is ready."""
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
            self._process = await self._launch(inherited | given, self.home, log)
        self.lives += 1
        self._url = ""

    async def _execute(self, environ: Mapping[str, str], folder: Path, log: IO[bytes]) -> LaunchedProcess:
        return await asyncio.create_subprocess_exec(
            *self._program, "-m", "talaria", "serve", env=environ, cwd=folder,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log,
            start_new_session=True,  # Ctrl-C is meant for the test run, not for the gateway
        )  # fmt: skip

    async def ready(self) -> bool:
        """Wait until the gateway can be called. Returns False if it died."""
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(_READY_SECONDS):
            first = await self._process.stdout.readline()
        words = first.decode().split()
        self._url = next((word.partition("/#")[0] for word in words if word.startswith("http")), "")
        return bool(first)

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises `RuntimeError` with the end of its log."""
        await self.spawn()
        if not await self.ready():
            await self.wait()
            raise RuntimeError("the gateway did not start:\n" + self.log.read_text()[-2000:])

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal and wait until the process has ended."""
        if self._process is not None:
            self.send_signal(number)
            await self.wait()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal. A process that has ended is no error. Before Python 3.13, asyncio's own
        `send_signal` can take away the exit status that `wait` waits for."""
        if self.is_running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def wait(self, seconds: float | None = None) -> int | None:
        """Return the exit status, negative for a signal, or None if it still runs after `seconds`."""
        assert self._process is not None
        try:
            async with asyncio.timeout(seconds):
                return await self._process.wait()
        except TimeoutError:
            return None

    async def call(self, method: str, path: str, **more: Any) -> Any:
        """Make an HTTP call with the token of the home. Raises `aiohttp.ClientError`."""
        if self._session is None:
            token = (self.home / "http.token").read_text().strip()
            connector = aiohttp.TCPConnector(limit=0)
            headers = {"Authorization": f"Bearer {token}"}
            self._session = aiohttp.ClientSession(connector=connector, headers=headers, raise_for_status=True)
        async with self._session.request(method, self._url + path, **more) as answer:
            return await answer.json()

    async def begin(self, name: str, text: str) -> str:
        """Send a message to a session, and return the id of its turn, which may still run."""
        ticket = await self.call("POST", f"/api/sessions/{name}/messages", json={"text": text})
        return str(ticket["turn_id"])

    async def say(self, name: str, text: str) -> dict[str, Any]:
        """Send a message to a session, wait until its turn is done, and return the turn."""
        turn = await self.ended_turn(await self.begin(name, text))
        assert turn["state"] == "done", turn
        return turn

    async def ended_turn(self, turn_id: str) -> dict[str, Any]:
        """Wait until the turn has ended, and return it."""
        while True:
            turn: dict[str, Any] = await self.call("GET", f"/api/turns/{turn_id}")
            if turn["state"] in ("done", "failed", "cancelled"):
                return turn
            await asyncio.sleep(0.02)


@asynccontextmanager
async def running_gateway(
    settings: Mapping[str, str] | None = None,
    config: str = "",
    *,
    record: bool = False,
    launch: Launch | None = None,
) -> AsyncIterator[tuple[GatewayProcess, ModelServer]]:
    """Run a gateway with a scripted model and no chat platform. `config` is the text of its config.toml. With
    `record` the model keeps the requests."""
    with tempfile.TemporaryDirectory(prefix="talaria-gateway-") as folder:
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        (home / "config.toml").write_text(config)
        async with ModelServer(record=record) as model:
            given = {
                "MODEL__PROVIDER": "scripted",
                "PROVIDERS__SCRIPTED__BASE_URL": model.base_url,
                "LOG__LEVEL": "error",
                **(settings or {}),
            }
            async with GatewayProcess(home, Path(folder) / "log", given, launch=launch) as gateway:
                await gateway.start()
                yield gateway, model
