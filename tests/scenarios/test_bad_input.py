"""Bad input of every kind: each is answered with what happened and what to do, and nothing is lost by it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from talaria.core.clock import SystemClock
from talaria.core.ids import TurnId
from talaria.store.sqlite.store import SqliteStore

DEADLINE = 30


@dataclass(frozen=True, slots=True)
class Told:
    """An exit code or an HTTP status, and all that a person gets to read."""

    status: int
    text: str


@dataclass(frozen=True, slots=True)
class TwoHomes:
    """A running gateway, and a home whose gateway has stopped; both have answered a message."""

    folder: Path
    environ: dict[str, str]
    running: Path
    resting: Path
    address: str
    turn_id: str

    def talaria(self, *arguments: str, home: Path | None = None) -> Told:
        """A command, to its end. One that starts after all is stopped as soon as it is ready."""
        process = start(self.environ, home or self.resting, *arguments)
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                if (told := process.stdout.readline()).startswith(" Talaria"):
                    process.send_signal(signal.SIGTERM)
                rest, error = process.communicate(timeout=DEADLINE)
            except BaseException:
                process.kill()
                raise
        return Told(process.returncode, told + rest + error)

    def configure(self, text: str) -> Told:
        """`serve` on the resting home with this config."""
        config = self.resting / "config.toml"
        config.write_text(text)
        try:
            return self.talaria("serve", "--port", "0")
        finally:
            config.unlink()

    def call(self, method: str, path: str, body: bytes | None = None) -> Told:
        address = urlsplit(self.address)
        with closing(http.client.HTTPConnection(str(address.hostname), address.port, DEADLINE)) as connection:
            token = (self.running / "http.token").read_text().strip()
            connection.request(method, path, body, {"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            return Told(answer.status, answer.read().decode())

    def say(self, body: bytes, name: str = "kept") -> Told:
        return self.call("POST", f"/api/sessions/{name}/messages?wait={DEADLINE}", body)

    # -- the cases that need more than a line

    def take_port(self) -> Told:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            return self.talaria("serve", "--port", str(taken.getsockname()[1]))

    def put_a_file_in_place_of_the_home(self) -> Told:
        path = self.folder / "file"
        path.touch()
        return self.talaria("serve", home=path)

    def upgrade_database(self) -> Told:
        with closing(sqlite3.connect(self.resting / "talaria.db")) as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            database.execute("PRAGMA user_version = 99")
        try:
            return self.talaria("serve", "--port", "0")
        finally:
            with closing(sqlite3.connect(self.resting / "talaria.db")) as database:
                database.execute(f"PRAGMA user_version = {version}")


def start(environ: dict[str, str], home: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "talaria", *arguments],
        env={**environ, "TALARIA_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def model_url() -> Iterator[str]:
    command = [sys.executable, "-m", "talaria.testing.model_server", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split("; ")[0].removeprefix("Scripted model at ")
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def world(model_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHomes]:
    folder = tmp_path_factory.mktemp("bad-input")
    environ = {name: value for name, value in os.environ.items() if not name.upper().startswith("TALARIA_")}
    environ |= {
        "HOME": str(folder),
        "TALARIA_MODEL__PROVIDER": "scripted",
        "TALARIA_PROVIDERS__SCRIPTED__BASE_URL": model_url,
        "TALARIA_LOG__FORMAT": "text",
    }
    running, resting = folder / "running", folder / "resting"
    with serving(environ, resting) as address:
        earlier = TwoHomes(folder, environ, resting, resting, address, "")
        turn_id = json.loads(earlier.say(b'{"text": "hello"}').text)["id"]
    shutil.copytree(resting, running)
    with serving(environ, running) as address:
        yield TwoHomes(folder, environ, running, resting, address, turn_id)


@contextmanager
def serving(environ: dict[str, str], home: Path) -> Iterator[str]:
    """The address of a gateway, which must end well, without a word of a bug in its log."""
    with start(environ, home, "serve", "--port", "0") as gateway:
        try:
            assert gateway.stdout is not None
            yield gateway.stdout.readline().split()[2].partition("/#")[0]
        finally:
            gateway.send_signal(signal.SIGTERM)
            _, log = gateway.communicate(timeout=DEADLINE)
    assert gateway.returncode == 0
    assert "Traceback" not in log


@dataclass(frozen=True, slots=True)
class Case:
    """`what` says what happened and to which part of the input, `advice` what to do about it."""

    name: str
    act: Callable[[TwoHomes], Told]
    status: int
    what: str
    advice: str


CASES = [
    Case(
        "wrong config value",
        lambda world: world.configure('[pool]\nmax_agents = "lots"\n'),
        1,
        'config.toml line 2: pool.max_agents is "lots": expected a whole number of at least 1.',
        "Correct this in ",
    ),
    Case(
        "unknown key",
        lambda world: world.configure("[pool]\nmax_agent = 3\n"),
        0,
        "config.toml line 2: pool.max_agent",
        "max_agents",
    ),
    Case("port in use", TwoHomes.take_port, 1, "is in use by ", "config set http.port 0` at every start"),
    Case(
        "home is a file",
        TwoHomes.put_a_file_in_place_of_the_home,
        1,
        "file is a file, not a folder.",
        "Name a folder that you can write with --home or TALARIA_HOME.",
    ),
    Case(
        "home in use",
        lambda world: world.talaria("serve", home=world.running),
        1,
        "runs on this home already",
        "stop it (kill ",
    ),
    Case(
        "database of a newer program",
        TwoHomes.upgrade_database,
        1,
        "newer Talaria (schema 99",
        "Upgrade this program",
    ),
    Case(
        "unknown command of the program",
        lambda world: world.talaria("asq"),
        2,
        "There is no command",
        "ask`?",
    ),
    Case(
        "bad session name, in a shell",
        lambda world: world.talaria("ask", "--session", "a b", "hello"),
        2,
        "'a b' is not a session name",
        "use 1 to 128 letters",
    ),
    Case(
        "malformed JSON",
        lambda world: world.say(b'{"text": "hel'),
        400,
        "The body is not valid JSON: it ends too early.",
        "Check it",
    ),
    Case(
        "wrong types",
        lambda world: world.say(b'{"text": 5}'),
        400,
        "In the field `text`: expected `str`, got `int`.",
        "names the fields and their types",
    ),
    Case(
        "too deep JSON",
        lambda world: world.say(b'{"text": "hello", "more": ' + b"[" * 90_000 + b"]" * 90_000 + b"}"),
        400,
        "The body is nested too deeply.",
        "Send a flatter",
    ),
    Case(
        "60 MB body",
        lambda world: world.say(b'{"text": "' + b"x" * 60_000_000 + b'"}'),
        413,
        "The body is larger than 32.0 MiB.",
        "raise http.max_body",
    ),
    Case(
        "unknown session",
        lambda world: world.call("GET", "/api/sessions/nobody"),
        404,
        "There is no session nobody.",
        "`talaria sessions list` lists them.",
    ),
    Case(
        "unknown slash command",
        lambda world: world.say(b'{"text": "/stp"}'),
        200,
        "There is no command /stp in this version.",
        "Did you mean /stop?",
    ),
    Case(
        "bad session name, over HTTP",
        lambda world: world.say(b'{"text": "hello"}', name="a%20b"),
        400,
        "'a b' is not a valid session name.",
        "A name has 1 to 128 of the characters",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.name))
async def test_bad_input_is_explained_and_loses_nothing(case: Case, world: TwoHomes) -> None:
    told = case.act(world)
    assert told.status == case.status, told
    assert case.what in told.text
    assert case.advice in told.text
    assert "Traceback" not in told.text
    if case.status >= 400:
        error = json.loads(told.text)["error"]
        assert set(error) == {"type", "message", "hint"}
        assert all(error.values())
    kept = json.loads(world.call("GET", f"/api/turns/{world.turn_id}").text)
    assert (kept["state"], kept["reply"]) == ("done", "You said: hello")
    async with await SqliteStore.open(world.resting / "talaria.db", SystemClock()) as store:
        record = await store.turn_record(TurnId(world.turn_id))
    assert record is not None
    assert record.turn.reply == "You said: hello"
