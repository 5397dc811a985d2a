"""`/agents`: the delegates of a chat's turn as a tree, and how a person stops one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from talaria.commands.command import CommandResult, parse_number
from talaria.core.delegates import Descent, delegate_path
from talaria.core.events import DelegateChanged, describe
from talaria.core.ids import DelegateId, delegates_within
from talaria.core.turns import Turn
from talaria.turns.live import LiveTurns

if TYPE_CHECKING:
    from talaria.core.clock import Clock
    from talaria.store.store import Store
    from talaria.turns.delegates import Delegates
    from talaria.turns.followed import FollowedTurns

_MOST = 50
_RECENT = 10  # turns among which the last one with delegates is looked for


class DelegateCommands:
    """Answers `/agents`, `/agents stop NUMBER`, `/agents stop all` and `/agents tell NUMBER TEXT`."""

    def __init__(
        self,
        store: Store,
        live: LiveTurns,
        clock: Clock,
        followed: FollowedTurns | None = None,
        delegates: Delegates | None = None,
    ) -> None:
        self._store = store
        self._live = live
        self._clock = clock
        self._followed = followed
        self._delegates = delegates

    async def answer(self, turn: Turn, args: str) -> CommandResult:
        trees = await self._trees(turn)
        if not trees:
            return CommandResult("No message of this session has handed out a task.")
        words = args.split(maxsplit=2)
        if not words:
            return CommandResult(await self._listing(trees))
        children = [child for _, found in trees for child in found]
        number = parse_number(words[1]) if len(words) > 1 else None
        is_tell = words[0] == "tell" and number is not None and len(words) == 3
        is_stop = words[0] == "stop" and len(words) == 2 and (number is not None or words[1] == "all")
        if not (is_tell or is_stop):
            return CommandResult(
                "Say `/agents`, `/agents stop NUMBER`, `/agents stop all` or `/agents tell NUMBER TEXT`."
            )
        if number is not None and not 1 <= number <= len(children):
            return CommandResult(f"There is no delegate {number}. `/agents` lists them.")
        if is_tell and number is not None:
            return await self._tell(turn, children[number - 1], words[2])
        return await self._stop_all(children if number is None else [children[number - 1]])

    async def _stop_all(self, chosen: list[Turn]) -> CommandResult:
        working = [each for each in chosen if not each.state.is_final]
        for each in working:
            await self._stop(each)
        if not working:
            return CommandResult("It has ended already." if len(chosen) == 1 else "All have ended already.")
        names = ", ".join(f"“{_title(each)}”" for each in working)
        return CommandResult(f"Stopped {names}. Its results so far go to the agent.")

    async def _tell(self, turn: Turn, child: Turn, text: str) -> CommandResult:
        """Let a delegate read a message before its next model call."""
        if child.state.is_final or self._delegates is None:
            return CommandResult("It has ended already.")
        if not await self._delegates.tell(child, turn, text):
            return CommandResult("It was not told: it has just ended, or waits for a decision.")
        return CommandResult(f"“{_title(child)}” reads this next.")

    async def _trees(self, turn: Turn) -> list[tuple[Turn, list[Turn]]]:
        """Return the last turn of the session that has delegates, and earlier ones some of which still work
        in the background; with the turns of these in their order."""
        trees: list[tuple[Turn, list[Turn]]] = []
        for root in await self._store.recent_of_session(turn.session_id, _RECENT):
            within = delegates_within(root.chat_key, root.id)
            found = await self._store.turns_within(within, _MOST)
            children = [each for each in found if _descent_of(each) is not None]  # no message of a person
            if children and (not trees or any(not child.state.is_final for child in children)):
                trees.append((root, sorted(children, key=lambda each: delegate_path(_delegate_of(each)))))
        return trees

    async def _listing(self, trees: list[tuple[Turn, list[Turn]]]) -> str:
        lines, number = [], 0
        for root, children in trees:
            lines.append(f"Delegates of {root.id}:")
            for child in children:
                number += 1
                lines.append(await self._line(number, child))
        if any(not child.state.is_final for _, children in trees for child in children):
            lines.append("`/agents stop NUMBER` stops one, `/stop` all with the message itself.")
        return "\n".join(lines)

    async def _line(self, number: int, child: Turn) -> str:
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
        return f"{words[:indent]}{number}. {words[indent:]}"

    async def _stop(self, child: Turn) -> None:
        live = self._live.get(child.id)
        if live is not None:
            live.stop()
        elif self._followed is not None:
            await self._followed.stop(child.id, "")


def _descent_of(turn: Turn) -> Descent | None:
    return None if turn.inbound.order is None else turn.inbound.order.descent


def _delegate_of(turn: Turn) -> DelegateId:
    descent = _descent_of(turn)
    assert descent is not None
    return descent.delegate


def _title(turn: Turn) -> str:
    return turn.inbound.order.job_name if turn.inbound.order is not None else ""
