"""What `talaria doctor` prints behind a $ mends what it found: planted, pasted into a shell, looked at again.

Where only a person can know the answer (a key, an address, a price), the test types it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from cli.conftest import DEADLINE
from talaria.cli.main import main
from talaria.testing.telegram_server import TOKEN

Findings = list[dict[str, str]]
OTHER_KEY = '[providers.x]\nbase_url = "http://127.0.0.1:9/v1"\napi_key = "k"\n'
LOST = 'fallback = [{ provider = "gone", name = "m" }]'
KEY, MODEL = "sk-right-0123456789", "good-1"


@dataclass
class World:
    """A home with a model that works, and what a plant may need to break it."""

    home: Path
    model_url: str
    bot_url: str
    scope: ExitStack
    env: dict[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.home / "config.toml"

    def add(self, text: str) -> None:
        self.config.write_text(self.config.read_text() + "\n" + text)

    def change(self, old: str, new: str) -> None:
        text = self.config.read_text()
        assert old in text
        self.config.write_text(text.replace(old, new))

    def take_port(self, port: int = 0) -> int:
        """One that is in use, by us or by somebody else already."""
        taken = self.scope.enter_context(socket.socket())
        with suppress(OSError):
            taken.bind(("127.0.0.1", port))
            taken.listen()
            return int(taken.getsockname()[1])
        return port


@dataclass(frozen=True)
class Case:
    """`finding` and `says` name what doctor must find; `typed` is what a person answers."""

    finding: str
    says: str
    plant: Callable[[World], object]
    typed: Callable[[World], str] = lambda world: ""
    calls: bool = False

    def pick(self, findings: Findings) -> dict[str, str] | None:
        fitting = (each for each in findings if each["name"] == self.finding and self.says in each["text"])
        return next(fitting, None)


def telegram(world: World, line: str) -> None:
    world.add(f'[channels.telegram]\napi_url = "{world.bot_url}"\n{line}\n')


def token_file(world: World, text: str, mode: int = 0o600) -> None:
    path = world.home / "http.token"
    path.write_text(text)
    path.chmod(mode)


def secret_file(world: World, name: str, line: str = "") -> None:
    (world.home / name).write_text(f"{TOKEN}\n")
    (world.home / name).chmod(0o644)
    if line:
        telegram(world, line)


def database(world: World, *orders: str) -> None:
    connection = sqlite3.connect(world.home / "talaria.db")
    for order in ("CREATE TABLE t (x)", *orders):
        connection.execute(order)
    connection.commit()
    connection.close()


def stuck_process(world: World) -> None:
    """Holds the lock and says nowhere where it is."""
    lock = world.home / "talaria.lock"
    code = (
        "import fcntl, os, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); "
        "f.write(str(os.getpid())); f.flush(); print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"

    def gone() -> None:
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE)
        assert process.stdout is not None
        process.stdout.close()

    world.scope.callback(gone)


def to_file(path: Path) -> None:
    if path.is_dir():
        for inner in path.iterdir():
            inner.unlink()
        path.rmdir()
    path.write_text("a file\n")


def _make_config_a_folder(world: World) -> None:
    world.config.unlink()
    world.config.mkdir()


def _open_a_secret(world: World) -> None:
    world.add(OTHER_KEY)
    world.config.chmod(0o644)


CASES: dict[str, Case] = {
    # files
    "home open": Case("home", "open to other users", lambda w: w.home.chmod(0o755)),
    "home is a file": Case("home", "is a file", lambda w: to_file(w.home)),
    "files is a file": Case("home", "a folder is needed", lambda w: to_file(w.home / "files")),
    "logs is a file": Case("home", "a folder is needed", lambda w: to_file(w.home / "logs")),
    "token open": Case("token", "open to other users", lambda w: token_file(w, "x" * 40, 0o644)),
    "token short": Case("token", "has 5 characters", lambda w: token_file(w, "short")),
    "token with spaces": Case("token", "spaces", lambda w: token_file(w, "two words, that is wrong")),
    "token variable short": Case(
        "token", "TALARIA_HTTP_TOKEN", lambda w: w.env.update(TALARIA_HTTP_TOKEN="short")
    ),
    "bot token file open": Case(
        "secrets",
        "bot.token holds a secret",
        lambda w: secret_file(w, "bot.token", 'token_file = "bot.token"'),
    ),
    "service variables open": Case(
        "secrets", "service.env holds a secret", lambda w: secret_file(w, "service.env")
    ),
    "database garbage": Case(
        "store", "talaria.db", lambda w: (w.home / "talaria.db").write_bytes(b"no database at all " * 99)
    ),
    "database of another program": Case("store", "of another program", database),
    "database from the future": Case(
        "store",
        "newer Talaria",
        lambda w: database(w, "PRAGMA application_id = 1413565505", "PRAGMA user_version = 9999"),
    ),
    "a stuck process": Case("gateway", "says nowhere where it is", stuck_process),
    # config.toml
    "unknown key": Case("config", "pool.max_agent is not", lambda w: w.add("[pool]\nmax_agent = 7\n")),
    "unknown key far": Case("config", "pool.colour", lambda w: w.add('[pool]\ncolour = "red"\n')),
    "unknown table": Case("config", "colours is not", lambda w: w.add('[colours]\nsky = "blue"\n')),
    "wrong number": Case("config", 'is "lots"', lambda w: w.add('[pool]\nmax_agents = "lots"\n')),
    "wrong choice": Case("config", 'is "hurry"', lambda w: w.add('[sessions]\nbusy = "hurry"\n')),
    "wrong duration": Case("config", 'is "soon"', lambda w: w.add('[pool]\nidle_ttl = "soon"\n')),
    "wrong zone": Case("config", "agent.timezone", lambda w: w.add('[agent]\ntimezone = "Europe/Berln"\n')),
    "wrong family": Case("config", "tools.enabled", lambda w: w.add('[tools]\nenabled = ["filez"]\n')),
    "table to come": Case(
        "config", "mcp is not in this version", lambda w: w.add("[mcp.servers.x]\na = 1\n")
    ),
    "not TOML": Case("config", "not valid TOML", lambda w: w.add("[pool\n")),
    "not UTF-8": Case(
        "config", "not valid UTF-8", lambda w: w.config.write_bytes(w.config.read_bytes() + b"# caf\xe9\n")
    ),
    "config is a folder": Case("config", "cannot be read", _make_config_a_folder),
    "secret open": Case("config", "holds a secret", _open_a_secret),
    "variable wrong": Case(
        "config", "TALARIA_POOL__MAX_AGENTS", lambda w: w.env.update(TALARIA_POOL__MAX_AGENTS="x")
    ),
    "variable unknown": Case(
        "config", "TALARIA_POOL__COLOUR", lambda w: w.env.update(TALARIA_POOL__COLOUR="x")
    ),
    # models
    "provider misspelt": Case(
        "config", 'model.provider is "mina"', lambda w: w.change('provider = "mine"', 'provider = "mina"')
    ),
    "no model name": Case(
        "config", "model.name is missing", lambda w: w.change('name = "good-1"', ""), lambda w: f"{MODEL}\n"
    ),
    "no address": Case(
        "config",
        "base_url is missing",
        lambda w: w.change("base_url", "# base_url"),
        lambda w: f"{w.model_url}\n{MODEL}\n",
    ),
    "wrong address": Case(
        "config",
        "base_url is",
        lambda w: w.change('base_url = "http', 'base_url = "htp'),
        lambda w: f"{w.model_url}\n",
    ),
    "key not set": Case(
        "config", "MY_KEY, which is not set", lambda w: w.env.update(MY_KEY=""), lambda w: f"{KEY}\n"
    ),
    "server not there": Case(
        "endpoint",
        "cannot be reached",
        lambda w: w.change(w.model_url, "http://127.0.0.1:9/v1"),
        lambda w: f"{w.model_url}\n",
    ),
    "key refused": Case(
        "call",
        "did not accept the key",
        lambda w: w.env.update(MY_KEY="sk-wrong"),
        lambda w: f"{KEY}\ny\n{MODEL}\n",
        calls=True,
    ),
    "model refused": Case(
        "call",
        "does not know this model",
        lambda w: w.change('name = "good-1"', 'name = "bad-1"'),
        lambda w: f"{MODEL}\n",
        calls=True,
    ),
    "alias to nowhere": Case("alias", "is no model", lambda w: w.add('[aliases]\nfast = "nobody"\n')),
    "fallback to nowhere": Case(
        "config", "model.fallback names", lambda w: w.change("[model]", f"[model]\n{LOST}")
    ),
    "cap without a price": Case(
        "config",
        "budgets caps spending",
        lambda w: w.add("[budgets]\nper_day_usd = 1\n"),
        lambda w: "{ input = 0, output = 0 }\n",
    ),
    "half a price": Case(
        "config",
        "output is missing",
        lambda w: w.add('[prices."mine/x"]\ninput = 1\n'),
        lambda w: "{ input = 1, output = 2 }\n",
    ),
    # http
    "port taken": Case(
        "port", "is in use by another process", lambda w: w.add(f"[http]\nport = {w.take_port()}\n")
    ),
    "port of a variable taken": Case(
        "port", "is in use by another process", lambda w: w.env.update(TALARIA_HTTP__PORT=str(w.take_port()))
    ),
    "default port taken": Case("port", "Port 8765 is in use", lambda w: w.take_port(8765)),
    "host for everyone": Case(
        "port", "other machines can reach", lambda w: w.add('[http]\nhost = "0.0.0.0"\n')
    ),
    "host of another machine": Case(
        "port",
        "Cannot listen on",
        lambda w: w.add('[http]\nhost = "198.51.100.7"\nhosts = ["x.example:80"]\n'),
    ),
    # telegram
    "bot token not set": Case(
        "config",
        "BOT_TOKEN, which is not set",
        lambda w: telegram(w, 'token_env = "BOT_TOKEN"'),
        lambda w: f"{TOKEN}\n",
    ),
    "bot token refused": Case(
        "telegram",
        "does not accept the token",
        lambda w: telegram(w, 'token = "1:wrong"'),
        lambda w: f"{TOKEN}\n",
    ),
    "bot token file gone": Case(
        "telegram", "cannot be read", lambda w: telegram(w, 'token_file = "gone"'), lambda w: f"{TOKEN}\n"
    ),
    "webhook without address": Case(
        "config", "webhook_url", lambda w: telegram(w, f'token = "{TOKEN}"\nmode = "webhook"')
    ),
}


def serve(*command: str) -> Iterator[str]:
    with subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline()
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def strict_url() -> Iterator[str]:
    for line in serve("talaria.testing.model_server", "--port", "0", "--key", KEY, "--model", MODEL):
        yield line.split("; ")[0].removeprefix("Scripted model at ")


@pytest.fixture(scope="module")
def bot_url() -> Iterator[str]:
    for line in serve("talaria.testing.telegram_server", "--port", "0"):
        yield next(word.rstrip(";,.") for word in line.split() if word.startswith("http"))


@pytest.fixture
def world(tmp_path: Path, strict_url: str, bot_url: str) -> Iterator[World]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    config = (
        f'# mine\n[model]\nprovider = "mine"\nname = "{MODEL}"\n'
        f'[providers.mine]\nbase_url = "{strict_url}"\napi_key_env = "MY_KEY"\n'
    )
    (home / "config.toml").write_text(config)
    with ExitStack() as scope:
        kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("TALARIA_")}
        path = f"{Path(sys.prefix) / 'bin'}:{kept['PATH']}"
        env = {**kept, "PATH": path, "HOME": str(tmp_path), "MY_KEY": KEY, "EDITOR": "sed -i /^.pool$/d"}
        yield World(home, strict_url, bot_url, scope, env)


def examine(world: World, env: dict[str, str], calls: bool, capsys: pytest.CaptureFixture[str]) -> Findings:
    with pytest.MonkeyPatch.context() as patch:
        for name in set(os.environ) - set(env):
            patch.delenv(name)
        for name, value in env.items():
            patch.setenv(name, value)
        main(["doctor", "--json", "--home", str(world.home), *(["--call"] if calls else [])])
    found: Findings = msgspec.json.decode(capsys.readouterr().out)["findings"]
    return [finding for finding in found if finding["level"] != "ok"]


def test_there_are_at_least_thirty() -> None:
    assert len(CASES) >= 30


def test_the_home_they_are_planted_in_is_good(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert [each for each in examine(world, world.env, True, capsys) if each["name"] != "port"] == []


@pytest.mark.parametrize("name", CASES)
def test_a_planted_problem_is_found_and_its_printed_fix_works(
    name: str, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    case.plant(world)
    found = examine(world, world.env, case.calls, capsys)
    finding = next(
        (each for each in found if each["name"] == case.finding and case.says in each["text"]), None
    )
    assert finding is not None, found
    assert finding["command"], finding
    after = world.home.parent / "environment"
    done = subprocess.run(
        ["bash", "-c", f'{finding["command"]}\nstatus=$?\nenv -0 > "$0"\nexit $status', str(after)],
        env=world.env, input=case.typed(world), capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (finding["command"], done.stdout, done.stderr)
    env = dict(line.split("=", 1) for line in after.read_text().split("\0") if line)
    left = examine(world, env, case.calls, capsys)
    assert case.pick(left) is None
    # A home without its file has no model any more; that is another problem, with a fix of its own.
    others = {"model"} if not world.config.is_file() else set()
    assert not [each for each in left if each["level"] == "problem" and each["name"] not in others], left


def test_the_lock_of_a_stuck_process_is_free_again(world: World) -> None:
    """The plant itself: it does hold the lock."""
    stuck_process(world)
    with (world.home / "talaria.lock").open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
