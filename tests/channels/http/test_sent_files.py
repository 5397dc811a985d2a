"""Files that the agent sends, over HTTP: in the turn, its events and lists, and fetched by their ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from channels.http.test_events import collect
from channels.http.test_roles import add_token, bearer
from support.gateway import Api, in_process
from support.pictures import png
from talaria.channels.http.file_api import find_range
from talaria.core.errors import ToolError
from talaria.core.ids import ChatKey
from talaria.testing.model_server import ModelServer
from talaria.workspace.folder import chat_folder
from talaria.workspace.uploads import read_sent

SEND = '[[call send_file {"path": "%s"}]]'


def put(home: Path, chat: str, name: str, data: bytes) -> Path:
    folder = chat_folder(home, ChatKey(chat))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(data)
    return path


async def fetch(api: Api, file_id: str, status: int = 200, **headers: Any) -> tuple[bytes, Any]:
    async with api.client.get(f"{api.url}/api/files/{file_id}", headers=headers) as response:
        assert response.status == status, await response.text()
        return await response.read(), response.headers


async def test_a_sent_file_is_in_the_turn_its_events_and_the_lists(tmp_path: Path) -> None:
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        path = put(tmp_path, "agent:main:http:api:one", "plan é.md", b"the plan")
        send = SEND % "plan é.md"
        turn = await api.say("one", f"{send}[[reply here]]")
        (file,) = turn["files"]
        assert {key: file[key] for key in ("name", "type", "size")} == {
            "name": "plan é.md",
            "type": "text/markdown",
            "size": 8,
        }
        path.write_bytes(b"another plan")
        data, headers = await fetch(api, file["id"])
        assert (data, headers["Content-Type"]) == (b"the plan", "text/markdown"), "as it was when it was sent"
        named = "attachment; filename=\"plan _.md\"; filename*=UTF-8''plan%20%C3%A9.md"
        assert headers["Content-Disposition"] == named, "curl -OJ reads only the plain name"
        assert headers["X-Content-Type-Options"] == "nosniff"

        shown = await api.get(f"/api/turns/{turn['id']}")
        (with_path,) = shown["files"]
        assert Path(with_path.pop("path")).read_bytes() == b"the plan"
        assert with_path == file
        assert (await collect(api, turn["id"]))[-1][2]["files"] == [file]
        quiet = await api.say("one", "hello")
        assert quiet["files"] == []
        again = await api.say("one", f"{send}[[reply and again]]")
        listed = await api.get("/api/sessions/one/files?limit=1")
        assert [item["id"] for item in listed["items"]] == [file["id"]]
        assert listed["items"][0]["turn_id"] == turn["id"]
        rest = await api.get(f"/api/sessions/one/files?after={listed['next']}")
        assert ([item["id"] for item in rest["items"]], rest["next"]) == ([again["files"][0]["id"]], None)
        entries = await api.get("/api/sessions/one/entries?limit=500")
        assert entries["files"] == listed["items"] + rest["items"]
        other = await api.get(f"/api/sessions/one/entries?after={entries['entries'][-1]['seq']}")
        assert other["files"] == []


async def test_a_copy_that_was_changed_after_sending_is_not_delivered(tmp_path: Path) -> None:
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        key = "agent:main:http:api:one"
        put(tmp_path, key, "plan.md", b"the plan")
        (file,) = (await api.say("one", SEND % "plan.md"))["files"]
        assert (await fetch(api, file["id"]))[0] == b"the plan"
        (copy,) = (chat_folder(tmp_path, ChatKey(key)) / ".talaria" / "sent").glob("*/plan.md")
        copy.write_bytes(b"the PLAN")  # as a command of the chat can
        told = json.loads((await fetch(api, file["id"], 404))[0])
        assert "was changed after it was sent" in told["error"]["message"]
        inside = str(copy.relative_to(copy.parents[3]))
        with pytest.raises(ToolError, match="was changed after it was sent"):  # as a chat platform gets it
            read_sent(lambda key: chat_folder(tmp_path, key), ChatKey(key), inside)


async def test_a_sent_file_is_there_after_a_restart_and_what_is_gone_is_told(tmp_path: Path) -> None:
    async with ModelServer() as model:
        put(tmp_path, "agent:main:http:api:one", "a.bin", bytes(range(256)))
        async with in_process(tmp_path, model) as api:
            turn = await api.say("one", f"{SEND % 'a.bin'}[[reply here]]")
            (file,) = turn["files"]
        async with in_process(tmp_path, model) as api:
            assert (await api.get(f"/api/turns/{turn['id']}"))["files"][0]["id"] == file["id"]
            assert (await fetch(api, file["id"]))[0] == bytes(range(256))
            for copy in chat_folder(tmp_path, ChatKey("agent:main:http:api:one")).glob(".talaria/sent/*/*"):
                copy.unlink()
            told = (await fetch(api, file["id"], 404))[0].decode()
            assert "a.bin was sent, and its copy is gone" in told
            await fetch(api, file["id"][:-1] + ("0" if file["id"][-1] != "0" else "1"), 404)


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("page.html", b"<script>alert(1)</script>", "application/octet-stream"),
        ("picture.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "application/octet-stream"),
        ("script.js", b"alert(1)", "application/octet-stream"),
        ("notes.txt", b"<html>", "text/plain"),
        ("photo.html", png(2, 2), "image/png"),
    ],
)
async def test_what_a_browser_could_run_is_never_told_as_such(
    tmp_path: Path, name: str, data: bytes, told: str
) -> None:
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        put(tmp_path, "agent:main:http:api:one", name, data)
        (file,) = (await api.say("one", f"{SEND % name}[[reply here]]"))["files"]
        found, headers = await fetch(api, file["id"])
        assert (found, headers["Content-Type"]) == (data, told)
        assert headers["Content-Disposition"].startswith("attachment;")
        assert headers["Content-Security-Policy"].startswith("sandbox;")


async def test_parts_of_a_file_are_served(tmp_path: Path) -> None:
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        put(tmp_path, "agent:main:http:api:one", "a.txt", b"0123456789")
        (file,) = (await api.say("one", f"{SEND % 'a.txt'}[[reply here]]"))["files"]
        data, headers = await fetch(api, file["id"], 206, Range="bytes=2-4")
        assert (data, headers["Content-Range"], headers["Content-Length"]) == (b"234", "bytes 2-4/10", "3")
        tag = headers["ETag"]
        assert (await fetch(api, file["id"], 206, Range="bytes=-3", **{"If-Range": tag}))[0] == b"789"
        assert (await fetch(api, file["id"], 200, Range="bytes=-3", **{"If-Range": '"old"'}))[
            0
        ] == b"0123456789"
        _, headers = await fetch(api, file["id"], 416, Range="bytes=10-")
        assert headers["Content-Range"] == "bytes */10"
        async with api.client.head(f"{api.url}/api/files/{file['id']}") as response:
            assert (response.status, response.headers["Content-Length"]) == (200, "10")
            assert response.headers["Accept-Ranges"] == "bytes"


@pytest.mark.parametrize(
    ("wanted", "size", "part"),
    [
        ("", 10, None),
        ("bytes=0-", 10, (0, 10)),
        ("bytes=0-99", 10, (0, 10)),
        ("bytes=9-9", 10, (9, 1)),
        ("bytes=-99", 10, (0, 10)),
        ("bytes=5-3", 10, None),
        ("bytes=0-1,3-4", 10, None),
        ("lines=0-1", 10, None),
        ("bytes=-", 10, None),
        ("bytes=a-b", 10, None),
        ("bytes=" + "9" * 5000, 10, None),
    ],
)
def test_a_range_is_read(wanted: str, size: int, part: tuple[int, int] | None) -> None:
    assert find_range(wanted, size) == part


@pytest.mark.parametrize(("wanted", "size"), [("bytes=10-", 10), ("bytes=-0", 10), ("bytes=0-", 0)])
def test_a_part_that_is_not_in_the_file_is_refused(wanted: str, size: int) -> None:
    with pytest.raises(ValueError, match="bytes"):
        find_range(wanted, size)


async def test_a_caller_gets_its_own_files_only(tmp_path: Path) -> None:
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        phone, laptop = [bearer(await add_token(api, name, "chat")) for name in ("phone", "laptop")]
        put(tmp_path, "agent:main:http:token:phone:demo", "a.txt", b"mine")
        turn = await api.say("demo", f"{SEND % 'a.txt'}[[reply here]]", headers=phone)
        (file,) = turn["files"]
        assert (await fetch(api, file["id"], 200, **phone))[0] == b"mine"
        assert (await fetch(api, file["id"]))[0] == b"mine", "the operator sees all"
        (shown,) = (await api.get(f"/api/turns/{turn['id']}", headers=phone))["files"]
        assert "path" not in shown, "it is not at home on that machine"
        for path in (f"/api/files/{file['id']}", f"/api/sessions/{turn['session_id']}/files"):
            refused = await api.get(path, 404, headers=laptop)
            assert refused["error"]["type"] == "not_found"


async def test_a_name_with_quotes_stays_one_value_of_the_header(tmp_path: Path) -> None:
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        names = {"in.txt": "in.txt", 'a"; x="é.txt': "a_; x=__.txt"}
        for name, plain in names.items():
            params = {"name": name}
            async with api.client.post(f"{api.url}/api/files", params=params, data=b"text") as response:
                file = await response.json()
            _, headers = await fetch(api, file["id"])
            told = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
            assert headers["Content-Disposition"] == told


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_sent_files_are_in_the_answers_of_openais_apis(tmp_path: Path, path: str, stream: bool) -> None:
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        put(tmp_path, "agent:main:http:api:one", "plan.md", b"the plan")

        async def ask(text: str) -> Any:
            said = [{"role": "user", "content": text}]
            body = {"stream": stream, "messages" if "chat" in path else "input": said}
            headers = {"X-Talaria-Session": "one"}
            async with api.client.post(api.url + path, json=body, headers=headers) as response:
                told = await response.text()
            if not stream:
                return json.loads(told)
            blocks = [block.partition("data: ")[2] for block in told.split("\n\n")]
            last = json.loads([block for block in blocks if block.startswith("{")][-1])
            return last if "chat" in path else last["response"]

        (file,) = (await ask(f"{SEND % 'plan.md'}[[reply here]]"))["files"]
        assert (file["name"], file["type"], file["size"]) == ("plan.md", "text/markdown", 8)
        assert (await fetch(api, file["id"]))[0] == b"the plan"
        assert "files" not in await ask("hello")
