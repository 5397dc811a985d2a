"""Conversations that outgrow the model's window: what the model sees, what is told, what is kept."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec

from rig import Rig, start
from talaria.core.clock import SystemClock
from talaria.core.entries import Summary
from talaria.core.ids import SessionId
from talaria.core.turns import TurnState
from talaria.models.known import Abilities
from talaria.store.memory import MemoryStore

WINDOW = 12_000
ABILITIES = {"scripted/*": Abilities(context=WINDOW, tools=True)}
LONG = "word " * 600  # about 750 tokens


async def summaries(rig: Rig, session_id: SessionId) -> list[Summary]:
    log = await rig.store.log(session_id, 0)
    return [entry.body for entry in log if isinstance(entry.body, Summary)]


def answers(rig: Rig) -> list[bytes]:
    """The requests of answers, without those of summaries."""
    return [body for body in rig.model.bodies if b"This is a task beside" not in body]


def tokens(body: bytes) -> int:
    return len(body) // 4 + 1


async def test_a_conversation_that_outgrows_the_window_goes_on(tmp_path: Path) -> None:
    async with start(MemoryStore(SystemClock()), tmp_path, abilities=ABILITIES) as rig:
        turn = await rig.say(f"my name is Ada {LONG}")
        noted = []
        for n in range(40):
            turn = await rig.say(f"message {n} {LONG}")
            assert turn.state is TurnState.DONE, turn.error
            if "[Compacted from" in (turn.reply or ""):
                noted.append(n)
        assert all(tokens(body) <= WINDOW for body in answers(rig))
        found = await summaries(rig, turn.session_id)
        assert len(found) == len(noted) >= 3, "people see one line for each"
        assert all(later - earlier >= 2 for earlier, later in itertools.pairwise(noted)), noted
        assert found[0].first == 1 and found[0].after < found[0].before
        assert all(later.children for later in found[1:]), "a summary of summaries keeps its children"
        assert b"my name is Ada" in answers(rig)[0]
        log = await rig.store.log(turn.session_id, 0)
        assert sum(b"my name is Ada" in msgspec.json.encode(entry.body) for entry in log) >= 1
        assert len(await rig.store.shown_log(turn.session_id)) < len(log) / 2
