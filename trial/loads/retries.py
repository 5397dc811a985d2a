"""Clients that retry over connections that break. Effects are counted."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp
import openai
from openai import AsyncOpenAI

from talaria.core.ids import ChatAddress
from talaria.workspace.folder import chat_folder
from trial.cut_link import CutLink
from trial.faults import OF_TURNS, Load
from trial.report import Check, Fault, Figure, none_of
from trial.world import World

SCRIPT = Path(__file__).with_suffix(".mjs")
UNKNOWN = "its outcome is unknown"
_EFFECTS, _END = "effects", "end"
_RETRIES = 10
_TURNS = "SELECT state FROM turns WHERE chat_key LIKE '%:http:api:s%'"
_CUTS = 0.5  # the share of requests whose connection is cut
_CUT_SECONDS = 0.7  # the latest moment of a cut


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


# -- the load ---------------------------------------------------------------------------------------------


class Retries(Load):
    """Clients ask sessions for a tool call with an effect, each in its own session. Their time limits are
    shorter than most turns. openai-python and openai-node number their retries; the AI SDK and a plain client
    just send the request again. Timeouts and cut connections count as faults."""

    points = OF_TURNS
    gateways = 1  # the relay that cuts connections stands before one
    moment = (1.0, 6.0)

    def __init__(self, clients: int = 24, *, with_node: bool = False) -> None:
        self._clients = clients
        self._with_node = with_node
        self._names = (f"n{number}" for number in itertools.count(1))
        self._link: CutLink
        self.answers: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.asked: Counter[str] = Counter()  # questions by client

    @property
    def requests(self) -> int:
        return self._link.requests

    async def prepare(
        self, world: World, faults: Collection[Fault], scopes: AsyncExitStack
    ) -> dict[str, str]:
        def find_port() -> int | None:
            url = world.members[0].gateway.url if world.members else ""
            return urlsplit(url).port if url else None

        self._link = CutLink(find_port, world.random, _CUT_SECONDS)
        self._share = _CUTS if Fault.CUT in faults else 0.0
        self._scopes = scopes
        await scopes.enter_async_context(self._link.listening())
        for number in range(self._clients):
            path = self._folder(world.homes[0], number)
            path.mkdir(parents=True)
            (path / _EFFECTS).write_text(_END)
        return {"HTTP__HOSTS": f"127.0.0.1:{self._link.port}"}

    async def run(self, world: World) -> None:
        askers = await self._open_clients(world.homes[0])
        self._link.share = self._share
        asking = [asyncio.create_task(self._talk(world, n, *asker)) for n, asker in enumerate(askers)]
        try:
            while not all(task.done() for task in asking):
                world.faults["clients that timed out"] = self._link.given_up
                world.faults["connections cut"] = self._link.cut
                if world.is_over:
                    self._link.share = 0.0
                await asyncio.sleep(0.1)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _open_clients(self, home: Path) -> list[tuple[str, Asker]]:
        token = (home / "http.token").read_text().strip()
        url = f"http://127.0.0.1:{self._link.port}"
        base = f"{url}/v1"
        python = await self._scopes.enter_async_context(
            AsyncOpenAI(base_url=base, api_key=token, max_retries=_RETRIES)
        )
        headers = {"Authorization": f"Bearer {token}"}
        plain = await self._scopes.enter_async_context(aiohttp.ClientSession(url, headers=headers))
        kinds: list[tuple[str, Asker]] = [("openai-python", PythonSdk(python)), ("plain", PlainClient(plain))]
        if self._with_node:
            node = await self._scopes.enter_async_context(NodeProcess.running(home.parent))
            kinds.append(("openai-node", NodeSdk("openai", base, token, node)))
            kinds.append(("AI SDK", NodeSdk("ai", base, token, node)))
        return list(itertools.islice(itertools.cycle(kinds), self._clients))

    async def _talk(self, world: World, number: int, kind: str, asker: Asker) -> None:
        while not world.is_over:
            await world.is_open.wait()
            question = self._question(world, number)
            self.asked[kind] += 1
            while True:
                try:
                    answer = await asker.ask(question)
                except Refused as refusal:
                    self.refused[question.name] = str(refusal)
                    break
                if answer is not None:
                    self.answers[question.name] = answer
                    break
                await asyncio.sleep(0.05)

    def _question(self, world: World, number: int) -> Question:
        random, name = world.random, next(self._names)
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

    async def judge(self, world: World) -> list[Figure]:
        folders = (self._folder(world.homes[0], number) for number in range(self._clients))
        effects = Counter(
            line for path in folders for line in (path / _EFFECTS).read_text().splitlines() if line != _END
        )
        told, asked = self.answers | self.refused, self.asked.total()
        turns = Counter(row[0] for row in world.query(_TURNS))
        # Each turn is the first of a question, or follows one that failed.
        doubled = turns.total() - asked - turns["failed"]

        def describe(name: str) -> str:
            return f"{name}: {effects[name]} effects: {told.get(name, '')}"

        repeated = [describe(name) for name, times in effects.items() if times > 1]
        silent = [
            describe(name)
            for name, answer in self.answers.items()
            if effects[name] != 1 and UNKNOWN not in answer
        ]
        who = ", ".join(f"{name} {count:,}" for name, count in sorted(self.asked.items()))
        unknown = sum(UNKNOWN in answer for answer in self.answers.values())
        return [
            none_of("… effects of questions that happened twice", repeated, Check.EFFECTS),
            none_of("… missing effects that were not reported as *outcome unknown*", silent, Check.EFFECTS),
            Figure("… retries that became a turn of their own", max(0, doubled), "", 0, Check.DUPLICATED),
            Figure("… questions without an answer", asked - len(told), "", 0, Check.LOST),
            Figure(f"… questions ({who})", asked),
            Figure("… requests sent again", self.requests - asked),
            Figure("… calls reported as *outcome unknown*", unknown),
            Figure("… questions given up after three crashes, and reported", len(self.refused)),
        ]

    def _folder(self, home: Path, number: int) -> Path:
        return chat_folder(home, ChatAddress("main", "http", "api", f"s{number}").key())
