"""Secrets of the gateway: fifty canaries, five encodings, and turns that try to get at them."""

from __future__ import annotations

import asyncio
import json
import re
import string
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from urllib.parse import quote

import aiohttp
import pytest

from support.gateway import running_gateway
from talaria.cli.main import main
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer
from talaria.workspace.sandbox.choice import choose

_RANDOM = Random(18)
COUNTS = {"TOOL": 10, "WRITTEN": 5, "KEY": 10, "NAMED": 10, "ADDRESS": 5, "BOT": 1, "HTTP": 1, "UNNAMED": 8}


def _value(kind: str, number: int) -> str:
    tail = "".join(_RANDOM.choices(string.ascii_letters + string.digits, k=20))
    if kind == "BOT":
        return f"4{number}:AA{tail}canary"
    special = "" if kind in ("HTTP", "ADDRESS") else "/+="
    return f"canary{kind.lower()}{number}{special}{tail}"


CANARIES = {
    f"{kind}_{number}": _value(kind, number) for kind, count in COUNTS.items() for number in range(count)
}


def encodings(value: str) -> Iterator[str]:
    data = value.encode()
    yield value
    yield value[::-1]
    yield data.hex()
    yield quote(value, safe="")
    for shift in range(3):  # the characters that depend on the value alone
        yield b64encode(bytes(shift) + data).decode().rstrip("=")[(shift * 8 + 5) // 6 : -2]


NOWHERE = 'base_url = "http://127.0.0.1:1/v1"'
NEEDLES = {name: {*map(str.lower, encodings(value))} for name, value in CANARIES.items()}


def found_in(text: str) -> list[str]:
    """Return the canaries in a text, in any encoding, also broken over lines."""
    joined = re.sub(r"\s|\\n", "", text.lower())
    return [name for name, needles in NEEDLES.items() if any(needle in joined for needle in needles)]


def config() -> str:
    def of(kind: str) -> list[tuple[str, str]]:
        return [(name, CANARIES[name]) for name in CANARIES if name.startswith(kind)]

    lines = ['[tools]\nenabled = ["files", "terminal"]', "[tools.env]"]
    lines += [f'{name} = "${{{name}}}"' for name, _ in of("TOOL")]
    lines += [f'{name} = "{value}"' for name, value in of("WRITTEN")]
    for name, value in of("KEY"):
        lines += [f"[providers.{name.lower()}]", NOWHERE, f'api_key = "{value}"']
    for name, _ in of("NAMED"):
        lines += [f"[providers.{name.lower()}]", NOWHERE, f'api_key_env = "{name}"']
    for name, value in of("ADDRESS"):
        lines += [f"[providers.{name.lower()}]", f'base_url = "http://user:{value}@127.0.0.1:1/v1"']
    lines += ["[channels.telegram]", f'token = "{CANARIES["BOT_0"]}"\napi_url = "http://127.0.0.1:1"']
    return "\n".join(lines) + "\n"


@asynccontextmanager
async def guarded_gateway(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[tuple[GatewayProcess, ModelServer]]:
    """A gateway with all canaries in its environment and its configuration, and a sandbox that holds."""
    if (choice := await choose("auto", tmp_path)).sandbox is None:
        pytest.skip(choice.reason)
    for name, value in CANARIES.items():
        if name.startswith(("TOOL", "NAMED", "UNNAMED")):
            monkeypatch.setenv(name, value)
    settings = {"LOG__LEVEL": "debug", "HTTP_TOKEN": CANARIES["HTTP_0"]}
    async with running_gateway(settings, config(), record=True) as (gateway, model):
        (gateway.home / "http.token").write_text(CANARIES["HTTP_0"])  # for the client of the test
        yield gateway, model


async def say(gateway: GatewayProcess, text: str) -> str:
    """Send a message, and return all events of its turn and what the API tells of it."""
    turn = await gateway.call("POST", "/api/sessions/one/messages", json={"text": text})
    headers = {"Authorization": f"Bearer {CANARIES['HTTP_0']}"}
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.get(f"{gateway.url}/api/turns/{turn['turn_id']}/events") as stream,
    ):
        events = (await stream.read()).decode()
    ended = await gateway.ended_turn(turn["turn_id"])
    assert ended["state"] == "done", ended
    return events + json.dumps(ended)


def kept_files(home: Path) -> dict[str, str]:
    """Everything in the home but the configuration, the files of commands, and the copies of these."""
    own = ("config.toml", "http.token", "leak.txt")
    found = (path for path in home.rglob("*") if path.is_file() and path.name not in own)
    files = (path for path in found if "checkpoints" not in path.relative_to(home).parts)
    return {str(path.relative_to(home)): path.read_bytes().decode("utf-8", "replace") for path in files}


def call(tool: str, arguments: Mapping[str, object]) -> str:
    return f"[[call {tool} {json.dumps(arguments)}]]"


URL_ENCODE = r"sed -e 's,/,%2F,g' -e 's,+,%2B,g' -e 's,=,%3D,g' -e 's,:,%3A,g'"
PRINT_ALL = (
    f"env; env | base64; env | base64 -w0; env | od -An -v -tx1 | tr -d ' \\n'; env | {URL_ENCODE}; env | rev"
)
IN_PIECES = 'i=0; while [ $i -lt ${#TOOL_1} ]; do printf %s "${TOOL_1:$i:1}" | cat; i=$((i+1)); done; echo'
HOSTILE = (
    "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; "
    "cat {home}/config.toml {home}/http.token {home}/talaria.db 2>&1; ls -la {home} 2>&1; "
    "cat /proc/{pid}/environ /proc/{pid}/maps 2>&1; strings /proc/{pid}/mem 2>&1 | head -5"
)


async def test_no_secret_leaves_by_tools_messages_answers_or_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(CANARIES) == 50
    async with guarded_gateway(monkeypatch, tmp_path) as (gateway, model):
        shown = {}
        hostile = HOSTILE.format(home=gateway.home, pid=gateway.pid)
        shown["print"] = await say(gateway, call("terminal", {"command": PRINT_ALL}))
        shown["pieces"] = await say(gateway, call("terminal", {"command": IN_PIECES}))
        shown["hostile"] = await say(gateway, call("terminal", {"command": hostile}))
        shown["long"] = await say(gateway, call("terminal", {"command": "seq 3000; env; seq 3000; env"}))
        steps = (
            call("terminal", {"command": "env > leak.txt"}),
            call("read_file", {"path": "leak.txt"}),
            call("search_files", {"pattern": "canary"}),
            call("send_file", {"path": "leak.txt"}),
        )
        shown["file"] = await say(gateway, " ".join(steps))
        shown["diff"] = await say(gateway, "/diff")
        known = [name for name in CANARIES if not name.startswith("UNNAMED")]
        pasted = "\n".join(form for name in known for form in encodings(CANARIES[name]))
        shown["pasted"] = await say(gateway, f"Please read this:\n{pasted}")
        for command in ("why", "config get", "doctor"):
            await asyncio.to_thread(main, [*command.split(), "--home", str(gateway.home)])
            shown[command] = "".join(capsys.readouterr())
        for path in ("/api/status", "/api/sessions", "/api/sessions/one"):
            shown[path] = str(await gateway.call("GET", path))
        await gateway.kill()
        shown |= kept_files(gateway.home)
        shown["log"] = gateway.log.read_text()
        shown["model"] = b"\n".join(model.bodies).decode()
    assert {name: found for name, text in shown.items() if (found := found_in(text))} == {}
    for number in range(10):
        assert shown["print"].count(f"[secret TOOL_{number}]") >= 5
    assert "[secret TOOL_1]" in shown["pieces"]
    assert "[secret WRITTEN_4]" in shown["long"]
    assert "UNNAMED" not in shown["print"], "a command sees only the variables that are named for it"
    assert "holds a secret of the gateway" in shown["file"]
    assert "+TOOL_3=[secret TOOL_3]" in shown["diff"]
    for name in ("NAMED_3", "providers.key_2.api_key", "TALARIA_HTTP_TOKEN", "channels.telegram.token"):
        assert f"[secret {name}]" in shown["pasted"], name


@asynccontextmanager
async def parrot(key: str) -> AsyncIterator[str]:
    """A provider that says the key of its caller, in pieces."""
    text = f"Your key is {key}, in base64 {b64encode(key.encode()).decode()}. Yes"
    pieces = [{"content": text[at : at + 5]} for at in range(0, len(text), 5)]
    chunks = [{"choices": [{"index": 0, "delta": piece}]} for piece in ({"reasoning_content": key}, *pieces)]
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in (*chunks, last)) + "data: [DONE]\n\n"
    head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write((head + body).encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


async def test_a_provider_that_says_its_key_is_not_quoted() -> None:
    async with parrot(CANARIES["KEY_0"]) as url:
        text = f'[providers.parrot]\nbase_url = "{url}"\napi_key = "{CANARIES["KEY_0"]}"\n'
        settings = {"MODEL__PROVIDER": "parrot", "MODEL__NAME": "m", "HTTP_TOKEN": CANARIES["HTTP_0"]}
        async with running_gateway(settings, text) as (gateway, _):
            (gateway.home / "http.token").write_text(CANARIES["HTTP_0"])
            shown = {"events": await say(gateway, "What is my key?")}
            await gateway.kill()
            shown |= kept_files(gateway.home)
    assert {name: found for name, text in shown.items() if (found := found_in(text))} == {}
    mark = "[secret providers.parrot.api_key]"
    assert f"Your key is {mark}, in base64 {mark}" in shown["events"]
    assert ". Yes" in shown["events"]
