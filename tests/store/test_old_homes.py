"""Databases of earlier releases open and go on: what was owed is owed, and nothing of it is lost."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from contracts.store_orders import CHAT, LEASE, ME, accepting, asking, said, step
from talaria.core.ids import SessionId, TurnId
from talaria.core.ledger import Accepted, Begin, Commit, Page, TurnEnd
from talaria.core.spending import Cap, Reserve, Scope, SpendingQuery
from talaria.core.turns import StepState, TurnState
from talaria.store.sqlite import schema
from talaria.store.sqlite.faults import driver
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.clock import FakeClock

MOST_COUNTED = 10**15

MIGRATIONS = sorted((Path(schema.__file__).parent / "migrations").glob("*.sql"))

# A file that a release has carried out must never change: homes that have it would stay without the change.
# The number is the schema's version, the digest is of all files up to it.
RELEASED = {6: "ad4badee42afa43bedafec33ab76f3b73978ffde192b63a57ea52071533e3c2c"}

SESSION = SessionId("ses_old")
ROWS = (
    f"INSERT INTO chats VALUES ('{CHAT}', 'ses_old')",
    "INSERT INTO sessions (id, chat_key, created_at, updated_at, epoch, seq, title, ephemeral, lease_owner,"
    f" lease_fence, lease_expires) VALUES ('ses_old', '{CHAT}', 1, 2, 0, 1, 'Old', 0, 'own_dead', 7, 9e9)",
    "INSERT INTO entries VALUES ('ses_old', 1, 0, 'user', 'turn_runs', 2,"
    """ '{"type":"user","parts":[{"type":"text","text":"hello"}]}')""",
    "INSERT INTO spending VALUES (1, 'u1', 2, 30, 0, 4, 0, 0, 500, 0)",
    "INSERT INTO reservations VALUES ('turn_runs', 1, 'ses_old', 'u1', 'own_dead', 70)",
)
TURN = (
    "INSERT INTO turns (id, chat_key, session_id, state, inbound, accepted_at, command, started_at, attempts,"
    " scope, digest) VALUES (?, ?, 'ses_old', ?, ?, 2, '', ?, ?, '', '')"
)
INBOUND = f'{{"chat_key":"{CHAT}","sender":{{"id":"u1"}},"parts":[{{"type":"text","text":"hello"}}]}}'


def make_old(path: Path, version: int) -> None:
    """A home as the release with that schema left it when it was killed: one turn runs, one is queued."""
    connection = driver.connect(path, isolation_level=None)
    for file in MIGRATIONS[:version]:
        connection.executescript(file.read_text(encoding="utf-8"))
    connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {version}")
    for row in ROWS:
        connection.execute(row)
    connection.execute(TURN, ("turn_runs", CHAT, "running", INBOUND, 2.0, 1))
    connection.execute(TURN, ("turn_queued", CHAT, "accepted", INBOUND, None, 0))
    connection.close()


@pytest.mark.parametrize("version", sorted(RELEASED))
def test_released_migrations_are_never_changed(version: int) -> None:
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in MIGRATIONS[:version])).hexdigest()
    assert digest == RELEASED[version]


def test_a_new_database_is_what_all_migrations_come_to(tmp_path: Path) -> None:
    """A new one is not made step by step."""

    def content(connection: driver.Connection) -> list[object]:
        tables = connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
        ).fetchall()
        made = connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY type, name").fetchall()
        return [made, *(connection.execute(f"SELECT * FROM {name}").fetchall() for (name,) in tables)]

    stepwise, new = (driver.connect(tmp_path / name, isolation_level=None) for name in ("stepwise", "new"))
    for file in MIGRATIONS:
        stepwise.executescript(file.read_text(encoding="utf-8"))
    schema.migrate(new, tmp_path / "new")
    assert content(new) == content(stepwise)
    stepwise.close()
    new.close()


@pytest.mark.parametrize("version", sorted(RELEASED))
async def test_home_of_an_earlier_release_opens_and_goes_on(
    path: Path, clock: FakeClock, version: int
) -> None:
    make_old(path, version)
    async with await SqliteStore.open(path, clock) as store:
        assert (await store.stats()).schema == schema.latest_version() > version
        spent = await store.spending(SpendingQuery(SESSION, "u1", 0.0))
        assert (spent.user.calls, spent.user.cost, spent.reserved) == (2, 500, 70)
        assert [turn.id for turn in await store.reclaim(ME)] == ["turn_runs", "turn_queued"]
        assert [entry.body for entry in await store.log(SESSION, 0)] == [said("hello")]
        runs = TurnId("turn_runs")
        lease = await store.begin(Begin(runs, ME, LEASE, said("hello")))
        assert (lease.attempts, lease.crashes, lease.entry, lease.fence) == (2, 1, None, 8)

        (turn, _) = await store.reclaim(ME)
        question = asking(Accepted(turn, is_duplicate=False, is_new_session=False))
        pending = (step(1, StepState.PENDING),)
        await store.commit(Commit(SESSION, lease.fence, runs, steps=pending, ask=(question,)))
        assert (await store.open_questions(Page())).questions == (question,)
        lease = await store.begin(Begin(runs, ME, LEASE))
        await store.commit(Commit(SESSION, lease.fence, runs, end=TurnEnd(TurnState.DONE, "hi")))
        queued = await store.begin(Begin(TurnId("turn_queued"), ME, LEASE, said("more")))
        assert queued.entry is not None and queued.entry.seq == 2
        assert (await store.accept(accepting())).turn.session_id == SESSION


@pytest.mark.broken_database
async def test_absurd_amounts_of_an_earlier_release_break_no_sum(path: Path, clock: FakeClock) -> None:
    make_old(path, 8)
    many = 9 * 10**18
    connection = driver.connect(path, isolation_level=None)
    numbers = ", ".join([str(many)] * 6)
    for user in ("u2", "u3"):
        connection.execute(f"INSERT INTO spending VALUES (2, '{user}', 1, {numbers}, 0)")
        connection.execute(
            "INSERT INTO usage (turn_id, n, provider, model, input, cached, output, reasoning, stored, cost,"
            f" at) VALUES ('turn_runs', 1, 'p', '{user}', {numbers}, 2)"
        )
    connection.execute(f"UPDATE sessions SET spent = {many}")
    connection.close()
    async with await SqliteStore.open(path, clock) as store:
        spent = await store.spending(SpendingQuery(SESSION, "u2", 0.0))
        assert (spent.user.cost, spent.everyone.cost) == (MOST_COUNTED, 2 * MOST_COUNTED + 500)
        assert spent.session.tokens.input == 2 * MOST_COUNTED
        await store.reclaim(ME)
        runs = TurnId("turn_runs")
        lease = await store.begin(Begin(runs, ME, LEASE, said("hello")))
        caps = (Cap(Scope.SESSION, 10), Cap(Scope.DAY, 10))
        refusal = await store.reserve(Reserve(SESSION, lease.fence, runs, 1, "u1", 5, 0.0, caps))
        assert refusal is not None and refusal.cap.scope is Scope.SESSION
