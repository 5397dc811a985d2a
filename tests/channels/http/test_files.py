"""Attachments over HTTP: uploaded, named by a message, and what the model gets of them."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from channels.http.test_roles import add_token, bearer
from support.gateway import TOKEN, Api, in_process
from support.pictures import png
from support.waiting import until
from talaria.core.ids import ChatKey
from talaria.models.discovery import ModelList
from talaria.models.known import Abilities
from talaria.testing.clock import FakeClock
from talaria.testing.model_server import ModelServer
from talaria.workspace.folder import Folder, chat_folder
from talaria.workspace.uploads import FOLDER, KEPT_SECONDS, Uploads, clean_name, place_file

PHOTO = png(8, 8)
URL = "data:image/png;base64," + base64.b64encode(PHOTO).decode()
WIRES = {"openai-chat": "messages", "openai-responses": "input", "anthropic-messages": "messages"}


async def upload(api: Api, data: bytes, name: str, media_type: str = "") -> Any:
    headers = {"Content-Type": media_type} if media_type else {}
    async with api.client.post(
        f"{api.url}/api/files", params={"name": name}, data=data, headers=headers
    ) as response:
        assert response.status == 201, await response.text()
        return await response.json()


async def send(api: Api, name: str, text: str, *files: str, **more: Any) -> Any:
    body = {"text": text, "files": list(files)}
    return await api.post(f"/api/sessions/{name}/messages?wait=30", body, **more)


def last_user(body: bytes, wire: str = "openai-chat") -> Any:
    """What the last user message of a request says, as the wire format has it."""
    items = msgspec.json.decode(body)[WIRES[wire]]
    return [item for item in items if item.get("role") == "user"][-1]["content"]


def with_api(model: ModelServer, wire: str, **abilities: Any) -> dict[str, Any]:
    return {
        "model": {"provider": "mine", "name": "m"},
        "providers": {"mine": {"base_url": model.base_url, "api": wire, "api_key": "k"}},
        "models": {"mine/m": abilities, "mine/seer": {"images": True}},
    }


async def test_an_upload_belongs_to_its_caller_and_to_operators(tmp_path: Path) -> None:
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        mine, other, reader, operator = [
            bearer(await add_token(api, f"t-{n}", role))
            for n, role in enumerate(("chat", "chat", "read", "operate"))
        ]
        url = f"{api.url}/api/files"
        async with api.client.post(url, params={"name": "a.txt"}, data=b"secret", headers=mine) as response:
            told = await response.json()
        statuses = {}
        for name, headers in (("mine", mine), ("other", other), ("reader", reader), ("operator", operator)):
            async with api.client.get(f"{url}/{told['id']}", headers=headers) as response:
                statuses[name] = response.status
        assert statuses == {"mine": 200, "other": 404, "reader": 404, "operator": 200}
        await send(api, "one", "read it", told["id"], status=404, headers=other)
        assert not list((tmp_path / "files").glob("*/a.txt")), "naming it in a message copies it to nobody"
        await send(api, "one", "read it", told["id"], headers=mine)
        assert "at a.txt" in str(last_user(model.bodies[-1]))


async def test_an_upload_is_told_and_can_be_fetched_but_never_run(tmp_path: Path) -> None:
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        told = await upload(api, PHOTO, "../../ünder.png", "text/html")
        assert (told["name"], told["size"], told["media_type"]) == ("ünder.png", len(PHOTO), "image/png")
        async with api.client.get(f"{api.url}/api/files/{told['id']}") as response:
            assert await response.read() == PHOTO
            assert response.headers["Content-Type"] == "image/png"
            assert response.headers["Content-Disposition"].startswith("attachment;")
            assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("name", "told", "media_type"),
    [
        ("a.txt", "", "text/plain"),
        ("a.txt", "application/x-www-form-urlencoded", "text/plain"),
        ("a.bin", "text/csv; charset=utf-8", "text/csv"),
        ("a.zzzz", "nonsense", "application/octet-stream"),
        ("fake.png", "", "image/png"),
    ],
)
async def test_the_type_comes_from_the_bytes_the_caller_or_the_name(
    api: Api, name: str, told: str, media_type: str
) -> None:
    assert (await upload(api, b"a,b", name, told))["media_type"] == media_type


async def test_a_file_without_a_length_is_cut_off_at_the_limit_and_leaves_nothing(tmp_path: Path) -> None:
    async def endless() -> Any:
        for _ in range(100):
            yield b"x" * 1000

    async with ModelServer() as model, in_process(tmp_path, model, max_file=5000) as api:
        async with api.client.post(f"{api.url}/api/files", data=endless()) as response:
            assert response.status == 413
        assert not list((tmp_path / "files" / FOLDER).iterdir())


@pytest.mark.parametrize("wire", WIRES)
async def test_a_model_that_sees_is_shown_the_picture_in_every_format(tmp_path: Path, wire: str) -> None:
    async with (
        ModelServer() as model,
        in_process(tmp_path, model, tables=with_api(model, wire, images=True)) as api,
    ):
        told = await upload(api, PHOTO, "photo.png")
        turn = await send(api, "one", "What is this?", told["id"])
        assert turn["state"] == "done", turn
        text, *_, picture = last_user(model.bodies[-1], wire)
        assert "What is this?" in text["text"]
        shapes: dict[str, dict[str, Any]] = {
            "openai-chat": {"type": "image_url", "image_url": {"url": URL}},
            "openai-responses": {"type": "input_image", "image_url": URL, "detail": "auto"},
            "anthropic-messages": {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": URL.partition(",")[2]},
            },
        }
        assert {key: picture[key] for key in shapes[wire]} == shapes[wire]


@pytest.mark.parametrize("wire", WIRES)
async def test_a_model_that_does_not_see_gets_a_note_until_another_does(tmp_path: Path, wire: str) -> None:
    async with ModelServer() as model, in_process(tmp_path, model, tables=with_api(model, wire)) as api:
        told = await upload(api, PHOTO, "photo.png")
        await send(api, "one", "What is this?", told["id"])
        first = model.bodies[-1]
        note = f"[image photo.png, {len(PHOTO)} B: this model cannot see images]"
        assert note in str(last_user(first, wire))
        assert b"base64" not in first
        await api.say("one", "go on")
        assert b"base64" not in model.bodies[-1]
        await api.say("one", "/model mine/seer")
        await api.say("one", "and now?")
        assert URL.partition(",")[2].encode() in model.bodies[-1]


async def test_the_file_lies_in_the_chats_folder_where_its_tools_find_it(tmp_path: Path) -> None:
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        told = await upload(api, b"secret word: swordfish", "notes.txt")
        turn = await send(api, "one", '[[call read_file {"path": "notes.txt"}]]', told["id"])
        assert turn["state"] == "done", turn
        assert "[file notes.txt (text/plain, 22 bytes) at notes.txt]" in str(model.bodies[0])
        assert b"swordfish" in model.bodies[-1]


async def test_a_second_file_with_the_same_name_gets_another_which_the_model_is_told(tmp_path: Path) -> None:
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        first = await upload(api, b"one", "notes.txt")
        await send(api, "one", "hello", first["id"])
        other = await upload(api, b"two", "notes.txt")
        await send(api, "one", "hello", other["id"])
        assert "[file notes.txt (text/plain, 3 bytes) at notes-2.txt]" in last_user(model.bodies[-1])
        same = await upload(api, b"two", "notes.txt")
        await send(api, "one", "hello", same["id"])
        assert "at notes-2.txt]" in last_user(model.bodies[-1]), "the same file is no second one"
        folder = chat_folder(tmp_path, ChatKey("agent:main:http:api:one"))
        kept = {path.name: path.read_bytes() for path in folder.glob("*.txt")}
        assert kept == {"notes.txt": b"one", "notes-2.txt": b"two"}


async def test_a_message_sent_again_names_the_same_file_whatever_became_of_it(tmp_path: Path) -> None:
    write = '[[call write_file {"path": "notes.txt", "content": "changed"}]][[reply done]]'
    key = {"headers": {"Idempotency-Key": "k"}}
    async with ModelServer() as model:
        async with in_process(tmp_path, model) as api:
            told = await upload(api, b"one", "notes.txt")
            first = await send(api, "one", write, told["id"], **key)
        async with in_process(tmp_path, model) as api:
            assert (await send(api, "one", write, told["id"], **key))["id"] == first["id"]
        folder = chat_folder(tmp_path, ChatKey("agent:main:http:api:one"))
        assert {path.name: path.read_bytes() for path in folder.glob("*.txt")} == {"notes.txt": b"changed"}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("report.pdf", "report.pdf"),
        ("../../etc/passwd", "passwd"),
        ("C:\\temp\\a.txt", "a.txt"),
        (".hidden", "hidden"),
        ("~root", "root"),
        ("--rf", "rf"),
        (". .~x", "x"),
        ("..", "file"),
        ("", "file"),
        ("a\nb\x00c", "a_b_c"),
        ("gpj.\u202eexe", "gpj._exe"),
        ("ü" * 200 + ".txt", "ü" * 58 + ".txt"),
        ("a~." + "b" * 118, "b" * 118),
    ],
)
def test_names_are_made_harmless(given: str, kept: str) -> None:
    assert clean_name(given) == kept


def test_a_folder_or_a_link_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "chat" / "src").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "chat" / "a.tar.gz").symlink_to(tmp_path / "secret")
    folder = Folder(tmp_path / "chat")
    assert place_file(folder, "src", b"x") == "src-2"
    assert place_file(folder, "a.tar.gz", b"secret") == "a.tar-2.gz"
    assert (tmp_path / "secret").read_bytes() == b"secret"


async def test_a_session_without_tools_gets_small_texts_and_is_told_of_other_files(
    tmp_path: Path,
) -> None:
    tables: dict[str, Any] = {"tools": {"enabled": []}}
    async with ModelServer() as model, in_process(tmp_path, model, tables=tables) as api:
        for data, note in [
            (b"\0", "[file notes.txt (text/plain, 1 B): there is no tool here to open it with]"),
            (
                b"x" * 4_001,
                "[The attached file notes.txt has 3.9 KiB; there is no tool here to read the rest with. "
                f"It begins:]\n{'x' * 2000}",
            ),
            ("Grüße".encode(), "[The attached file notes.txt says:]\nGrüße"),
        ]:
            told = await upload(api, data, "notes.txt")
            await send(api, "one", "Read it.", told["id"])
            assert note in last_user(model.bodies[-1])


async def test_files_alone_are_a_message_and_a_repeated_one_is_the_same_turn(tmp_path: Path) -> None:
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        told = await upload(api, PHOTO, "photo.png")
        key = {"headers": {"Idempotency-Key": "k"}}
        first = await send(api, "one", "", told["id"], **key)
        again = await send(api, "one", "", told["id"], **key)
        assert first["id"] == again["id"]
        assert len(model.bodies) == 1


async def test_uploads_are_forgotten_after_a_day_and_what_was_sent_stays(tmp_path: Path) -> None:
    clock = FakeClock()
    uploads = Uploads(tmp_path / "files", lambda key: chat_folder(tmp_path, key), clock)

    async def pieces() -> Any:
        yield b"hi"

    key = ChatKey("agent:main:http:api:one")
    old = await uploads.receive("a.txt", "", pieces(), 1000)
    await uploads.parts(key, [old.id])
    clock.advance(KEPT_SECONDS - 1)
    new = await uploads.receive("b.txt", "", pieces(), 1000)
    assert uploads.forget() == 0
    clock.advance(2)
    assert uploads.forget() == 1
    assert {path.name for path in (tmp_path / "files" / FOLDER).iterdir()} == {new.id, f"{new.id}.json"}
    assert [path.read_bytes() for path in chat_folder(tmp_path, key).glob("*.txt")] == [b"hi"]


async def test_what_endpoints_listed_before_the_start_is_offered_and_believed(tmp_path: Path) -> None:
    async with ModelServer() as model:
        listed = {"mine": ModelList(model.base_url, 1.0, {"m": Abilities(images=True), "other": Abilities()})}
        (tmp_path / "models.json").write_bytes(msgspec.json.encode(listed))
        async with in_process(tmp_path, model, tables=with_api(model, "openai-chat")) as api:
            offered = [found["id"] for found in (await api.get("/v1/models"))["data"]]
            assert offered == ["main", "mine/m", "fast", "mine/other"]
            told = await upload(api, PHOTO, "photo.png")
            await send(api, "one", "What is this?", told["id"])
            assert b"image_url" in model.bodies[-1]


@pytest.mark.parametrize(
    ("name", "told", "served"),
    [
        ("a.js", "text/javascript", "application/octet-stream"),
        ("a.mjs", "", "application/octet-stream"),
        ("a.html", "text/html", "application/octet-stream"),
        ("a.svg", "image/svg+xml", "application/octet-stream"),
        ("a.css", "text/css", "application/octet-stream"),
        ("a.xhtml", "application/xhtml+xml", "application/octet-stream"),
        ("a.csv", "text/csv", "text/csv"),
    ],
)
async def test_no_type_that_a_browser_could_run_is_told(api: Api, name: str, told: str, served: str) -> None:
    sent = await upload(api, b"data", name, told)
    async with api.client.get(f"{api.url}/api/files/{sent['id']}") as response:
        headers = response.headers
    assert headers["Content-Type"] == served
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Disposition"].startswith("attachment;")
    assert headers["Content-Security-Policy"].startswith("sandbox;")
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


async def test_uploads_beside_broken_ones_arrive_and_broken_ones_leave_nothing(
    api: Api, tmp_path: Path
) -> None:
    host, _, port = api.url.removeprefix("http://").partition(":")
    head = (
        f"POST /api/files HTTP/1.1\r\nHost: {host}:{port}\r\n"
        f"Authorization: Bearer {TOKEN}\r\nContent-Length: 100000\r\n\r\n"
    ).encode()

    async def break_off(after: int) -> None:
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(head + bytes(after))
        await writer.drain()
        writer.transport.abort()

    folder = tmp_path / "home" / "files" / FOLDER
    uploads = [upload(api, b"whole", f"{n}.txt") for n in range(20)]
    done = await asyncio.gather(*uploads, *(break_off(n * 5000) for n in range(20)))
    whole = {each["id"] for each in done[:20]}
    await until(lambda: {path.name.partition(".")[0] for path in folder.iterdir()} == whole)
