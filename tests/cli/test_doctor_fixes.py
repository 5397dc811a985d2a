"""What `talaria doctor` prints behind a $ mends what it found: planted, pasted into a shell, looked at again.

Where only a person can know the answer (a key, an address, a price), the test types it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from cli.conftest import DEADLINE, started
from support.programs import find_program
from talaria.cli.main import main
from talaria.testing.telegram_server import TOKEN

Findings = list[dict[str, str]]
OTHER_KEY = '[providers.x]\nbase_url = "http://127.0.0.1:9/v1"\napi_key = "k"\n'
LOST = 'fallback = [{ provider = "gone", name = "m" }]'
KEY, MODEL = "sk-right-0123456789", "good-1"


@dataclass
class BreakableHome:
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

    def named(self, text: str) -> str:
        return text.replace("MODEL_URL", self.model_url).replace("BOT_URL", self.bot_url)

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
    """`finding` and `says` name what doctor must find. `plant` is added to the file or to the environment, or
    done; in it and in `typed`, which a person answers, MODEL_URL and BOT_URL stand for the servers'."""

    finding: str
    says: str
    plant: str | dict[str, str] | Callable[[BreakableHome], object]
    typed: str = ""
    calls: bool = False

    def put(self, world: BreakableHome) -> None:
        if isinstance(self.plant, str):
            world.add(world.named(self.plant))
        elif isinstance(self.plant, dict):
            world.env |= self.plant
        else:
            self.plant(world)

    def pick(self, findings: Findings) -> dict[str, str] | None:
        fitting = (each for each in findings if each["name"] == self.finding and self.says in each["text"])
        return next(fitting, None)


def replaced(old: str, new: str) -> Callable[[BreakableHome], None]:
    return lambda world: world.change(world.named(old), new)


def secret_file(name: str, text: str, mode: int = 0o644) -> Callable[[BreakableHome], None]:
    def write(world: BreakableHome) -> None:
        (world.home / name).write_text(text)
        (world.home / name).chmod(mode)
        if name == "bot.token":
            world.add(world.named(f'{TELEGRAM}token_file = "bot.token"\n'))

    return write


def database(*orders: str) -> Callable[[BreakableHome], None]:
    def make(world: BreakableHome) -> None:
        with closing(sqlite3.connect(world.home / "talaria.db")) as connection:
            for order in ("CREATE TABLE t (x)", *orders):
                connection.execute(order)
            connection.commit()

    return make


def stuck_process(world: BreakableHome) -> None:
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


def a_file(name: str) -> Callable[[BreakableHome], None]:
    def make(world: BreakableHome) -> None:
        path = world.home / name
        if path.is_dir():
            shutil.rmtree(path)
        path.write_text("a file\n")

    return make


def config_as_folder(world: BreakableHome) -> None:
    world.config.unlink()
    world.config.mkdir()


def other_encoding(world: BreakableHome) -> None:
    world.config.write_bytes(world.config.read_bytes() + b"# caf\xe9\n")


def open_secret(world: BreakableHome) -> None:
    world.add(OTHER_KEY)
    world.config.chmod(0o644)


def take_http_port(world: BreakableHome) -> None:
    world.env["TALARIA_HTTP__PORT"] = str(world.take_port())


TELEGRAM = '[channels.telegram]\napi_url = "BOT_URL"\n'
NEWER = ("PRAGMA application_id = 1413565505", "PRAGMA user_version = 9999")
CASES: dict[str, Case] = {
    # files
    "home open": Case("home", "open to other users", lambda w: w.home.chmod(0o755)),
    "token open": Case("token", "open to other users", secret_file("http.token", "x" * 40)),
    "token short": Case("token", "has 5 characters", secret_file("http.token", "short", 0o600)),
    "token with spaces": Case("token", "spaces", secret_file("http.token", "two words, not one", 0o600)),
    "token variable short": Case("token", "TALARIA_HTTP_TOKEN", {"TALARIA_HTTP_TOKEN": "short"}),
    "bot token file open": Case("secrets", "bot.token holds a secret", secret_file("bot.token", TOKEN)),
    "service variables open": Case("secrets", "service.env holds", secret_file("service.env", "A='b'\n")),
    "database garbage": Case("store", "talaria.db", secret_file("talaria.db", "no database at all " * 99)),
    "database from the future": Case("store", "newer Talaria", database(*NEWER)),
    "a stuck process": Case("gateway", "says nowhere where it is", stuck_process),
    # config.toml
    "unknown key": Case("config", "pool.max_agent is not", "[pool]\nmax_agent = 7\n"),
    "unknown key far": Case("config", "pool.colour", '[pool]\ncolour = "red"\n'),
    "unknown table": Case("config", "colours is not", '[colours]\nsky = "blue"\n'),
    "misspelt table": Case("config", "sesions is not", '[sesions]\nbusy = "queue"\n'),
    "misspelt table of the model": Case("config", "modle is not", replaced("[model]", "[modle]")),
    "wrong number": Case("config", 'is "lots"', '[pool]\nmax_agents = "lots"\n'),
    "wrong choice": Case("config", 'is "hurry"', '[sessions]\nbusy = "hurry"\n'),
    "wrong duration": Case("config", 'is "soon"', '[pool]\nidle_ttl = "soon"\n'),
    "wrong zone": Case("config", "agent.timezone", '[agent]\ntimezone = "Europe/Berln"\n'),
    "wrong family": Case("config", "tools.enabled", '[tools]\nenabled = ["filez"]\n'),
    "unknown key of a part": Case("config", "mcp.colour is not a known key", "[mcp]\ncolour = 1\n"),
    "not TOML": Case("config", "not valid TOML", "[pool\n"),
    "not UTF-8": Case("config", "not valid UTF-8", other_encoding),
    "secret open": Case("config", "holds a secret", open_secret),
    "variable wrong": Case("config", "TALARIA_POOL__MAX_AGENTS", {"TALARIA_POOL__MAX_AGENTS": "x"}),
    "variable unknown": Case("config", "TALARIA_POOL__COLOUR", {"TALARIA_POOL__COLOUR": "x"}),
    # models
    "provider misspelt": Case("config", 'provider is "mina"', replaced('r = "mine"', 'r = "mina"')),
    "key of the model misspelt": Case("config", "providr is not", replaced("provider =", "providr =")),
    "no model name": Case("config", "model.name is missing", replaced('name = "good-1"', ""), f"{MODEL}\n"),
    "no address": Case(
        "config", "base_url is missing", replaced("base_url", "# base_url"), f"MODEL_URL\n{MODEL}\n"
    ),
    "wrong address": Case("config", "base_url is", replaced('url = "http', 'url = "htp'), "MODEL_URL\n"),
    "key not set": Case("config", "MY_KEY, which is not set", {"MY_KEY": ""}, f"{KEY}\n"),
    "server not there": Case(
        "endpoint", "cannot be reached", replaced("MODEL_URL", "http://127.0.0.1:9/v1"), "MODEL_URL\n"
    ),
    "key refused": Case(
        "call", "did not accept the key", {"MY_KEY": "sk-wrong"}, f"{KEY}\n{MODEL}\ny\n", calls=True
    ),
    "model refused": Case(
        "call", "does not know this model", replaced('"good-1"', '"bad-1"'), f"{MODEL}\n", calls=True
    ),
    "alias to nowhere": Case("alias", "is no model", '[aliases]\nfast = "nobody"\n'),
    "fallback to nowhere": Case("config", "model.fallback names", replaced("[model]", f"[model]\n{LOST}")),
    "cap without a price": Case(
        "config", "budgets caps spending", "[budgets]\nper_day_usd = 1\n", "{ input = 0, output = 0 }\n"
    ),
    "half a price": Case(
        "config", "output is missing", '[prices."mine/x"]\ninput = 1\n', "{ input = 1, output = 2 }\n"
    ),
    # http
    "port taken": Case(
        "port", "on 127.0.0.1 is in use by", lambda w: w.add(f"[http]\nport = {w.take_port()}\n")
    ),
    "port of a variable taken": Case("port", "on 127.0.0.1 is in use by", take_http_port),
    "default port taken": Case("port", "Port 8765 is in use", lambda w: w.take_port(8765)),
    "host for everyone": Case("port", "other machines can reach", '[http]\nhost = "0.0.0.0"\n'),
    "host of another machine": Case(
        "port", "Cannot listen on", '[http]\nhost = "198.51.100.7"\nhosts = ["x.example:80"]\n'
    ),
    # telegram
    "bot token not set": Case(
        "config", "BOT_TOKEN, which is not set", f'{TELEGRAM}token_env = "BOT_TOKEN"\n', f"{TOKEN}\n"
    ),
    "bot token refused": Case(
        "telegram", "does not accept the token", f'{TELEGRAM}token = "1:wrong"\n', f"{TOKEN}\n"
    ),
    "bot token file gone": Case(
        "telegram", "cannot be read", f'{TELEGRAM}token_file = "gone"\n', f"{TOKEN}\n"
    ),
    "webhook without address": Case(
        "config", "webhook_url", f'{TELEGRAM}token = "{TOKEN}"\nmode = "webhook"\n'
    ),
}


@pytest.fixture(scope="module")
def strict_url() -> Iterator[str]:
    with started("model_server", "--key", KEY, "--model", MODEL) as url:
        yield url


@pytest.fixture(scope="module")
def bot_url() -> Iterator[str]:
    with started("telegram_server") as url:
        yield url


@pytest.fixture
def world(home: Path, environ: dict[str, str], strict_url: str, bot_url: str) -> Iterator[BreakableHome]:
    (home / "config.toml").write_text(
        f'# mine\n[model]\nprovider = "mine"\nname = "{MODEL}"\n'
        f'[providers.mine]\nbase_url = "{strict_url}"\napi_key_env = "MY_KEY"\n'
    )
    with ExitStack() as scope:
        env = {**environ, "MY_KEY": KEY, "EDITOR": "sed -i /^.pool$/d"}
        yield BreakableHome(home, strict_url, bot_url, scope, env)


def examine(
    world: BreakableHome, env: dict[str, str], calls: bool, capsys: pytest.CaptureFixture[str]
) -> Findings:
    with pytest.MonkeyPatch.context() as patch:
        for name in set(os.environ) - set(env):
            patch.delenv(name)
        for name, value in env.items():
            patch.setenv(name, value)
        main(["doctor", "--json", "--home", str(world.home), *(["--call"] if calls else [])])
    found: Findings = msgspec.json.decode(capsys.readouterr().out)["findings"]
    return [finding for finding in found if finding["level"] != "ok"]


def test_the_home_they_are_planted_in_is_good(
    world: BreakableHome, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = {"port"} if find_program("bwrap") else {"port", "network"}
    assert {each["name"] for each in examine(world, world.env, True, capsys)} <= expected


@pytest.mark.parametrize("name", CASES)
def test_a_planted_problem_is_found_and_its_printed_fix_works(
    name: str, world: BreakableHome, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    case.put(world)
    found = examine(world, world.env, case.calls, capsys)
    finding = case.pick(found)
    assert finding is not None, found
    assert finding["command"], finding
    after = world.home.parent / "environment"
    done = subprocess.run(
        ["bash", "-c", f'{finding["command"]}\nstatus=$?\nenv -0 > "$0"\nexit $status', str(after)],
        env=world.env,
        input=world.named(case.typed),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, (finding["command"], done.stdout, done.stderr)
    env = dict(line.split("=", 1) for line in after.read_text().split("\0") if line)
    left = examine(world, env, case.calls, capsys)
    assert case.pick(left) is None
    # A home without its file has no model any more; that is another problem, with a fix of its own.
    others = {"model"} if not world.config.is_file() else set()
    assert not [each for each in left if each["level"] == "problem" and each["name"] not in others], left


def test_a_misspelt_table_keeps_its_keys(world: BreakableHome, capsys: pytest.CaptureFixture[str]) -> None:
    world.add("[pol]\nmax_agents = 5\n")
    finding = Case("config", "pol is not", "").pick(examine(world, world.env, False, capsys))
    assert finding is not None
    assert " set pool '{max_agents = 5}' && " in finding["command"]
    world.add("[pool]\nmax_agents = 7\n")
    finding = Case("config", "pol is not", "").pick(examine(world, world.env, False, capsys))
    assert finding is not None
    assert finding["command"].endswith(" edit"), "only a person knows which one counts"


def test_a_secret_in_a_misspelt_table_is_not_shown(
    world: BreakableHome, capsys: pytest.CaptureFixture[str]
) -> None:
    world.add(f'[channels.telegrm]\ntoken = "{TOKEN}"\n')
    found = examine(world, world.env, False, capsys)
    finding = Case("config", "channels.telegrm is not", "").pick(found)
    assert finding is not None and finding["command"].endswith(" edit")
    assert TOKEN not in str(found)


def test_the_lock_of_a_stuck_process_is_free_again(world: BreakableHome) -> None:
    """The plant itself: it does hold the lock."""
    stuck_process(world)
    with (world.home / "talaria.lock").open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
