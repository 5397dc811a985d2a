"""People over HTTP whose messages hand tasks to trees of delegates, three levels deep.

Besides what holds for every message, the check reads the ledger: each delegate that was written has one turn
at the most and an outcome, unless its parent was stopped before it began, and no session of one is open in
the end."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import AsyncExitStack

from talaria.core.failpoints import Failpoint
from talaria.testing.simulated_users import MessageKind
from trial.faults import OF_TURNS
from trial.loads.http import HttpChats, Said
from trial.report import Check, Fault, Figure, none_of
from trial.world import World

_LEVELS = 3
_CHILDREN = """
SELECT d.id, p.state, d.outcome, count(c.id) FROM delegates d JOIN turns p ON p.id = d.turn_id
LEFT JOIN sessions s ON s.chat_key LIKE '%:delegate:' || d.id || ':%' LEFT JOIN turns c ON c.session_id = s.id
GROUP BY d.id, p.state, d.outcome
"""
_RESULTS = """
SELECT s.chat_key, e.body FROM entries e JOIN sessions s ON s.id = e.session_id
WHERE e.kind = 'tool_results' AND s.chat_key LIKE '%:delegate:%'
"""
_OPEN = "SELECT id FROM sessions WHERE ended_at IS NULL AND chat_key LIKE '%:delegate:%'"


class DelegateTrees(HttpChats):
    """People in `chats` chats; every tool call is in a delegate."""

    points = (*OF_TURNS, Failpoint.PARKED, Failpoint.HANDED_OUT)

    async def prepare(
        self, world: World, faults: Collection[Fault], scopes: AsyncExitStack
    ) -> dict[str, str]:
        given = await super().prepare(world, faults, scopes)
        return {**given, "DELEGATES__MAX_DEPTH": str(_LEVELS)}

    async def run(self, world: World) -> None:
        self._world = world
        await super().run(world)

    def is_accepted(self) -> bool:
        """Wait also for the ends of sessions: gateways look for those that a kill has left every 30 s."""
        return super().is_accepted() and not self._world.query(_OPEN)

    def text_of(self, said: Said) -> str:
        if said.kind is MessageKind.STOP:
            return _hand_out(f"{said.name} [[hang]]") + f"[[reply {said.name} was not stopped]]"
        if said.kind is not MessageKind.TOOL:
            return super().text_of(said)
        leaf = f'[[call leave_mark {{"name": "{said.name}"}}]][[reply did {said.name}]]'
        other = f"[[reply looked at {said.name}]]"
        tree = leaf
        for _ in range(_LEVELS - 1):
            tree = _hand_out(tree, other) + f"[[reply passed on {said.name}]]"
        return _hand_out(tree, other) + f"[[reply did {said.name}]]"

    def results_below(self, world: World) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for chat_key, body in world.query(_RESULTS):
            root = chat_key.split(":delegate:")[1].partition(".")[0]
            found.setdefault(root, []).append(body)
        return found

    async def judge(self, world: World) -> list[Figure]:
        figures = await super().judge(world)
        rows = world.query(_CHILDREN)
        twice = [f"{row[0]}: {row[3]} turns" for row in rows if row[3] > 1]
        open_ = [f"{row[0]} of a turn that is {row[1]}" for row in rows if row[3] and not row[2]]
        never = [row[0] for row in rows if not row[3] and not row[2] and row[1] == "done"]
        left = [str(row[0]) for row in world.query(_OPEN)]
        return [
            *figures,
            none_of("… delegates run twice", twice, Check.DUPLICATED),
            none_of("… results of delegates lost", [*open_, *never], Check.LOST),
            none_of("… sessions of delegates left open", left, Check.LEFTOVERS),
            Figure("… delegates", len(rows)),
        ]


def _hand_out(*tasks: str) -> str:
    return f"[[call delegate {json.dumps({'tasks': tasks})}]]"
