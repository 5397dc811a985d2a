"""Money in plain dictionaries, for `MemoryStore`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

from talaria.core.ids import OwnerId, SessionId, TurnId
from talaria.core.ledger import Commit
from talaria.core.spending import (
    QUARTER_SECONDS,
    Overrun,
    Reserve,
    Scope,
    Spending,
    Spent,
    Standing,
    Whose,
    find_overrun,
)

_NOTHING = Spent()


class MemorySpending:
    """The sums that a store keeps. Methods do not await, so each is a part of one transaction."""

    def __init__(self) -> None:
        self._reserved: dict[tuple[TurnId, int], tuple[OwnerId, Reserve]] = {}
        self._turns: dict[TurnId, Spent] = {}
        self._sessions: dict[SessionId, Spent] = {}
        self._quarters: defaultdict[tuple[int, str], Spent] = defaultdict(Spent)

    def reserve(self, owner: OwnerId, order: Reserve) -> Overrun | None:
        key = (order.turn_id, order.n)
        others = [other for place, (_, other) in self._reserved.items() if place != key]
        whose = Whose(order.session_id, order.user, order.since)
        spent = self.spending(whose)
        standings = {
            Scope.DAY: Standing(spent.everyone.cost, sum(other.amount for other in others)),
            Scope.USER: Standing(
                spent.user.cost, sum(other.amount for other in others if other.user == order.user)
            ),
            Scope.SESSION: Standing(
                spent.session.cost,
                sum(other.amount for other in others if other.session_id == order.session_id),
            ),
        }
        overrun = find_overrun(order, standings)
        if overrun is None:
            self._reserved[key] = (owner, order)
        return overrun

    def settle(self, turn_id: TurnId, order: Commit, now: float) -> None:
        for call in order.usage:
            spent = Spent(1, call.tokens, call.cost or 0, int(call.cost is None))
            self._turns[turn_id] = self.of_turn(turn_id) + spent
            self._sessions[order.session_id] = self._sessions.get(order.session_id, _NOTHING) + spent
            self._quarters[int(now // QUARTER_SECONDS), call.user] += spent
            self._reserved.pop((turn_id, call.n), None)
        if order.end is not None:
            self._keep(lambda owner, other: other.turn_id != turn_id)

    def release_others(self, owner: OwnerId) -> None:
        self._keep(lambda other_owner, other: other_owner == owner)

    def release_own(self, owner: OwnerId) -> None:
        self._keep(lambda other_owner, other: other_owner != owner)

    def forget(self, sessions: Collection[SessionId], turns: Collection[TurnId]) -> None:
        """They are pruned; what they cost stays in the sums of users and days."""
        for session_id in sessions:
            self._sessions.pop(session_id, None)
        for turn_id in turns:
            self._turns.pop(turn_id, None)

    def of_turn(self, turn_id: TurnId) -> Spent:
        return self._turns.get(turn_id, _NOTHING)

    def spending(self, whose: Whose) -> Spending:
        first = int(whose.since // QUARTER_SECONDS)
        today = [(user, spent) for (quarter, user), spent in self._quarters.items() if quarter >= first]
        return Spending(
            self._sessions.get(whose.session_id, _NOTHING),
            sum((spent for user, spent in today if user == whose.user), _NOTHING),
            sum((spent for _, spent in today), _NOTHING),
            sum(order.amount for _, order in self._reserved.values()),
        )

    def _keep(self, is_kept: Callable[[OwnerId, Reserve], bool]) -> None:
        self._reserved = {
            key: (owner, order) for key, (owner, order) in self._reserved.items() if is_kept(owner, order)
        }
