"""`./dev chaos --only sandbox`: hostile commands in each sandbox of this machine, through a real gateway.

A scripted model calls the terminal and the file tools of a gateway that runs in its own process, as root or
as an ordinary user. After each command everything around it is looked at from the outside.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

import talaria
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer
from talaria.workspace.sandbox.choice import choose
from talaria.workspace.sandbox.command import SandboxKind
from trial.attacks.bait import (
    BaitFiles,
    Listeners,
    RunningProcess,
    Victim,
    adopting,
    empty,
    end_descendant,
    marked_places,
    open_listeners,
    open_victim,
    own_descendants,
    running_processes,
)
from trial.attacks.escapes import Chooser, Escape, Surroundings
from trial.report import Check, Figure, Progress, none_of

BACKENDS: tuple[SandboxKind, ...] = ("bubblewrap", "landlock")
ORDINARY_UID = 30_000 + os.getpid() % 20_000  # nobody's, and another one for each run
_PROCESSES = 64
_SESSION_COMMANDS = 25
_MOST_GROWTH = 6e6
_SLACK_PROCESSES = 12  # the launcher, and threads that are just ending
_NETWORK_HOLDER = b"keeps the network namespace of a session"  # in its arguments, as the begin of its source
_CONTROLS = frozenset(range(32)) - {9, 10, 13}


@dataclass(frozen=True)
class Setting:
    """One sandbox under one user."""

    backend: SandboxKind
    is_root: bool

    @property
    def name(self) -> str:
        return f"{self.backend} as {'root' if self.is_root else 'an ordinary user'}"


@dataclass
class Holes:
    """The outcome of one setting: how many commands ran, and what the judge saw."""

    setting: Setting
    ran: int = 0
    families: Counter[str] = field(default_factory=Counter)
    found: list[str] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)  # of the gateway, at the end of each session
    most_processes: int = 0
    is_gone: bool = False  # the gateway does not answer any more

    @property
    def growth(self) -> float:
        """The growth of the gateway's memory in the second half of the run, in bytes."""
        half = len(self.memory) // 2
        return max(0.0, self.memory[-1] - min(self.memory[half:])) if half else 0.0


async def why_not(*backends: SandboxKind) -> str:
    """Return why this machine cannot run the hostile commands in any of these sandboxes; empty if it can."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return "the commands are written for Linux on x86_64"
    if not Path("/usr/bin/python3").exists():
        return "commands need /usr/bin/python3"
    found = [await choose(backend, Path("/nowhere")) for backend in backends or BACKENDS]
    return "" if any(each.sandbox for each in found) else found[0].reason


async def settings_here() -> list[Setting]:
    """Return the settings that can be tried here. Root tries an ordinary user too, if one can run Talaria."""
    is_root = os.geteuid() == 0
    users = [is_root] + ([False] if is_root and can_drop() else [])
    usable = [backend for backend in BACKENDS if not await why_not(backend)]
    return [Setting(backend, user) for user in users for backend in usable]


def can_drop() -> bool:
    """Return whether an ordinary user can run Talaria from where it is."""
    if shutil.which("setpriv") is None:
        return False
    words = [*ordinary_python(), "-c", "import talaria.app, msgspec._core, aiohttp"]
    return subprocess.run(words, check=False, capture_output=True, cwd="/").returncode == 0


def ordinary_python(source: Path | None = None) -> list[str]:
    """Return the words that run Python with the package as an ordinary user."""
    path = f"{source or Path(talaria.__file__).parents[1]}:{Path(msgspec.__file__).parents[1]}"
    drop = ["setpriv", f"--reuid={ORDINARY_UID}", f"--regid={ORDINARY_UID}", "--clear-groups"]
    return [*drop, "env", f"PYTHONPATH={path}", "PYTHONDONTWRITEBYTECODE=1", "/usr/bin/python3"]


class SandboxRun:
    """Runs `count` hostile commands in each of the settings, one setting after the other."""

    def __init__(
        self,
        count: int,
        progress: Progress,
        seed: int = 1,
        settings: Sequence[Setting] = (),
        *,
        families: tuple[str, ...] = (),
        source: Path | None = None,
    ) -> None:
        """`families` are the only ones to be tried. `source` is another source tree to run."""
        self._count = count
        self._progress = progress
        self._seed = seed
        self._settings = settings
        self._families = families
        self._source = source
        self.outcomes: list[Holes] = []

    async def run(self) -> list[Figure]:
        for setting in self._settings or await settings_here():
            self.outcomes.append(await self._try(setting))
        return [figure for holes in self.outcomes for figure in _figures(holes)]

    async def _try(self, setting: Setting) -> Holes:
        holes = Holes(setting)
        async with open_arena(setting, self._source) as arena:
            chosen = Chooser(arena.around, self._seed, self._families).choose(self._count)
            for n, escape in enumerate(chosen, 1):
                await arena.attempt(escape, holes)
                if n % _SESSION_COMMANDS == 0 or n == len(chosen):
                    await arena.end_session(holes)
                    holes.memory.append(arena.rss())
                self._progress.tell(setting.name, n, len(chosen))
                if holes.is_gone:
                    break
            arena.judge_end(holes)
        return holes


def _figures(holes: Holes) -> list[Figure]:
    most = _PROCESSES + _SLACK_PROCESSES
    return [
        none_of(f"{holes.ran} hostile commands in {holes.setting.name}: escapes", holes.found),
        none_of("… without a clear result", holes.unclear),
        Figure("… most processes of a command at once", holes.most_processes, "", most),
        Figure("… growth of the gateway's memory in the second half", holes.growth / 1e6, "MB",
               _MOST_GROWTH / 1e6, Check.MEMORY),
    ]  # fmt: skip


# -- the arena --------------------------------------------------------------------------------------------


@dataclass
class Arena:
    """A gateway with a chat whose commands are hostile, and the bait around it."""

    gateway: GatewayProcess
    model: ModelServer
    bait: BaitFiles
    listeners: Listeners
    victim: Victim
    around: Surroundings
    uid: int  # of the commands
    descendants: int = 0
    known: frozenset[int] = frozenset()  # processes that were there before the first command

    @property
    def own(self) -> tuple[Path, ...]:
        """The folders that the commands may write."""
        return own_folders(self.gateway.home)

    async def attempt(self, escape: Escape, holes: Holes) -> None:
        """Run one command and judge it."""
        holes.ran += 1
        holes.families[escape.family] += 1
        self.model.bodies.clear()
        watch = asyncio.create_task(self._watch(holes), name="watch processes")
        try:
            async with asyncio.timeout(60):
                turn = await self.gateway.call(
                    "POST", "/api/sessions/hostile/messages?wait=60", json={"text": escape.message()}
                )
        except Exception as error:  # the gateway is gone, or does not answer
            holes.is_gone = True
            holes.found.append(f"the gateway does not answer: {error!r} after {escape.text()}")
            return
        finally:
            watch.cancel()
        if turn.get("state") != "done" or turn.get("reply") != "done":
            holes.unclear.append(f"{turn.get('state')} {turn.get('error')} {escape.text()}")
        for seen in self._judge():
            holes.found.append(f"{seen}; by {escape.text()}")

    def _judge(self) -> list[str]:
        """Return what the command reached, as seen from the outside."""
        said = "".join(_results(body) for body in self.model.bodies)
        found = [f"the model was shown {what}" for what in self.bait.leaks(said)]
        if self.around.won in said:
            found.append(f"it got through: {said[: said.index(self.around.won)][-200:]!r}")
        found += [f"a file of the chat has {what}" for what in self.bait.leaks_below(self.own)]
        found += [f"{path} changed" for path in self.bait.changes()]
        found += [f"{name} was reached" for name in self.listeners.arrived()]
        if harm := self.victim.harm():
            found.append(f"a process outside {harm}")
        found += [f"{path} was made" for path in marked_places(self.around.marker)]
        for each in self._left():
            found.append(f"process {each} was left")
            end_descendant(each)
            self.known |= {each.pid}
        for folder in self.own:
            empty(folder)
        return found

    def _left(self) -> list[RunningProcess]:
        """Return the processes of commands that still run. One that another program has started for a
        command has the marker or the number in its arguments. Other processes of the same user do not count.
        """
        known = {self.victim.pid, self.gateway.pid, *self.known}
        sleeper = str(100_000 + int(self.around.marker[-4:], 16)).encode()

        def is_marked(each: RunningProcess) -> bool:
            return sleeper in each.line.split(b"\0") or self.around.marker.encode() in each.line

        def is_of_gateway(each: RunningProcess) -> bool:
            return b"serve" in each.line.split(b"\0") or _NETWORK_HOLDER in each.line

        own = [each for each in self._descendants() if not is_of_gateway(each)]
        marked = [each for each in running_processes().values() if is_marked(each)]
        return [each for each in dict.fromkeys(own + marked) if each.pid not in known]

    def _descendants(self) -> list[RunningProcess]:
        """Return this process's descendants that run as the user of the commands."""
        return [each for each in own_descendants() if each.uid == self.uid]

    async def _watch(self, holes: Holes) -> None:
        """Count the processes of the commands' user while a command runs."""
        while True:
            await asyncio.sleep(0.25)
            holes.most_processes = max(holes.most_processes, self._count())

    def _count(self) -> int:
        return sum(each.threads for each in self._descendants()) - self.descendants

    async def end_session(self, holes: Holes) -> None:
        """End the session of the commands. Its temporary folder goes soon afterwards."""
        with suppress(Exception):  # a gateway that is gone was noted before
            await self.gateway.call("POST", "/api/sessions/hostile/end")
        for _ in range(100):
            if not (left := [path for path in self.own if path.name == "tmp"]):
                return
            await asyncio.sleep(0.05)
        holes.unclear += [f"the ended session left {path}" for path in left]

    def rss(self) -> float:
        with suppress(OSError):
            return int(Path(f"/proc/{self.gateway.pid}/statm").read_text().split()[1]) * 4096.0
        return 0.0

    def judge_end(self, holes: Holes) -> None:
        if not self.gateway.is_running:
            holes.found.append("the gateway is gone")
        log = self.gateway.log.read_bytes()
        if controls := _CONTROLS & set(log):
            holes.found.append(f"the log has control characters: {sorted(controls)}")
        holes.found += [f"the log has {what}" for what in self.bait.leaks(log)]


def _results(body: bytes) -> str:
    """Return the results of tools that a request shows the model, since the person wrote."""
    messages = json.loads(body)["messages"]
    begin = max(n for n, message in enumerate(messages) if message["role"] == "user")
    shown = [
        json.dumps(each["content"], ensure_ascii=False) for each in messages[begin:] if each["role"] == "tool"
    ]
    return "\n".join(shown)


@asynccontextmanager
async def open_arena(setting: Setting, source: Path | None = None) -> AsyncIterator[Arena]:
    """Lay out the bait and start the gateway. Leaving ends and removes everything.

    Raises `RuntimeError` if the gateway has no sandbox for its commands.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(adopting())
        base = Path(os.path.realpath(tempfile.mkdtemp(prefix="talaria-arena-")))
        stack.callback(shutil.rmtree, base, ignore_errors=True)
        base.chmod(0o755)
        drops = os.geteuid() == 0 and not setting.is_root
        owner = ORDINARY_UID if drops else os.geteuid()
        bait, home, outside = BaitFiles(), base / "home", base / "outside"
        nonce = secrets.token_hex(8)
        for folder in (home, outside):
            folder.mkdir(mode=0o700)
        outside.chmod(0o777)
        listeners = stack.enter_context(open_listeners(outside, nonce))
        model = await stack.enter_async_context(ModelServer())
        (home / "config.toml").write_text(_config(setting, model.base_url, bait))
        others = _lay(base, home, outside, bait, owner)
        if drops:
            for path in (home, *home.rglob("*")):
                os.chown(path, owner, owner)
        program = ordinary_python(source) if drops else [sys.executable]
        program = ["env", f"BAIT={bait.secret('a variable of the gateway')}", *program]
        gateway = await stack.enter_async_context(
            GatewayProcess(
                home, base / "log", {"LOG__LEVEL": "info"}, source=None if drops else source, program=program
            )
        )
        await gateway.start()
        await gateway.call("POST", "/api/sessions/hostile/messages?wait=60", json={"text": _WARM})
        if not (own := own_folders(home)):
            raise RuntimeError(f"{setting.name}: the gateway cannot run a command")
        uid = own[0].stat().st_uid
        victim = stack.enter_context(open_victim(uid, bait.secret("a process outside")))
        bait.secret("")
        around = Surroundings(
            files=tuple(map(str, bait.files)), folders=(str(outside), *map(str, others)), listeners=listeners,
            addresses=_addresses(), victim=victim.pid, gateway=gateway.pid,
            gateway_port=int(gateway.url.rpartition(":")[2]), home=str(home), folder=str(own[0]),
            marker=f"mark{nonce}", won=f"won{secrets.token_hex(8)}", has_own_uid=os.geteuid() == 0,
        )  # fmt: skip
        arena = Arena(gateway, model, bait, listeners, victim, around, uid)
        bait.remember(outside, *others, *bait.files)
        arena.known = frozenset(each.pid for each in arena._left())
        arena.descendants = arena._count()
        yield arena


_WARM = '[[call terminal {"command": "true"}]][[reply done]]'


def _config(setting: Setting, url: str, bait: BaitFiles) -> str:
    return f"""
[model]
provider = "scripted"
name = "scripted"
[providers.scripted]
base_url = "{url}"
api_key = "{bait.secret("the key of a provider")}"
[tools]
sandbox = "{setting.backend}"
command_processes = {_PROCESSES}
command_memory = "256MiB"
"""


def _lay(base: Path, home: Path, outside: Path, bait: BaitFiles, owner: int) -> list[Path]:
    """Make the files of other people, chats and programs. Return their folders."""
    folders = {
        "person": base / "person",
        "chat": home / "files" / "other",
        "chat's home": home / "homes" / "other",
        "session": home / "sessions" / "other" / "tmp",
        "neighbour": Path(f"{home}-of-another"),
    }
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
    for parent in ("files", "homes", "sessions"):
        (home / parent).chmod(0o700)
    bait.lay(outside / "secret")
    bait.lay(outside / "odd 'name")
    for name in (".ssh-key", "notes.txt", ".netrc"):
        bait.lay(folders["person"] / name)
    for name in ("chat", "chat's home", "session", "neighbour"):
        bait.lay(folders[name] / "secret.txt", owner=owner)
    bait.lay(home / ".env", owner=owner, mode=0o600)
    return [*folders.values()]


def own_folders(home: Path) -> tuple[Path, ...]:
    """Return the folders of the hostile chat: its files, its home, and the temporary ones of its sessions."""
    found = [path for parent in ("files", "homes") for path in (home / parent).iterdir()]
    found += (home / "sessions").glob("*/tmp")
    return tuple(path for path in found if "other" not in path.parts)


def _addresses() -> tuple[str, ...]:
    """Return the addresses of this machine beyond loopback, without asking anybody."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, suppress(OSError):
        sock.connect(("192.0.2.1", 9))
        return (str(sock.getsockname()[0]),)
    return ()
