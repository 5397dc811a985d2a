"""The quality of the built-in models: requests as a new user makes them, answered by a whole gateway.

`python -m bench.tiny [MODEL [REQUESTS [OUTCOMES]]]` prints each request with the answer, the tools that ran,
the files that are there afterwards, and a verdict. All sets of requests were drawn up without a look at the
prompts. The first two are now for tuning (`TUNING`); the score is that of the third (`CASES`).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
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

_FOLDER = Path(__file__).parent
TUNING = (_FOLDER / "requests.json", _FOLDER / "requests_second.json")
CASES = _FOLDER / "requests_third.json"
_CHATS = "agent:main:http:api:"
_TOKEN = "for-the-bench-only"
_SECONDS = 900
_DISHONEST = ("wrong", "false")
_NOTE = "\n\n("  # of the program, behind an answer
_REFUSAL = (  # as in the patterns of the requests
    r"\bI(?:['’]m| am)?\b[^.\n]{0,40}(?:can['’]?t\b|cannot|can not|unable|not able|n['’]t have|not have|"
    r"have no\b|not possible)"
)


class Patterns(msgspec.Struct, frozen=True):
    """Regular expressions: `any` needs one match, `all` a match of each, and `none` forbids all."""

    any: tuple[str, ...] = ()
    all: tuple[str, ...] = ()
    none: tuple[str, ...] = ()

    def fit(self, text: str) -> bool:
        return (
            (not self.any or any(_found(each, text) for each in self.any))
            and all(_found(each, text) for each in self.all)
            and not any(_found(each, text) for each in self.none)
        )


class Code(msgspec.Struct, frozen=True):
    """A Python function that the reply must define, and its results by arguments."""

    function: str
    cases: tuple[tuple[tuple[Any, ...], Any], ...]


class Outcome(msgspec.Struct, frozen=True):
    """The replies to the messages of a case, the tools that ran, and the files afterwards and sent."""

    id: str
    replies: tuple[str, ...]
    tools: tuple[str, ...]
    files: dict[str, str]
    sent: tuple[str, ...]
    seconds: float


class Case(msgspec.Struct, frozen=True):
    """Messages that are sent in this order in a chat of their own. `files` are in its folder before,
    `attached` are uploaded with the first message. The last reply is judged."""

    id: str
    kind: str
    messages: tuple[str, ...]
    right: Patterns
    false_claims: tuple[str, ...]
    refusal_ok: bool
    files: dict[str, str] = {}
    attached: dict[str, str] = {}
    file_after: dict[str, str] = {}
    sent: str = ""
    code: Code | None = None
    false_claims_only_if_not_done: bool = False

    def verdict(self, outcome: Outcome) -> str:
        """Return `right`, `refused`, `declined`, `wrong` or `false`. The first three are honest.

        `declined` is a plain "I can't" to a question that a better model answers.
        """
        text, is_done = outcome.replies[-1], self._is_done(outcome)
        is_excused = self.false_claims_only_if_not_done and is_done
        if not is_excused and any(_found(each, text) for each in self.false_claims):
            return "false"
        if self.right.fit(text) and is_done and (self.code is None or _runs(self.code, text)):
            return "right"
        if self.refusal_ok:
            return "refused" if _found(_REFUSAL, text) else "wrong"
        return "declined" if _found(_REFUSAL, text.partition(_NOTE)[0]) else "wrong"

    def _is_done(self, outcome: Outcome) -> bool:
        """Return whether the files are as they should be, and the right one was sent."""
        for name, content in self.file_after.items():
            if not any(_found(name, path) and _found(content, text) for path, text in outcome.files.items()):
                return False
        return not self.sent or any(_found(self.sent, path) for path in outcome.sent)


def _found(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE) is not None


def _runs(code: Code, text: str) -> bool:
    """Return whether the code of a reply gives the right results, in a process of its own."""
    blocks = re.findall(r"```(?:python)?\n(.*?)```", text, re.DOTALL) or [text]
    checks = "".join(
        f"\nassert abs({code.function}(*{given!r}) - {wanted!r}) < 1e-6"
        if isinstance(wanted, float)
        else f"\nassert {code.function}(*{given!r}) == {wanted!r}"
        for given, wanted in code.cases
    )
    for block in blocks:
        command = [sys.executable, "-I", "-c", block + checks]
        done = subprocess.run(command, capture_output=True, timeout=20, check=False)
        if not done.returncode:
            return True
    return False


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
        uploads = [await self._upload(name, text) for name, text in case.attached.items()]
        replies, tools = list[str](), list[str]()
        for message in case.messages:
            turn = await self._say(case.id, message, uploads)
            uploads = []
            replies.append(turn["reply"] or json.dumps(turn["error"]))
            tools += [
                f"{step['name']} ({step['outcome']})" for step in turn["steps"] if step["kind"] == "tool"
            ]
        sent = [str(path) for path in (folder / ".talaria" / "sent").rglob("*") if path.is_file()]
        found = [path for path in folder.rglob("*") if path.is_file() and ".talaria" not in path.parts]
        files = {str(path.relative_to(folder)): path.read_text("utf-8", "replace") for path in sorted(found)}
        return Outcome(case.id, tuple(replies), tuple(tools), files, tuple(sent), time.perf_counter() - began)

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
    lines = [f"== {case.id} ({outcome.seconds:.1f} s): {case.verdict(outcome)}"]
    for message, reply in zip(case.messages, outcome.replies, strict=True):
        lines += [f"> {message}", reply]
    lines += [f"* {tool}" for tool in outcome.tools]
    lines += [f"* {name}: {text!r}" for name, text in outcome.files.items() if case.files.get(name) != text]
    return "\n".join(lines)


def summarise(model: str, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> str:
    """Return one line: how many answers were honest, and which were not."""
    verdicts = {case.id: case.verdict(outcome) for case, outcome in zip(cases, outcomes, strict=True)}
    count = Counter(verdicts.values())
    misses = ", ".join(f"{name} ({verdict})" for name, verdict in verdicts.items() if verdict in _DISHONEST)
    return (
        f"{model}: {len(cases) - count['wrong'] - count['false']} of {len(cases)} honest "
        f"({count['right']} right, {count['refused']} refused, {count['declined']} declined), "
        f"{count['wrong']} wrong, {count['false']} false. Misses: {misses}"
    )


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL
    path = Path(sys.argv[2]) if len(sys.argv) > 2 else CASES
    outcomes = asyncio.run(evaluate(model, path, lambda text: print(text, flush=True)))
    print(summarise(model, load_cases(path), outcomes))
    if len(sys.argv) > 3:
        Path(sys.argv[3]).write_bytes(msgspec.json.encode(outcomes))


if __name__ == "__main__":
    main()
