"""Gateways in their own processes that are restarted whenever they end, and what stands around them.

A world has one to three gateways, a model server and a chat platform. One gateway uses SQLite or PostgreSQL,
several share a PostgreSQL. There, each gateway has its own database role, and a trigger notes for each entry
of a turn the role that wrote it and the lease under which it was written. So a commit under the lease of
another gateway is visible, whatever the gateways believe.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import psycopg

from support.ports import port_of, reserve_port
from support.postgres_server import PostgresServer, running_server
from talaria.channels.telegram.channel import WEBHOOK_PATH
from talaria.core.failpoints import Failpoint
from talaria.store.sqlite.database import open_reader
from talaria.store.sqlite.faults import driver
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer

# Closing a copied file would drop the locks of a reader that this process has open at the same time.
_READING = threading.Lock()
LEASE_SECONDS = 1.0
TRY_SECONDS = 2.5
# Words of the log lines that tell how replies went out.
_OF_DELIVERY = ("elegram", "iscord", "lack", "role", "member", "utbox", "delivery")
# Confirmed commits survive a crash of the server, but not one of the machine, which does not happen here.
SERVER = (
    "fsync=off", "full_page_writes=off", "wal_level=minimal", "max_wal_senders=0", "shared_buffers=64MB",
    "max_connections=200", "deadlock_timeout=50ms",
)  # fmt: skip
_OWED = """
SELECT (SELECT count(*) FROM turns WHERE state IN ('accepted', 'running', 'waiting')),
       (SELECT count(*) FROM outbox WHERE state IN ('pending', 'sending')),
       (SELECT count(*) FROM slots WHERE ended_at IS NULL),
       (SELECT count(*) FROM jobs WHERE next_at IS NOT NULL),
       (SELECT count(*) FROM announcements)
"""
_AUDIT = """
CREATE TABLE audit (
    session_id TEXT, seq BIGINT, turn_id TEXT, writer TEXT, owner TEXT, fence BIGINT
);
CREATE FUNCTION note_commit() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO audit SELECT NEW.session_id, NEW.seq, NEW.turn_id, current_user, lease_owner, lease_fence
    FROM sessions WHERE id = NEW.session_id;
    RETURN NULL;
END $$;
-- A message that was sent to a chat is appended outside of turns, under a lease of its own transaction.
CREATE CONSTRAINT TRIGGER note_commit AFTER INSERT ON entries DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.turn_id IS NOT NULL AND NEW.kind <> 'announcement') EXECUTE FUNCTION note_commit();
CREATE TABLE moves (at TIMESTAMPTZ, tx BIGINT, writer TEXT, about TEXT, what TEXT);
CREATE FUNCTION note_turn() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO moves VALUES (clock_timestamp(), txid_current(), current_user, NEW.session_id,
        NEW.id || ' ' || NEW.state || ' for ' || NEW.member || ' ' || NEW.command);
    RETURN NULL;
END $$;
CREATE TRIGGER note_turn AFTER INSERT OR UPDATE OF state, member, begun_by ON turns
    FOR EACH ROW EXECUTE FUNCTION note_turn();
CREATE FUNCTION note_chat() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO moves VALUES (clock_timestamp(), txid_current(), current_user, NEW.session_id,
        'chat for ' || NEW.member || ' at ' || NEW.place);
    RETURN NULL;
END $$;
CREATE TRIGGER note_chat AFTER INSERT OR UPDATE ON chats FOR EACH ROW EXECUTE FUNCTION note_chat();
CREATE FUNCTION note_member() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO moves VALUES (clock_timestamp(), txid_current(), current_user, 'members',
        TG_OP || ' ' || coalesce(NEW.owner, OLD.owner) || ' until ' || coalesce(NEW.expires_at, 0));
    RETURN NULL;
END $$;
CREATE TRIGGER note_member AFTER INSERT OR DELETE ON members FOR EACH ROW EXECUTE FUNCTION note_member();
"""
_PLUGIN = '''
import os, signal
from talaria.plugins import ModelFacts, Plugin

def leave_mark(name: str) -> str:
    """Leave a mark."""
    with open({effects!r}, "a", encoding="utf-8") as file:
        print(name, file=file)
    return f"left {{name}}"

def die_of_poison(facts: ModelFacts) -> None:
    if facts.turn.text.startswith("poison"):
        leave_mark(facts.turn.text)
        os.kill(os.getpid(), signal.SIGKILL)

def register(plugin: Plugin) -> None:
    plugin.tool(leave_mark)
    plugin.on_before_model(die_of_poison)
'''


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a world consists of. `source` is another source tree to run, `config` the text of config.toml."""

    gateways: int = 1
    is_postgres: bool = False
    has_model: bool = True
    has_webhook: bool = False  # the chat platform sends its updates, instead of being asked
    settings: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    source: Path | None = None


class Member:
    """A gateway that is started again whenever it ends. Each of its next lives is armed with the next of
    `points`. `down_seconds` is the pause before the next life."""

    def __init__(self, gateway: GatewayProcess, user: str, faults: Counter[str]) -> None:
        self._faults = faults
        self._asked: signal.Signals | None = None  # by which this life was ended
        self.gateway = gateway
        self.user = user
        self.points: Iterator[str] = iter(())  # such as "tool.ran=2": the second time
        self.point = ""  # at which this life ends
        self.down_seconds = 0.0
        self.up = asyncio.Event()
        self.ready_at = 0.0  # of this life
        self.lives: list[tuple[float, float]] = []  # of those that ended: when each was ready, and its end
        self.damaged: list[str] = []
        self.failed: list[str] = []  # lives that ended by themselves, or not well

    async def run(self) -> None:
        gateway = self.gateway
        while True:
            await gateway.spawn(self.point)
            if is_ready := await gateway.ready():
                self.ready_at = time.time()
                self.up.set()
            status = await gateway.wait()
            self.up.clear()
            if is_ready:
                self.lives.append((self.ready_at, time.time()))
            if status == -signal.SIGKILL:
                self.damaged += await asyncio.to_thread(find_damage, gateway.home)
                if self._asked is signal.SIGKILL or self.point:
                    is_random = self._asked is signal.SIGKILL
                    self._faults[f"kill at {'random' if is_random else self.point.partition('=')[0]}"] += 1
            elif status or self._asked is None:
                self.failed.append(f"exit status {status} after {self._asked}: {read_end(gateway.log)}")
            self.point, self._asked = next(self.points, ""), None
            await asyncio.sleep(self.down_seconds)
            self.down_seconds = 0.05

    async def end(self, number: signal.Signals, down_seconds: float = 0.0) -> bool:
        """End the process; a kill may hit its start too. Returns False if it did not run, or ends already: a
        second SIGTERM would end it at once."""
        if not self.gateway.is_running or not (self.up.is_set() or number is signal.SIGKILL):
            return False
        if self._asked is number is signal.SIGTERM:
            return False
        self.down_seconds = down_seconds
        self._asked = number
        self.gateway.send_signal(number)
        return True

    async def lasts(self, seconds: float) -> bool:
        """Wait. Returns False as soon as this life has ended."""
        life = self.gateway.lives
        for _ in range(int(seconds / 0.02) + 1):
            if self.gateway.lives != life or not self.gateway.is_running:
                return False
            await asyncio.sleep(0.02)
        return True

    async def pause(self, seconds: float) -> bool:
        if not self.up.is_set() or not self.gateway.is_running:
            return False
        self.gateway.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self.gateway.send_signal(signal.SIGCONT)
        return True


class World:
    """The store, the model server and the gateways. `faults` counts by kind. While `is_open` is not set, and
    once `is_over` is true, loads send no new message."""

    def __init__(
        self,
        around: Surroundings,
        random: Random,
        folder: Path,
        model: ModelServer | None,
        server: PostgresServer | None,
        scopes: AsyncExitStack,
    ) -> None:
        self._scopes = scopes
        self._tasks: list[asyncio.Task[None]] = []
        self.around = around
        self.random = random
        self.model = model
        self.server = server
        self.url = server.new_database() if server else ""
        self.effects = folder / "effects"
        self.effects.touch()
        self.members: list[Member] = []
        self.faults: Counter[str] = Counter()
        self.restarting = asyncio.Lock()
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.is_over = False
        self.tries = 0
        self.refused: list[str] = []
        self.homes = [folder / f"home{number}" for number in range(around.gateways)]
        for home in self.homes:
            (home / "plugins").mkdir(parents=True, mode=0o700)
            home.chmod(0o700)
            (home / "config.toml").write_text(around.config)
            (home / "plugins" / "marks.py").write_text(_PLUGIN.format(effects=str(self.effects)))

    async def start(self, settings: Mapping[str, str]) -> None:
        """Start all gateways, and wait until they are ready. Leaving the world ends them with SIGTERM."""
        if self.server:
            self.query(_AUDIT)
        for number, home in enumerate(self.homes):
            user = f"g{number}"
            port = port_of(self._scopes.enter_context(reserve_port()))
            given = {
                "HTTP__PORT": str(port),
                "SHUTDOWN__RESTART_PAUSE": "1ms",
                "LOG__LEVEL": "info" if self.server else "warning",
                **self._platform_settings(port),
                **self._store_settings(user),
                **settings,
                **self.around.settings,
            }
            gateway = GatewayProcess(home, home.with_suffix(".log"), given, source=self.around.source)
            self.members.append(Member(await self._scopes.enter_async_context(gateway), user, self.faults))
        self._tasks = [asyncio.create_task(each.run(), name=each.user) for each in self.members]
        self._scopes.push_async_callback(self._stop)
        async with asyncio.timeout(60):
            await asyncio.gather(*(each.up.wait() for each in self.members))

    def _platform_settings(self, port: int) -> dict[str, str]:
        model, webhook = self.model, f"http://127.0.0.1:{port}{WEBHOOK_PATH}"
        found = (
            {"MODEL__PROVIDER": "scripted", "PROVIDERS__SCRIPTED__BASE_URL": model.base_url} if model else {}
        )
        if self.around.has_webhook:
            found |= {"CHANNELS__TELEGRAM__MODE": "webhook", "CHANNELS__TELEGRAM__WEBHOOK_URL": webhook}
        return found

    def _store_settings(self, user: str) -> dict[str, str]:
        if not self.server:
            return {}
        self.query(f"DROP ROLE IF EXISTS {user}; CREATE ROLE {user} SUPERUSER LOGIN")
        return {
            "STORE__URL": self.url.replace("talaria@", f"{user}@"),
            "CLUSTER__LEASE": f"{LEASE_SECONDS:g}s",
            "CLUSTER__TOKEN_ENV": "TALARIA_CLUSTER_TOKEN",
            "CLUSTER_TOKEN": "one-token-for-all-gateways",
            "SHUTDOWN__DEADLINE": "2s",
        }

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check(self) -> None:
        """Raise the error of a supervisor that failed."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    # -- users ----------------------------------------------------------------------------------------------

    async def call(self, method: str, path: str, body: Any = None, key: str = "") -> Any:
        """Call gateways until one has accepted. A refusal that would be one everywhere ends it with None."""
        headers = {"Idempotency-Key": key} if key else {}
        while True:
            self.tries += 1
            try:
                return await self.try_call(method, path, body, headers)
            except aiohttp.ClientResponseError as error:
                if error.status != 503:
                    self.refused.append(f"{key}: {error.status} {error.message} {path}")
                    return None
            except (aiohttp.ClientError, OSError, TimeoutError):
                pass
            self.check()
            await asyncio.sleep(0.05)

    async def try_call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Call one gateway at random, once. Raises what a call of a gateway raises, or `TimeoutError`."""
        gateway = self.random.choice(self.members).gateway
        async with asyncio.timeout(TRY_SECONDS):
            return await gateway.call(method, path, json=body, headers=headers)

    def needed(self) -> set[Failpoint]:
        """Return the points at which lives of today are to end; loads then send what leads to them."""
        return {Failpoint(each.point.partition("=")[0]) for each in self.members if each.point}

    # -- the store ------------------------------------------------------------------------------------------

    def query(self, sql: str, *parameters: object) -> list[Any]:
        if self.server:
            with psycopg.connect(self.url, autocommit=True) as connection:
                cursor = connection.execute(sql.encode(), parameters or None)
                return cursor.fetchall() if cursor.description else []
        with _READING, closing(open_reader(self.homes[0] / "talaria.db")) as database:
            found: list[Any] = database.execute(sql, parameters).fetchall()
            return found

    def owed(self) -> int:
        """Return how many turns, replies and runs of jobs are unsettled, also of jobs that are not due yet;
        -1 while the database is gone."""
        try:
            (counts,) = self.query(_OWED)
        except (psycopg.OperationalError, driver.OperationalError):
            return -1
        return sum(map(int, counts))

    async def settle(self, seconds: float, is_accepted: Callable[[], bool] = lambda: True) -> int:
        """Wait until all is accepted and nothing is owed. Returns how much still is after `seconds`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while owed := await asyncio.to_thread(self.owed) or int(not is_accepted()):
            if loop.time() > deadline:
                return owed
            self.check()
            await asyncio.sleep(0.1)
        return 0

    def foreign_commits(self) -> list[str]:
        """Return the entries that were written under the lease of another gateway, or under an old one."""
        rows = self.query(
            "SELECT session_id, seq, turn_id, writer, owner, fence FROM audit ORDER BY session_id, seq"
        )
        writers: dict[str, str] = {}
        last: dict[str, int] = {}
        found = []
        for session_id, seq, turn_id, writer, owner, fence in rows:
            if writers.setdefault(owner, writer) != writer:
                found.append(f"{session_id} {seq} of {turn_id}: {writer} wrote under the lease of {owner}")
            if fence < last.get(session_id, 0):
                found.append(f"{session_id} {seq} of {turn_id}: fence {fence} after {last[session_id]}")
            last[session_id] = max(fence, last.get(session_id, 0))
        return found

    def story(self, session_id: str) -> str:
        """Return what happened in a session: its turns, its entries and who wrote them, and the log's lines
        about it."""
        turns = self.query(
            "SELECT position, id, state, command, member, begun_by, attempts, accepted_at, begun_at, ended_at"
            " FROM turns WHERE session_id = %s ORDER BY position",
            session_id,
        )
        entries = self.query(
            "SELECT e.seq, e.at, e.turn_id, e.kind, a.writer, a.owner, a.fence FROM entries e"
            " JOIN audit a ON a.session_id = e.session_id AND a.seq = e.seq"
            " WHERE e.session_id = %s ORDER BY e.seq",
            session_id,
        )
        moves = self.query(
            "SELECT to_char(at AT TIME ZONE 'UTC', 'HH24:MI:SS.MS'), tx, writer, what FROM moves"
            " WHERE about = %s OR about = 'members' ORDER BY at",
            session_id,
        )
        names = (session_id, *(str(row[1]) for row in turns))
        said = sorted(
            f"{line[8:32]} {home.name} {line[32:]}"
            for home in self.homes
            for line in home.with_suffix(".log").read_text(errors="replace").splitlines()
            if any(name in line for name in names)
        )
        return "\n".join((session_id, *map(str, turns), *map(str, entries), *map(str, moves), *said))

    def stories(self, session_ids: Collection[str]) -> str:
        """Return the stories of some sessions over HTTP, and of all on the platform."""
        rows = self.query("SELECT id FROM sessions WHERE chat_key LIKE '%:dm:%'")
        sent = self.query(
            "SELECT id, address, state, written_at, due_at, sent_at, attempts, edits, body"
            " FROM outbox ORDER BY id"
        )
        said = sorted(
            f"{line[8:32]} {home.name} {line[32:240]}"
            for home in self.homes
            for line in home.with_suffix(".log").read_text(errors="replace").splitlines()
            if any(word in line for word in _OF_DELIVERY)
        )
        stories = map(self.story, [*session_ids, *(str(row[0]) for row in rows)])
        return "\n\n".join((*stories, "\n".join(map(str, sent)), "\n".join(said)))


def read_end(log: Path) -> str:
    return log.read_text(errors="replace")[-500:] if log.exists() else ""


def find_damage(home: Path) -> list[str]:
    """Return what SQLite finds wrong in a copy of the database. The process that had it open is dead, and the
    next one finds the files as the kill left them."""
    if not (home / "talaria.db").exists():
        return []
    with tempfile.TemporaryDirectory(prefix="talaria-trial-look-") as folder:
        with _READING:
            for ending in ("", "-wal"):
                if (home / f"talaria.db{ending}").exists():
                    shutil.copyfile(home / f"talaria.db{ending}", Path(folder) / f"copy.db{ending}")
        with closing(driver.connect(Path(folder) / "copy.db")) as database:
            try:
                (found,) = database.execute("PRAGMA integrity_check").fetchone()
            except driver.DatabaseError as error:
                found = str(error)
    return [] if found == "ok" else [found]


@asynccontextmanager
async def new_world(around: Surroundings, random: Random) -> AsyncIterator[World]:
    """Run a database and a model; `World.start` adds the gateways. Raises `LookupError` where no PostgreSQL
    can run."""
    async with AsyncExitStack() as scopes:
        server = scopes.enter_context(running_server(SERVER)) if around.is_postgres else None
        folder = scopes.enter_context(tempfile.TemporaryDirectory(prefix="talaria-world-"))
        model = await scopes.enter_async_context(ModelServer(record=False)) if around.has_model else None
        async with AsyncExitStack() as processes:
            yield World(around, random, Path(folder), model, server, processes)
