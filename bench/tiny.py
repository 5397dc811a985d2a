"""The quality of the built-in models: requests as a new user makes them, answered by a whole gateway.

`python -m bench.tiny MODEL [FILE]` prints each request with the answer, the tools that ran and the files that
are there afterwards. Whether an answer is right, honest or false is judged by a reader with the rubric of the
request (docs/built-in-model.md has the result).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from talaria.app import open_gateway
from talaria.channels.http.http_channel import open_http
from talaria.channels.http.part import HTTP
from talaria.config.home import Home
from talaria.config.load import Loaded
from talaria.config.settings import settings_type
from talaria.core.ids import ChatKey
from talaria.models.local.runtime import missing_requirement
from talaria.models.local.weights import DEFAULT_MODEL, WeightsCache, find_weights
from talaria.models.settings import LOCAL
from talaria.parts import PARTS

CASES = Path(__file__).parent / "requests.json"
_CHATS = "agent:main:http:api:"
_TOKEN = "for-the-bench-only"
_SECONDS = 900


class Case(msgspec.Struct, frozen=True):
    """Messages that are sent in this order in a chat of their own. `files` are in its folder before,
    `attach` is uploaded with the first message."""

    id: str
    messages: tuple[str, ...]
    rubric: str
    files: dict[str, str] = {}
    attach: dict[str, str] = {}


class Outcome(msgspec.Struct, frozen=True):
    """The replies to the messages of a case, the tools that ran, and the chat's files afterwards."""

    id: str
    replies: tuple[str, ...]
    tools: tuple[str, ...]
    files: dict[str, str]
    seconds: float


def missing(name: str = DEFAULT_MODEL) -> str:
    """Return the reason why the model cannot run here, or an empty string."""
    if (refusal := missing_requirement()) is not None:
        return refusal.user_text
    is_here = WeightsCache.find(os.environ).has(find_weights(name))
    return "" if is_here else f"the weights of {name} are not cached"


def load_cases(path: Path = CASES) -> list[Case]:
    return msgspec.json.decode(path.read_bytes(), type=list[Case])


class _Chats:
    """The chats of one gateway, each with one case."""

    def __init__(self, client: aiohttp.ClientSession, url: str, folder: Callable[[str], Path]) -> None:
        self._client = client
        self._url = url
        self._folder = folder

    async def run(self, case: Case) -> Outcome:
        folder, began = self._folder(case.id), time.perf_counter()
        for name, text in case.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, "utf-8")
        uploads = [await self._upload(name, text) for name, text in case.attach.items()]
        replies, tools = list[str](), list[str]()
        for message in case.messages:
            turn = await self._say(case.id, message, uploads)
            uploads = []
            replies.append(turn["reply"] or json.dumps(turn["error"]))
            tools += [
                f"{step['name']} ({step['outcome']})" for step in turn["steps"] if step["kind"] == "tool"
            ]
        found = [path for path in folder.rglob("*") if path.is_file() and "inbox" not in path.parts]
        files = {str(path.relative_to(folder)): path.read_text("utf-8", "replace") for path in sorted(found)}
        return Outcome(case.id, tuple(replies), tuple(tools), files, time.perf_counter() - began)

    async def _upload(self, name: str, text: str) -> str:
        async with self._client.post(
            f"{self._url}/api/files", params={"name": name}, data=text.encode()
        ) as sent:
            return str((await sent.json())["id"])

    async def _say(self, name: str, text: str, files: list[str]) -> dict[str, Any]:
        path = f"{self._url}/api/sessions/{name}/messages?wait={_SECONDS}"
        async with self._client.post(path, json={"text": text, "files": files}) as answered:
            turn: dict[str, Any] = await answered.json()
            return turn


@asynccontextmanager
async def _open_chats(model: str) -> AsyncIterator[_Chats]:
    tables = {"model": {"provider": LOCAL, "name": model}, "http": {"port": 0}}
    settings = msgspec.convert(tables, settings_type(PARTS))
    environ = {**os.environ, "TALARIA_HTTP_TOKEN": _TOKEN}
    headers, timeout = {"Authorization": f"Bearer {_TOKEN}"}, aiohttp.ClientTimeout(_SECONDS)
    with tempfile.TemporaryDirectory() as home:
        async with (
            open_gateway(Home(Path(home)), Loaded(settings, (), None), environ) as gateway,
            open_http(gateway, settings.of(HTTP)) as channel,
            aiohttp.ClientSession(headers=headers, timeout=timeout) as client,
        ):
            yield _Chats(
                client, channel.server.address, lambda name: gateway.chat_folder(ChatKey(f"{_CHATS}{name}"))
            )


async def evaluate(
    model: str = DEFAULT_MODEL, path: Path = CASES, tell: Callable[[str], None] = lambda line: None
) -> list[Outcome]:
    outcomes = []
    async with _open_chats(model) as chats:
        for case in load_cases(path):
            outcome = await chats.run(case)
            outcomes.append(outcome)
            tell(_shown(case, outcome))
    return outcomes


def _shown(case: Case, outcome: Outcome) -> str:
    lines = [f"== {case.id} ({outcome.seconds:.1f} s): {case.rubric}"]
    for message, reply in zip(case.messages, outcome.replies, strict=True):
        lines += [f"> {message}", reply]
    lines += [f"* {tool}" for tool in outcome.tools]
    lines += [f"* {name}: {text!r}" for name, text in outcome.files.items() if case.files.get(name) != text]
    return "\n".join(lines)


if __name__ == "__main__":
    asyncio.run(
        evaluate(
            sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL,
            Path(sys.argv[2]) if len(sys.argv) > 2 else CASES,
            lambda text: print(text, flush=True),
        )
    )
