"""The checks at the end of every test notice what they are there for."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from support.ledger_rules import ALWAYS, AT_REST, broken_rules
from support.leftovers import find_tasks, find_things
from support.rig import start
from talaria.core.clock import SystemClock
from talaria.store.in_memory import MemoryStore

BREAKS = {
    "a turn has ended if and only if its state is final": "UPDATE turns SET ended_at = NULL",
    "a turn that has not ended belongs to a session": """
        UPDATE turns SET state = 'accepted', ended_at = NULL, session_id = 'ses_gone'""",
    "a merged turn is settled with the turn it was merged into": """
        UPDATE turns SET state = 'accepted', ended_at = NULL, merged_into = (SELECT min(id) FROM turns)
        WHERE id = (SELECT max(id) FROM turns)""",
    "a session waits if and only if its turn does": "UPDATE sessions SET waiting_turn = 'turn_gone'",
    "a question belongs to a turn": """
        INSERT INTO questions (id, turn_id, n, call_id, kind, text, choices, asked_at, expires_at, name,
            digest, span)
        VALUES ('q_1', 'turn_gone', 1, '', 'answer', '', '', 0, 0, '', '', 'once')""",
    "the log of a session has no gap and ends at its head": "DELETE FROM entries WHERE seq = 2",
    "an entry belongs to a session": "UPDATE entries SET session_id = 'ses_gone'",
    "a reservation belongs to a turn that has not ended": """
        INSERT INTO reservations SELECT id, 1, 1, session_id, '', '', '', '', 0, 0, 5 FROM turns LIMIT 1""",
    "what a session has spent is the sum of its calls, with those of its delegates": (
        "UPDATE sessions SET spent = -1"
    ),
    "a delegate belongs to a turn, and has ended if its turn has": """
        INSERT INTO delegates (id, turn_id, n, call_id, task, asked_at, expires_at)
        VALUES ('turn_gone.1-1', 'turn_gone', 1, '', '{}', 0, 0)""",
    "a message of the outbox belongs to a turn": """
        INSERT INTO outbox (turn_id, chat_key, channel, address, body, state, written_at, due_at, head, part)
        VALUES ('turn_gone', '', '', '', '', 'pending', 0, 0, 0, 0)""",
    "a slot has ended if and only if its state is final": """
        INSERT INTO slots VALUES ('job_1', 0, 'done', 0, '', NULL, 0, 0, 0, '', NULL, NULL, NULL, 0)""",
    "a job that is done has no next time": """
        INSERT INTO jobs (id, owner, state, origin, plan, overlap, created_at, ended_at, next_at, version,
            failures, reason)
        VALUES ('job_1', '', 'done', '', '', '', 0, 1, 5, 0, 0, '')""",
    "the counted numbers are true": "UPDATE counts SET n = 7 WHERE name = 'done'",
    "nothing is reserved": """
        INSERT INTO reservations VALUES ('turn_gone', 1, 1, 'ses_1', '', '', '', '', 0, 0, 5)""",
    "no session is leased": "UPDATE sessions SET lease_expires = 1",
}


def test_every_rule_is_tried() -> None:
    assert BREAKS.keys() == (ALWAYS | AT_REST).keys()


@pytest.mark.parametrize("rule", BREAKS)
async def test_rule_that_is_broken_is_named(rule: str, tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    async with start(store, tmp_path) as rig:
        await rig.say("hello")
        await rig.say("again")
    read = store._executor.read
    assert await read(lambda db: broken_rules(db, is_at_rest=True)) == []
    await store._executor.write(lambda tx: tx.execute(BREAKS[rule], ()))
    assert rule in str(await read(lambda db: broken_rules(db, is_at_rest=True)))


def test_sockets_children_and_temporary_folders_are_found() -> None:
    before = find_things()
    with (
        socket.socket(),
        tempfile.TemporaryDirectory(prefix="left-"),
        subprocess.Popen(["sleep", "60"]) as child,
    ):
        assert {each.split()[0].partition(":")[0] for each in find_things() - before} == {
            "socket",
            "folder",
            "child",
        }
        child.kill()
    assert find_things() == before


def test_tasks_that_stay_are_found_and_tasks_that_end_are_not() -> None:
    async def begin() -> list[asyncio.Task[None]]:
        kinds = {"ends": 0, "stays": 3600}
        return [asyncio.create_task(asyncio.sleep(each), name=name) for name, each in kinds.items()]

    with asyncio.Runner() as runner:
        started = runner.run(begin())
        assert [each.split(":")[0] for each in find_tasks(runner.get_loop())] == ["task stays"]
        assert [task.done() for task in started] == [True, False]
