"""The loop that forgets: which times it uses, that it goes on where it was, and what it never touches."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from contracts.store_orders import accepting, answered, begun, new_clock
from contracts.store_responses_suite import answer, put
from talaria.store.in_memory import MemoryStore
from talaria.store.sqlite.store import SqliteStore
from talaria.turns.lifecycle import Retention
from talaria.turns.settings import RetentionSettings
from talaria.workspace.folder import Folder
from talaria.workspace.spill import RESULTS, drop_old_results

KEY_SECONDS = 86_400.0

DAY = 86_400.0


class Dropped:
    def __init__(self) -> None:
        self.before: list[float] = []

    async def __call__(self, before: float) -> int:
        self.before.append(before)
        return 0


async def test_each_kind_is_kept_for_its_own_time() -> None:
    clock, dropped = new_clock(), Dropped()
    store = MemoryStore(clock)
    settings = RetentionSettings(ledger=timedelta(days=3), ended_sessions="10d", responses=timedelta(days=1))
    retention = Retention(store, clock, settings, dropped)
    call = await answered(store, accepting(ephemeral=True))
    response = await put(store, "one")
    await answer(store, response, "1")
    turn = await answered(store, accepting(key="k"))
    session_id = turn.turn.session_id
    await store.end_session(session_id, await store.hold(session_id, call.turn.session_id, 1.0))  # type: ignore[arg-type]
    clock.advance(0.5 * DAY)
    await retention.sweep()
    assert await store.responses.find(response.turn.id) is not None
    assert await store.session(call.turn.session_id) is not None
    clock.advance(DAY)
    await retention.sweep()
    assert await store.responses.find(response.turn.id) is None
    assert await store.session(call.turn.session_id) is None
    assert await store.turn_record(turn.turn.id) is not None
    clock.advance(2 * DAY)
    await retention.sweep()
    assert await store.turn_record(turn.turn.id) is None
    assert await store.session(session_id) is not None
    clock.advance(7 * DAY)
    await retention.sweep()
    assert await store.session(session_id) is None
    assert dropped.before[-1] == clock.now() - 3 * DAY


async def test_one_gateway_of_several_deletes_rows_and_each_deletes_its_own_files() -> None:
    clock, dropped, is_in_charge = new_clock(), Dropped(), [False]
    store = MemoryStore(clock)
    retention = Retention(store, clock, RetentionSettings(), dropped, is_in_charge=lambda: is_in_charge[0])
    call = await answered(store, accepting(ephemeral=True))
    clock.advance(2 * DAY)
    await retention.sweep()
    assert await store.session(call.turn.session_id) is not None
    assert len(dropped.before) == 1
    is_in_charge[0] = True
    await retention.sweep()
    assert await store.session(call.turn.session_id) is None


async def test_ended_sessions_are_kept_forever_unless_told_otherwise() -> None:
    clock = new_clock()
    store = MemoryStore(clock)
    turn = await answered(store)
    session_id = turn.turn.session_id
    await store.end_session(session_id, await store.hold(session_id, session_id, 1.0))  # type: ignore[arg-type]
    clock.advance(10_000 * DAY)
    await Retention(store, clock, RetentionSettings(), Dropped()).sweep()
    assert await store.session(session_id) is not None


async def test_a_short_ledger_keeps_keys_for_their_day() -> None:
    clock = new_clock()
    store = MemoryStore(clock)
    settings = RetentionSettings(ledger=timedelta(minutes=1))
    retention = Retention(store, clock, settings, Dropped())
    await answered(store, accepting(key="k", digest="d"))
    clock.advance(KEY_SECONDS - 1)
    await retention.sweep()
    assert (await store.accept(accepting(key="k", digest="d"))).is_duplicate


async def test_a_long_ledger_is_gone_through_once(tmp_path: Path) -> None:
    """A later sweep looks only at what came since, but never forgets what was unsettled then."""
    clock = new_clock()
    async with await SqliteStore.open(tmp_path / "talaria.db", clock) as store:
        retention = Retention(store, clock, RetentionSettings(ledger=timedelta(days=2)), Dropped())
        running, _ = await begun(store)
        for _ in range(450):
            await answered(store, accepting(chat="agent:main:http:api:other"))  # type: ignore[arg-type]
        clock.advance(3 * DAY)
        await retention.sweep()
        assert await store.turn_record(running.turn.id) is not None
        young = await answered(store, accepting(chat="agent:main:http:api:other"))  # type: ignore[arg-type]
        await retention.sweep()
        assert await store.turn_record(young.turn.id) is not None
        clock.advance(3 * DAY)
        await retention.sweep()
        assert await store.turn_record(young.turn.id) is None


def test_old_results_of_all_chats_go_and_files_stay(tmp_path: Path) -> None:
    for chat in ("one", "two", "none"):
        (tmp_path / chat).mkdir()
        (tmp_path / chat / "mine.txt").write_text("mine")
        os.utime(tmp_path / chat / "mine.txt", (1, 1))
    for chat in ("one", "two"):
        for name in ("old.txt", "new.txt"):
            Folder(tmp_path / chat).write(RESULTS / name, b"x")
        os.utime(tmp_path / chat / ".talaria/results/old.txt", (1000, 1000))
    (tmp_path / "linked").symlink_to(tmp_path / "one")
    assert drop_old_results(tmp_path, 2000.0) == 2
    assert drop_old_results(tmp_path / "nowhere", 2000.0) == 0
    for chat in ("one", "two"):
        assert os.listdir(tmp_path / chat / ".talaria/results") == ["new.txt"]
        assert (tmp_path / chat / "mine.txt").exists()
