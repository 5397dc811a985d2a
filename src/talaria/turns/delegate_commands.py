"""`/agents`: the delegates of a chat's turn as a tree, and how a person stops one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from talaria.commands.command import CommandResult, parse_number
from talaria.core.delegates import delegate_path
from talaria.core.events import DelegateChanged, describe
from talaria.core.ids import DelegateId, delegates_within
from talaria.core.turns import Turn
from talaria.turns.live import LiveTurns

if TYPE_CHECKING:
    from talaria.core.clock import Clock
    from talaria.store.store import Store
    from talaria.turns.followed import FollowedTurns

_MOST = 50
_RECENT = 10  # turns among which the last one with delegates is looked for
_LINE = 100


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
                return root, sorted(children, key=lambda each: delegate_path(_delegate_of(each)))
        return None, []

    async def _listing(self, root: Turn, children: list[Turn]) -> str:
        lines = [f"Delegates of {root.id}:"]
        for number, child in enumerate(children, 1):
            record = await self._store.turn_record(child.id)
            cost = record.spent.cost_usd if record is not None and record.spent.calls else None
            live = self._live.get(child.id)
            told = DelegateChanged(
                "",
                _delegate_of(child),
                child.id,
                _title(child),
                child.state if live is None else live.turn.state,
                "" if live is None else live.doing(),
                max(0.0, (child.ended_at or self._clock.now()) - child.accepted_at),
                cost or "",
            )
            words = describe(told)
            indent = len(words) - len(words.lstrip())
            lines.append(f"{words[:indent]}{number}. {words[indent:]}")
        if any(not child.state.is_final for child in children):
            lines.append("`/agents stop NUMBER` stops one, `/stop` all with the message itself.")
        return "\n".join(lines)

    async def _stop(self, child: Turn) -> None:
        live = self._live.get(child.id)
        if live is not None:
            live.stop()
        elif self._followed is not None:
            await self._followed.stop(child.id, "")


def _delegate_of(turn: Turn) -> DelegateId:
    order = turn.inbound.order
    assert order is not None and order.descent is not None
    return order.descent.delegate


def _title(turn: Turn) -> str:
    return turn.inbound.order.job_name if turn.inbound.order is not None else ""
