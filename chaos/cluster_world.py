"""Several gateways on one PostgreSQL, kept alive by a supervisor, and an audit of their commits.

Each gateway uses the database under a role of its own, and a trigger notes for each entry of a turn the role
that wrote it and the lease that it was written under. So a commit under the lease of another gateway is
visible, whatever the gateways believe.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg

from support.ports import port_of, reserve_port
from support.postgres_server import PostgresServer, running_server
from talaria.core.failpoints import Failpoint
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer

GATEWAYS = 3
LEASE_SECONDS = 1.0
UNSETTLED = "state IN ('accepted', 'running', 'waiting')"
# Confirmed commits survive a crash of the server, but not one of the machine, which does not happen here.
SERVER = (
    "fsync=off", "full_page_writes=off", "wal_level=minimal", "max_wal_senders=0", "shared_buffers=64MB",
    "max_connections=200", "deadlock_timeout=50ms",
)  # fmt: skip
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


class Supervised:
    """A gateway that is started again whenever it ends. `down_seconds` is the pause before its next life, and
    `armed` a failpoint of that life. A pause stops it in the middle of its work."""

    def __init__(self, gateway: GatewayProcess, user: str, faults: Counter[str]) -> None:
        self._faults = faults
        self._point: Failpoint | None = None
        self.gateway = gateway
        self.user = user
        self.armed: Failpoint | None = None
        self.down_seconds = 0.0
        self.up = asyncio.Event()
        self.refusals: list[str] = []

    async def run(self) -> None:
        gateway = self.gateway
        while True:
            self._point, self.armed = self.armed, None
            await gateway.spawn(f"{self._point}=1" if self._point else "")
            if await gateway.ready():
                self.up.set()
            status = await gateway.wait()
            self.up.clear()
            if self._point is not None and status == -signal.SIGKILL:
                self._faults[f"kill at {self._point}"] += 1
                self._point = None
            await asyncio.sleep(self.down_seconds)
            self.down_seconds = 0.05

    async def end(self, number: signal.Signals, down_seconds: float = 0.0) -> bool:
        """End the process. Returns False if it did not run."""
        if not self.up.is_set() or not self.gateway.is_running:
            return False
        self._point = None  # this end is not one at the labelled point
        self.down_seconds = down_seconds
        self.gateway.send_signal(number)
        return True

    async def pause(self, seconds: float) -> bool:
        if not self.up.is_set() or not self.gateway.is_running:
            return False
        self.gateway.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self.gateway.send_signal(signal.SIGCONT)
        return True


class ClusterWorld:
    """The database, the model and the supervised gateways. `faults` counts by kind."""

    def __init__(
        self, server: PostgresServer, model: ModelServer, folder: Path, scopes: AsyncExitStack
    ) -> None:
        self._scopes = scopes
        self._tasks: list[asyncio.Task[None]] = []
        self.server = server
        self.model = model
        self.url = server.new_database()
        self.effects = folder / "effects"
        self.effects.touch()
        self.members: list[Supervised] = []
        self.faults: Counter[str] = Counter()
        self.restarting = asyncio.Lock()
        self.homes = [folder / f"home{number}" for number in range(GATEWAYS)]
        for home in self.homes:
            (home / "plugins").mkdir(parents=True, mode=0o700)
            home.chmod(0o700)
            (home / "plugins" / "chaos.py").write_text(_PLUGIN.format(effects=str(self.effects)))

    async def start(self, settings: Mapping[str, str], source: Path | None = None) -> None:
        """Start all gateways, and wait until they are ready."""
        self.query(_AUDIT)
        for number, home in enumerate(self.homes):
            user = f"g{number}"
            self.query(f"DROP ROLE IF EXISTS {user}; CREATE ROLE {user} SUPERUSER LOGIN")
            given = {
                "STORE__URL": self.url.replace("talaria@", f"{user}@"),
                "CLUSTER__LEASE": f"{LEASE_SECONDS:g}s",
                "CLUSTER__TOKEN_ENV": "TALARIA_CLUSTER_TOKEN",
                "CLUSTER_TOKEN": "one-token-for-all-gateways",
                "HTTP__PORT": str(port_of(self._scopes.enter_context(reserve_port()))),
                "MODEL__PROVIDER": "scripted",
                "PROVIDERS__SCRIPTED__BASE_URL": self.model.base_url,
                "SHUTDOWN__RESTART_PAUSE": "1ms",
                "SHUTDOWN__DEADLINE": "2s",
                **settings,
                "LOG__LEVEL": "info",
            }
            gateway = GatewayProcess(home, home.with_suffix(".log"), given, source=source)
            self.members.append(
                Supervised(await self._scopes.enter_async_context(gateway), user, self.faults)
            )
        self._tasks = [asyncio.create_task(each.run(), name=each.user) for each in self.members]
        self._scopes.push_async_callback(self._stop)
        async with asyncio.timeout(60):
            await asyncio.gather(*(each.up.wait() for each in self.members))

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check(self) -> None:
        """Raise the error of a supervisor that failed."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    def query(self, sql: str, *parameters: object) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def owed(self) -> int:
        """Return how many turns, replies and runs of jobs are unsettled, also of jobs that are not due yet;
        -1 while the database is gone."""
        try:
            ((turns, replies, slots, jobs),) = self.query(
                f"SELECT (SELECT count(*) FROM turns WHERE {UNSETTLED}),"
                " (SELECT count(*) FROM outbox WHERE state IN ('pending', 'sending')),"
                " (SELECT count(*) FROM slots WHERE ended_at IS NULL),"
                " (SELECT count(*) FROM jobs WHERE next_at IS NOT NULL)"
            )
        except psycopg.OperationalError:
            return -1
        return int(turns) + int(replies) + int(slots) + int(jobs)

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
        rows = self.query("SELECT id FROM sessions WHERE chat_key LIKE '%telegram%'")
        sent = self.query(
            "SELECT id, address, state, written_at, due_at, sent_at, attempts, edits, body"
            " FROM outbox ORDER BY id"
        )
        said = sorted(
            f"{line[8:32]} {home.name} {line[32:240]}"
            for home in self.homes
            for line in home.with_suffix(".log").read_text(errors="replace").splitlines()
            if any(word in line for word in ("elegram", "role", "member", "utbox", "delivery"))
        )
        stories = map(self.story, [*session_ids, *(str(row[0]) for row in rows)])
        return "\n\n".join((*stories, "\n".join(map(str, sent)), "\n".join(said)))


@asynccontextmanager
async def new_world() -> AsyncIterator[ClusterWorld]:
    """Run a database and a model; `ClusterWorld.start` adds the gateways. Raises `LookupError` where no
    PostgreSQL can run."""
    with running_server(SERVER) as server, tempfile.TemporaryDirectory(prefix="talaria-cluster-") as folder:
        async with ModelServer(record=False) as model, AsyncExitStack() as scopes:
            yield ClusterWorld(server, model, Path(folder), scopes)
