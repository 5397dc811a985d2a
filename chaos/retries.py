"""Retries of real clients over connections that break and gateways that are killed. Effects are counted."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp
import openai
from openai import AsyncOpenAI

from chaos.cut_link import CutLink
from soak.report import Figure, Progress
from talaria.core.failpoints import Failpoint
from talaria.core.ids import ChatAddress
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer
from talaria.workspace.folder import chat_folder

SCRIPT = Path(__file__).with_suffix(".mjs")
UNKNOWN = "its outcome is unknown"
_EFFECTS, _END = "effects", "end"
_RETRIES = 10
_CUTS = 0.5  # the share of requests whose connection is cut
_CUT_SECONDS = 0.7  # the latest moment of a cut
_LIFE_SECONDS = (1.0, 6.0)
_POINTS = (
    None,
    None,
    None,
    Failpoint.BEGUN,
    Failpoint.ANSWERED,
    Failpoint.STARTED,
    Failpoint.RAN,
    Failpoint.ENDING,
    Failpoint.ENDED,
)


@dataclass(frozen=True, slots=True)
class Question:
    """A message to a session. `seconds` is the client's time limit, shorter than most turns take."""

    name: str
    session: str
    text: str
    seconds: float
    is_stream: bool
    path: str


class Asker(Protocol):
    """A client. Returns the answer; None if the client gave up without one. Raises `Refused`."""

    async def ask(self, question: Question) -> str | None: ...


class Refused(Exception):
    """The gateway answered with an error."""


# -- the clients ------------------------------------------------------------------------------------------


class PythonSdk:
    """openai-python, with its own retries."""

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client

    async def ask(self, question: Question) -> str | None:
        headers = {"X-Talaria-Session": question.session}
        # The client repeats no stream that has begun, so a time limit would be met by the user.
        seconds = 30.0 if question.is_stream else question.seconds
        client = self._client.with_options(timeout=seconds, default_headers=headers)
        try:
            if question.path == "responses":
                return (await client.responses.create(model="main", input=question.text)).output_text
            if question.is_stream:
                return await self._read_stream(client, question)
            answer = await client.chat.completions.create(model="main", messages=_messages(question))
            return answer.choices[0].message.content
        except openai.APIStatusError as error:
            raise Refused(f"{error.status_code} {error.message}") from None
        except (openai.APIError, OSError):
            return None
        except Exception as error:
            if "httpx" in type(error).__module__:  # a stream that was cut
                return None
            raise

    async def _read_stream(self, client: AsyncOpenAI, question: Question) -> str | None:
        said, is_whole = "", False
        asked = client.chat.completions.create(model="main", messages=_messages(question), stream=True)
        async with await asked as chunks:
            async for chunk in chunks:
                said += chunk.choices[0].delta.content or ""
                is_whole = is_whole or chunk.choices[0].finish_reason is not None
        return said if is_whole else None


class PlainClient:
    """A client that tells nothing about its retries: it sends the same bytes again."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ask(self, question: Question) -> str | None:
        body = {"messages": _messages(question)}
        headers = {"X-Talaria-Session": question.session}
        try:
            async with self._session.post("/v1/chat/completions", json=body, headers=headers) as answer:
                told = await answer.json()
        except aiohttp.ClientError:
            return None
        if answer.status != 200:
            raise Refused(f"{answer.status} {told}")
        return str(told["choices"][0]["message"]["content"])


class NodeSdk:
    """openai-node or the AI SDK, in a process that all questions share."""

    def __init__(self, sdk: str, url: str, token: str, node: NodeProcess) -> None:
        self._about = {"sdk": sdk, "url": url, "token": token}
        self._node = node

    async def ask(self, question: Question) -> str | None:
        more = {"session": question.session, "text": question.text, "stream": question.is_stream}
        told = await self._node.ask({**self._about, **more, "timeout": int(question.seconds * 1000)})
        if "text" in told:
            return str(told["text"])
        if told["status"]:
            raise Refused(f"{told['status']} {told['error']}")
        return None


class NodeProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    @classmethod
    @asynccontextmanager
    async def running(cls, folder: Path) -> AsyncIterator[NodeProcess]:
        """The packages are in TALARIA_NODE_MODULES; see `node_modules`."""
        (folder / "node_modules").symlink_to(node_modules())
        shutil.copy(SCRIPT, folder)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            "node", str(folder / SCRIPT.name), stdin=pipe, stdout=pipe, limit=1 << 20
        )
        node = cls(process)
        reading = asyncio.create_task(node._read())
        try:
            yield node
        finally:
            process.kill()
            await process.wait()
            await asyncio.wait((reading,))

    async def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        number = next(self._ids)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, **question}).encode() + b"\n")
        return await self._waiting[number]

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            told = json.loads(line)
            self._waiting.pop(told["id"]).set_result(told)


def node_modules() -> Path:
    return Path(os.environ.get("TALARIA_NODE_MODULES", "node_modules")).absolute()


def has_node() -> bool:
    """Return whether OpenAI's and Vercel's clients for node are installed."""
    packages = ("openai", "ai", "@ai-sdk/openai-compatible")
    return shutil.which("node") is not None and all((node_modules() / name).is_dir() for name in packages)


def _messages(question: Question) -> Any:
    return [{"role": "user", "content": question.text}]


# -- the run ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RetryResults:
    """`effects` counts the lines that the tools wrote, by the name of their question."""

    faults: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    answers: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    effects: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)  # questions by client
    turns: Counter[str] = field(default_factory=Counter)  # by state
    points: Counter[str] = field(default_factory=Counter)  # kills

    @property
    def repeated(self) -> list[str]:
        return [name for name, times in self.effects.items() if times > 1]

    @property
    def untold(self) -> list[str]:
        """Questions whose tool had no effect, or two, and whose answer does not say so."""
        return [
            name for name, answer in self.answers.items() if self.effects[name] != 1 and UNKNOWN not in answer
        ]

    @property
    def unanswered(self) -> int:
        return self.asked.total() - len(self.answers) - len(self.refused)

    @property
    def doubled(self) -> int:
        """Turns that are neither the first of a question nor follow one that failed."""
        return self.turns.total() - self.asked.total() - self.turns["failed"]

    @property
    def is_good(self) -> bool:
        return not (self.repeated or self.untold or self.unanswered) and self.doubled <= 0

    def evidence(self) -> str:
        """Return the questions with a repeated or untold effect, each with its answer."""
        names = dict.fromkeys((*self.repeated, *self.untold))
        told = self.answers | self.refused
        return "\n".join(f"{name}: {self.effects[name]} effects: {told.get(name, '')}" for name in names)

    def figures(self) -> list[Figure]:
        faults, asked = self.faults, self.asked.total()
        told = sum(UNKNOWN in answer for answer in self.answers.values())
        who = ", ".join(f"{name} {count:,}" for name, count in sorted(self.asked.items()))
        return [
            Figure(
                f"{faults.total():,} timeouts, disconnects and kills: effects twice",
                len(self.repeated),
                "",
                0,
            ),
            Figure("… missing effects that were not told as *outcome unknown*", len(self.untold), "", 0),
            Figure("… retries that became a turn of their own", max(0, self.doubled), "", 0),
            Figure("… questions without an answer", self.unanswered, "", 0),
            Figure(f"… questions ({who})", asked),
            Figure("… requests sent again", self.requests - asked),
            Figure("… clients that timed out", faults["timeouts"]),
            Figure("… connections cut", faults["disconnects"]),
            Figure("… gateways killed", faults["kills"]),
            Figure("… calls told as *outcome unknown*", told),
            Figure("… given up after three crashes, and told", len(self.refused)),
        ]


class RetryRun:
    """Questions of several clients, each in a session of its own, until there were `count` faults.

    `source` is another source tree to run.
    """

    def __init__(
        self,
        count: int,
        progress: Progress,
        seed: int = 1,
        *,
        clients: int = 24,
        with_node: bool = False,
        source: Path | None = None,
    ) -> None:
        self._count = count
        self._progress = progress
        self._random = Random(seed)
        self._clients = clients
        self._with_node = with_node
        self._source = source
        self._names = (f"n{number}" for number in itertools.count(1))
        self._gateway: GatewayProcess
        self._link = CutLink(self._find_port, self._random, _CUT_SECONDS)
        self._is_over = False
        self.results = RetryResults()

    async def run(self) -> RetryResults:
        async with AsyncExitStack() as scopes:
            folder = Path(scopes.enter_context(tempfile.TemporaryDirectory(prefix="talaria-retries-")))
            home = folder / "home"
            home.mkdir(mode=0o700)
            model = await scopes.enter_async_context(ModelServer(record=False))
            await scopes.enter_async_context(self._link.listening())
            settings = {
                "MODEL__PROVIDER": "scripted",
                "PROVIDERS__SCRIPTED__BASE_URL": model.base_url,
                "SHUTDOWN__RESTART_PAUSE": "1ms",
                "HTTP__HOSTS": f"127.0.0.1:{self._link.port}",
                "LOG__LEVEL": "warning",
            }
            self._gateway = GatewayProcess(home, folder / "log", settings, source=self._source)
            await scopes.enter_async_context(self._gateway)
            await self._gateway.start()
            askers = await self._open_clients(scopes, folder)
            self._link.share = _CUTS
            await self._strike(home, askers)
            self._count_effects(home, len(askers))
            status = await self._gateway.call("GET", "/api/status")
            self.results.turns.update(status["turns"])
        return self.results

    async def _strike(self, home: Path, askers: list[tuple[str, Asker]]) -> None:
        for number in range(len(askers)):
            path = self._folder(home, number)
            path.mkdir(parents=True)
            (path / _EFFECTS).write_text(_END)
        async with asyncio.TaskGroup() as tasks:
            asking = [tasks.create_task(self._talk(n, *asker)) for n, asker in enumerate(askers)]
            killing = tasks.create_task(self._kill_often())
            faults = self.results.faults
            while faults.total() < self._count or faults["kills"] < self._count // 50:
                await asyncio.sleep(0.1)
                self._tally()
            self._is_over, self._link.share = True, 0.0
            await killing
            await asyncio.wait(asking)
        self._tally()

    def _tally(self) -> None:
        results, link = self.results, self._link
        results.faults["timeouts"], results.faults["disconnects"] = link.given_up, link.cut
        results.requests = link.requests
        more = f", {results.faults['kills']} kills, {len(results.answers)} answers"
        self._progress.tell("retries", min(results.faults.total(), self._count), self._count, more)

    def _find_port(self) -> int | None:
        return urlsplit(self._gateway.url).port if self._gateway.url else None

    async def _open_clients(self, scopes: AsyncExitStack, folder: Path) -> list[tuple[str, Asker]]:
        token = (folder / "home" / "http.token").read_text().strip()
        url = f"http://127.0.0.1:{self._link.port}"
        base = f"{url}/v1"
        python = await scopes.enter_async_context(
            AsyncOpenAI(base_url=base, api_key=token, max_retries=_RETRIES)
        )
        headers = {"Authorization": f"Bearer {token}"}
        plain = await scopes.enter_async_context(aiohttp.ClientSession(url, headers=headers))
        kinds: list[tuple[str, Asker]] = [("openai-python", PythonSdk(python)), ("plain", PlainClient(plain))]
        if self._with_node:
            node = await scopes.enter_async_context(NodeProcess.running(folder))
            kinds.append(("openai-node", NodeSdk("openai", base, token, node)))
            kinds.append(("AI SDK", NodeSdk("ai", base, token, node)))
        return list(itertools.islice(itertools.cycle(kinds), self._clients))

    # -- clients and kills ----------------------------------------------------------------------------------

    async def _talk(self, number: int, kind: str, asker: Asker) -> None:
        while not self._is_over:
            question = self._question(number)
            self.results.asked[kind] += 1
            while True:
                try:
                    answer = await asker.ask(question)
                except Refused as refusal:
                    self.results.refused[question.name] = str(refusal)
                    break
                if answer is not None:
                    self.results.answers[question.name] = answer
                    break
                await asyncio.sleep(0.05)

    def _question(self, number: int) -> Question:
        random, name = self._random, next(self._names)
        call = json.dumps({"path": _EFFECTS, "old": _END, "new": f"{name}\n{_END}"})
        before, after = (f"[[delay {random.uniform(0.0, 0.4):.2f}]]" for _ in range(2))
        pieces = "[[chunks 5]][[chunk-delay 0.02]]"
        return Question(
            name,
            f"s{number}",
            f"{before}[[call edit_file {call}]]{after}{pieces}",
            random.uniform(0.3, 1.5),
            random.random() < 0.4,
            random.choice(("chat", "chat", "responses")),
        )

    async def _kill_often(self) -> None:
        """Kill the gateway at labelled points and at random moments. At the end one is running."""
        point: Failpoint | None = None
        while True:
            reached = await self._gateway.wait(self._random.uniform(*_LIFE_SECONDS)) is not None
            if self._is_over and not reached and point is None:
                return
            await self._gateway.kill()
            self.results.faults["kills"] += 1
            self.results.points[str(point) if point and reached else "at random"] += 1
            point = None if self._is_over else self._random.choice(_POINTS)
            await self._gateway.spawn(f"{point}={self._random.randint(1, 9)}" if point else "")
            await self._gateway.ready()

    # -- looking --------------------------------------------------------------------------------------------

    def _count_effects(self, home: Path, count: int) -> None:
        for number in range(count):
            lines = (self._folder(home, number) / _EFFECTS).read_text().splitlines()
            self.results.effects.update(line for line in lines if line != _END)

    def _folder(self, home: Path, number: int) -> Path:
        return chat_folder(home, ChatAddress("main", "http", "api", f"s{number}").key())
