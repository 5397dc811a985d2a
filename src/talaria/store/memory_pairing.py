"""`MemoryPairings`: pairing on plain dictionaries, for tests and for gateways that may forget."""

from __future__ import annotations

import msgspec

from talaria.core.access import (
    Admission,
    Approve,
    Ask,
    Asked,
    CodeHash,
    Crowded,
    Invite,
    Opened,
    Origin,
    Paired,
    PairingLimits,
    PairingList,
    PairingRequest,
    Person,
    Redeem,
)
from talaria.core.clock import Clock
from talaria.store import pairing_rules as rules

_Key = tuple[str, str]


class _Request(msgspec.Struct, frozen=True):
    person: Person
    code: CodeHash
    asked_at: float
    told: rules.Told


class _Invitation(msgspec.Struct, frozen=True):
    code: CodeHash
    expires_at: float


class MemoryPairings:
    """See `core.ports.Pairings`. No method awaits, so each is one transaction."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._paired: dict[_Key, Paired] = {}
        self._requests: dict[_Key, _Request] = {}
        self._invitations: dict[str, _Invitation] = {}
        self._wrong: dict[tuple[str, str], rules.Tries] = {}

    async def is_paired(self, channel: str, user_id: str) -> bool:
        return (channel, user_id) in self._paired

    async def ask(self, order: Ask) -> Asked:
        now, person, limits = self._clock.now(), order.person, order.limits
        self._requests = {key: each for key, each in self._requests.items() if each.told.expires_at > now}
        known = self._requests.get(_key(person))
        if known is not None:
            waiting = rules.remind(known.told, limits, now)
            if waiting.may_tell:
                told = rules.Told(known.told.expires_at, known.told.reminders + 1, now)
                self._requests[_key(person)] = msgspec.structs.replace(known, told=told)
            return waiting
        # Those of the channel, newest first.
        here = sorted(
            (each for each in self._requests.values() if each.person.channel == person.channel),
            key=lambda each: (-each.asked_at, each.person.user_id),
        )
        fresh = [each.asked_at for each in here if each.asked_at > now - limits.new_seconds]
        if len(fresh) >= limits.new_requests:
            return Crowded(fresh[-1] + limits.new_seconds)
        for request in here[limits.open_requests - 1 :]:
            del self._requests[_key(request.person)]
        told = rules.Told(now + limits.code_seconds, 0, now)
        self._requests[_key(person)] = _Request(person, order.code, now, told)
        return Opened(told.expires_at)

    async def approve(self, order: Approve) -> Admission:
        now, limits = self._clock.now(), order.limits
        gate = (rules.APPROVAL, rules.EVERYBODY)
        tries = self._wrong.get(gate, rules.NO_TRIES)
        locked = rules.lock(tries, limits.tries, limits, now)
        if locked is not None:
            return locked
        for request in self._requests.values():
            if request.code == order.code and request.told.expires_at > now:
                return self._pair(request.person, Origin.APPROVED, now)
        return rules.wrong(self._count(gate, limits, now), limits.tries)

    async def invite(self, order: Invite) -> float:
        expires_at = self._clock.now() + order.limits.code_seconds
        self._invitations[order.channel] = _Invitation(order.code, expires_at)
        self._forget(rules.invitation_gate(order.channel))
        return expires_at

    async def redeem(self, order: Redeem) -> Admission:
        now, person, limits = self._clock.now(), order.person, order.limits
        gate = rules.invitation_gate(person.channel)
        theirs = self._wrong.get((gate, person.user_id), rules.NO_TRIES)
        all_of_them = self._wrong.get((gate, rules.EVERYBODY), rules.NO_TRIES)
        locked = rules.lock(theirs, limits.tries, limits, now) or rules.lock(
            all_of_them, limits.channel_tries, limits, now
        )
        if locked is not None:
            return locked
        invitation = self._invitations.get(person.channel)
        if invitation is not None and invitation.code == order.code and invitation.expires_at > now:
            del self._invitations[person.channel]
            return self._pair(person, Origin.INVITED, now)
        if rules.is_forgotten(all_of_them, limits, now):
            self._forget(gate)
        self._count((gate, rules.EVERYBODY), limits, now)
        return rules.wrong(self._count((gate, person.user_id), limits, now), limits.tries)

    async def revoke(self, channel: str, user_id: str) -> Paired | None:
        return self._paired.pop((channel, user_id), None)

    async def listing(self) -> PairingList:
        now = self._clock.now()
        return PairingList(
            tuple(sorted(self._paired.values(), key=lambda each: (each.paired_at, *_key(each.person)))),
            tuple(
                PairingRequest(each.person, each.asked_at, each.told.expires_at)
                for each in sorted(
                    self._requests.values(), key=lambda each: (each.asked_at, *_key(each.person))
                )
                if each.told.expires_at > now
            ),
        )

    def _pair(self, person: Person, origin: Origin, now: float) -> Paired:
        self._requests.pop(_key(person), None)
        self._paired[_key(person)] = paired = Paired(person, now, origin)
        return paired

    def _count(self, gate: tuple[str, str], limits: PairingLimits, now: float) -> rules.Tries:
        self._wrong[gate] = tries = rules.one_more(self._wrong.get(gate, rules.NO_TRIES), limits, now)
        return tries

    def _forget(self, gate: str) -> None:
        self._wrong = {key: tries for key, tries in self._wrong.items() if key[0] != gate}


def _key(person: Person) -> _Key:
    return person.channel, person.user_id
