"""`/agents`: the delegates of a chat's turn as a tree, and how a person stops one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from talaria.commands.command import CommandResult, parse_number
from talaria.core.ids import delegates_within
from talaria.core.spending import show_usd
from talaria.core.text import clean_line
from talaria.core.turns import Turn, TurnState
from talaria.core.units import format_age
from talaria.turns.live import LiveTurn, LiveTurns
from talaria.turns.states import LiveState

if TYPE_CHECKING:
    from talaria.core.clock import Clock
    from talaria.store.store import Store
    from talaria.turns.followed import FollowedTurns

_MOST = 50
_RECENT = 10  # turns among which the last one with delegates is looked for
_LINE = 100
_STATES = {
    TurnState.ACCEPTED: "waiting to start",
    TurnState.RUNNING: "running",
    TurnState.WAITING: "waiting",
    TurnState.DONE: "done",
    TurnState.FAILED: "failed",
    TurnState.CANCELLED: "stopped",
}


class DelegateCommands:
    """Answers `/agents`, `/agents stop NUMBER` and `/agents stop all`."""

    def __init__(
        self, store: Store, live: LiveTurns, clock: Clock, followed: FollowedTurns | None = None
    ) -> None:
        self._store = store
        self._live = live
        self._clock = clock
        self._followed = followed

    async def answer(self, turn: Turn, args: str) -> CommandResult:
        root, children = await self._tree(turn)
        if root is None:
            return CommandResult("No message of this session has handed out a task.")
        words = args.split()
        if not words:
            return CommandResult(await self._listing(root, children))
        number = parse_number(words[1]) if len(words) == 2 else None
        if words[0] != "stop" or (number is None and words[1:] != ["all"]):
            return CommandResult("Say `/agents`, `/agents stop NUMBER` or `/agents stop all`.")
        if number is not None and not 1 <= number <= len(children):
            return CommandResult(f"There is no delegate {number}. `/agents` lists them.")
        chosen = children if number is None else [children[number - 1]]
        working = [each for each in chosen if not each.state.is_final]
        for each in working:
            await self._stop(each)
        if not working:
            return CommandResult("It has ended already." if number is not None else "All have ended already.")
        names = ", ".join(f"“{_title(each)}”" for each in working)
        return CommandResult(f"Stopped {names}. Its results so far go to the agent.")

    async def _tree(self, turn: Turn) -> tuple[Turn | None, list[Turn]]:
        """Return the last turn of the session that has delegates, and the turns of these in their order."""
        for root in await self._store.recent_of_session(turn.session_id, _RECENT):
            within = delegates_within(root.chat_key, root.id)
            if children := await self._store.turns_within(within, _MOST):
                return root, sorted(children, key=_path)
        return None, []

    async def _listing(self, root: Turn, children: list[Turn]) -> str:
        lines = [f"Delegates of {root.id}:"]
        for number, child in enumerate(children, 1):
            record = await self._store.turn_record(child.id)
            spent = record.spent.cost if record is not None else 0
            end = child.ended_at or self._clock.now()
            seconds = format_age(max(0.0, end - child.accepted_at))
            cost = f", {show_usd(spent)}" if spent else ""
            live = self._live.get(child.id)
            doing = f": {clean_line(live.doing(), _LINE)}" if live is not None and live.doing() else ""
            indent = "   " * (len(_path(child)) - 1)
            lines.append(f"{indent}{number}. {_title(child)} — {_state(child, live)}, {seconds}{cost}{doing}")
        if any(not child.state.is_final for child in children):
            lines.append("`/agents stop NUMBER` stops one, `/stop` all with the message itself.")
        return "\n".join(lines)

    async def _stop(self, child: Turn) -> None:
        live = self._live.get(child.id)
        if live is not None:
            live.stop()
        elif self._followed is not None:
            await self._followed.stop(child.id, "")


def _path(turn: Turn) -> list[tuple[int, int]]:
    """Return the numbers of the steps and tasks that lead from the root to this turn."""
    order = turn.inbound.order
    assert order is not None and order.descent is not None
    parts = [part.split("-") for part in order.descent.delegate.split(".")[1:]]
    return [(int(n), int(index)) for n, index in parts]


def _title(turn: Turn) -> str:
    return turn.inbound.order.job_name if turn.inbound.order is not None else ""


def _state(turn: Turn, live: LiveTurn | None) -> str:
    if live is not None and live.state is LiveState.PARKED:
        return "waiting for its delegates" if live.delegates else "waiting for a decision"
    return _STATES[turn.state]
