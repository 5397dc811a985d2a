"""Two homes that name one database: one gateway serves it, and other commands still reach it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from support.gateway import without_http
from talaria.core.errors import StoreError, StoreLocked
from talaria.core.ids import ChatAddress
from talaria.core.messages import Text
from talaria.core.turns import Inbound, Sender
from talaria.gateway import Gateway
from talaria.store.settings import find_database, shown_url, usable_url
from talaria.testing.model_server import ModelServer

MESSAGE = Inbound(ChatAddress("main", "http", "api", "one").key(), Sender("u1"), (Text("[[hang]]"),))


@asynccontextmanager
async def serving(home: Path, model: ModelServer, url: str, *, serves: bool = True) -> AsyncIterator[Gateway]:
    home.mkdir(mode=0o700, exist_ok=True)
    environ = {
        "TALARIA_MODEL__PROVIDER": "scripted",
        "TALARIA_PROVIDERS__SCRIPTED__BASE_URL": model.base_url,
        "TALARIA_STORE__URL": url,
        "TALARIA_SHUTDOWN__DEADLINE": "100ms",
    }
    async with without_http(home, environ=environ, serves=serves) as gateway:
        yield gateway


async def test_a_database_in_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "a.db"
    with pytest.raises(StoreError) as refused:
        async with ModelServer() as model, serving(tmp_path / "home", model, f"sqlite:///{path}"):
            pass
    assert f"The database {path} cannot be used" in refused.value.user_text
    assert "[store] url" in refused.value.hint


@pytest.mark.parametrize("name", ["talaria.db", "elsewhere.db"])
async def test_a_second_gateway_on_a_database_is_refused(tmp_path: Path, name: str) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    url = f"sqlite:///{first / name}"
    async with ModelServer() as model, serving(first, model, url) as gateway:
        live = await gateway.turns.submit(MESSAGE)
        await model.until(lambda: model.requests == 1)
        with pytest.raises(StoreLocked, match="take each other's turns"):
            async with serving(second, model, url):
                pass
        async with serving(second, model, url, serves=False) as guest:
            other = msgspec.structs.replace(
                MESSAGE, chat_key=ChatAddress("main", "http", "api", "two").key(), parts=(Text("hello"),)
            )
            assert (await guest.turns.wait(await guest.turns.submit(other))).reply == "You said: hello"
        assert model.requests == 2, "the guest left the turn of the other alone"
        assert not live.settled.done()
        await asyncio.wait_for(gateway.turns.cancel(live), 30)


@pytest.mark.parametrize(
    "url, path",
    [
        ("", "/home/talaria.db"),
        ("sqlite:///srv/t.db", "/srv/t.db"),
        ("sqlite:////srv/t.db", "/srv/t.db"),
        ("sqlite:/srv/t.db", "/srv/t.db"),
        ("sqlite:t.db", "/home/t.db"),
        ("sqlite:./data/t.db", "/home/data/t.db"),
        ("sqlite:///~/t.db", str(Path.home() / "t.db")),
        ("sqlite:~/t.db", str(Path.home() / "t.db")),
    ],
)
def test_url_names_a_file(url: str, path: str) -> None:
    assert usable_url(url) is None
    assert str(find_database(url, Path("/home/talaria.db"))) == path


@pytest.mark.parametrize("url", ["sqlite:", "sqlite:///", "sqlite:////", "sqlite://host/t.db", "t.db"])
def test_url_that_names_no_file_is_refused(url: str) -> None:
    assert usable_url(url) is not None


def test_url_of_a_server_is_refused_if_its_password_would_be_taken_for_something_else() -> None:
    for good in ("u@h/d", "/d?host=/run", "u:a%40%2F:b@h:1,[::1]:2/d?sslmode=require", "h/d"):
        assert usable_url(f"postgresql://{good}") is None, good
    for bad in ("h", "u:a@b@h/d", "u:a/b@h/d", "u:a?b@h/d", "u:a%zb@h/d", "u:a@[::1/d", "u@h/d?password=a"):
        assert usable_url(f"postgresql://{bad}") is not None, bad


def test_url_is_shown_without_its_password() -> None:
    assert shown_url("postgresql://u:a%40b:c@h:1,i:2/d") == "postgresql://u:PASSWORD@h:1,i:2/d"
    for plain in ("", "sqlite:///a:b@c.db", "postgresql://u@h:1/d", "postgresql://h:1/d"):
        assert shown_url(plain) == plain
