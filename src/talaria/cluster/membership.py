"""This gateway as a member of a cluster: it joins, renews its time, drains and leaves, and hears wake-ups."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import msgspec

from talaria.cluster.following import PeerClient
from talaria.cluster.leases import LeaseKeeper
from talaria.cluster.member_checks import ClusterToken, read_boot
from talaria.cluster.places import ChatPlaces, Leash, find_place, refuse_copied_home
from talaria.core.clock import Clock, held_until
from talaria.core.cluster import Here, Member, MemberFigures, Waiting, Wake
from talaria.core.errors import StoreError
from talaria.core.ids import ChatKey, OwnerId
from talaria.core.program import this_version
from talaria.core.settings import Check, Mark, Unset, variable_name, web_address
from talaria.core.tasks import Tasks, stop
from talaria.core.turns import Turn
from talaria.store.store import ClusterStore, Store, ThreadOrders

# -- `[cluster]`: several gateways on one PostgreSQL database ---------------------------------------------


def _member_address(url: str) -> str | None:
    return None if not url else web_address(url) and 'an address such as "http://10.0.0.5:8765"'


_SHORTEST_LEASE = timedelta(seconds=1)
_LONGEST_LEASE = timedelta(minutes=10)


class ClusterSettings(msgspec.Struct, frozen=True):
    """Other gateways reach this one at `advertise_url`, with the token in the variable `token_env`. Others
    go on with the chats of a gateway that was not heard of for the time of `lease`. The chats of a place
    without a gateway are taken over after `takeover_after`; commands and files there are lost."""

    advertise_url: Annotated[str, Check(_member_address), Unset("http.host and http.port")] = ""
    token_env: Annotated[str, Mark.SECRET_VARIABLE, Check(variable_name)] = "TALARIA_CLUSTER_TOKEN"  # noqa: S105
    lease: timedelta = timedelta(seconds=10)
    takeover_after: timedelta = timedelta(minutes=10)

    def problems(self) -> Iterator[tuple[str, str]]:
        if not _SHORTEST_LEASE <= self.lease <= _LONGEST_LEASE:
            yield "lease", "is out of range: expected a duration from 1s to 10m."
        if self.takeover_after < self.lease:
            yield "takeover_after", "is shorter than cluster.lease: expected a longer duration."

    def find_token(self, environ: Mapping[str, str]) -> str:
        """Return the token with which gateways prove themselves to each other; empty if there is none."""
        return environ.get(self.token_env, "").strip()


# -- a gateway on a database file, which no other gateway serves: a cluster of one ------------------------


class LoneGateway:
    """Has the methods of `Membership` that turns need, without a row of its own and without renewals.

    The lock of the database proves that all other gateways of the file are dead, so their leases are expired
    at the first look. A gateway inside a command may share the file, and has no lock (`has_lock` False). Its
    turns, and those that it finds, are orphans once the lease of their session has expired.
    """

    here: Final = None
    has_others: Final = False
    is_out: Final = False
    is_draining: Final = False

    def __init__(self, store: Store, clock: Clock, keeper: LeaseKeeper, *, has_lock: bool) -> None:
        self._store = store
        self._clock = clock
        self._keeper = keeper
        self._must_reclaim = has_lock
        self.look_seconds = keeper.lease_seconds

    async def find_turns(self) -> Sequence[Waiting]:
        """Return the turns that other processes left unsettled, oldest first. Raises `StoreError`."""
        owner = self._keeper.owner
        if self._must_reclaim:
            turns = await self._store.reclaim(owner)
            self._must_reclaim = False
        else:
            turns = await self._store.orphans(owner, self._clock.now() - 2 * self._keeper.lease_seconds)
        return [Waiting(turn) for turn in turns]

    def note_accepted(self, chat_key: ChatKey, *, has_loss: bool) -> None:
        """Nothing can be lost: all files are here."""

    def wake(self, what: Wake, owner: OwnerId | None = None) -> None:
        """There is nobody to wake."""

    async def drain(self) -> None:
        """There is nobody to announce it to."""


# -- this gateway as a member of a cluster ----------------------------------------------------------------


_log = logging.getLogger("talaria.cluster")
_LEAVE_SECONDS = 5.0
LOOK_SECONDS = 1.0


class Membership:
    """The membership of this process. Its id is the owner of the process's leases.

    The member's time is renewed with the leases, each third of their length, by the same thread. A member
    that could not renew it in time (`held_until`) is *out*: it begins no turns and has no roles, because
    others are about to take its chats. `is_out` is right in any thread and at any moment, also if the process
    was stopped. A member that was out is in again after a renewal, or after it has joined again.

    `on_wake` and `on_in` take functions that are called on the event loop; they must not block.
    Turns are looked for each `look_seconds`, and when another member sends a wake-up.
    """

    has_others: Final = True
    look_seconds = LOOK_SECONDS

    def __init__(
        self,
        store: ClusterStore,
        clock: Clock,
        keeper: LeaseKeeper,
        me: Member,
        here: Here,
        *,
        check: Callable[[Member, Sequence[Member]], object] = lambda me, others: None,
        leash: Leash | None = None,
    ) -> None:
        """`check` is called with this member and the others that are alive when it joins; it may refuse by
        raising. `figures` are told to the others at each renewal. `leash` holds this place's commands."""
        self.store = store
        self.me = me
        self.here = here
        self.lease_seconds = keeper.lease_seconds
        self.is_draining = False
        self._clock = clock
        self._check = check
        self.figures = me.figures  # replaced as a whole: a thread reads it
        self._leash = leash
        self.chats = ChatPlaces(store, here)
        self._ins: list[Callable[[], object]] = [self.chats.forget]
        self._fresh_at = float("-inf")  # `Clock.elapsed` when the last successful renewal *began*
        self._is_in = False  # as told on the loop
        self._is_lost = False  # its time had run out, so it has to join again
        self._is_joining = False
        self._has_left = False
        self._told = ""  # why the last renewal failed, as logged
        self._changed = asyncio.Event()
        self._wakes: dict[Wake, list[Callable[[], object]]] = {what: [] for what in Wake}
        self._tasks = Tasks()
        keeper.accompany(self)

    @property
    def owner(self) -> OwnerId:
        return self.me.owner

    @property
    def is_out(self) -> bool:
        return self._is_lost or self._clock.elapsed() >= self.counts_until()

    def counts_until(self) -> float:
        """Return the moment of `Clock.elapsed` from which the member is out, unless it is renewed."""
        return held_until(self._fresh_at, self.lease_seconds)

    def on_wake(self, what: Wake, heard: Callable[[], object]) -> None:
        self._wakes[what].append(heard)

    def on_in(self, tell: Callable[[], object]) -> None:
        """Call `tell` whenever the member is in again after it was out, not at the first time."""
        self._ins.append(tell)

    async def members(self) -> Sequence[Member]:
        return await self.store.members()

    async def adopt(self) -> Sequence[Turn]:
        """Take over the chats of dead members, and return their unsettled turns. Raises `StoreError`."""
        adopted = await self.store.adopt(self.here)
        for chat_key in adopted.lost:
            self.chats.note_lost(chat_key)
        return adopted.turns

    async def find_turns(self) -> Sequence[Waiting]:
        """Return all unsettled turns that are for this member, in the order of acceptance. Raises
        `StoreError`."""
        return await self.store.waiting_here(self.owner)

    def note_accepted(self, chat_key: ChatKey, *, has_loss: bool) -> None:
        """See `ChatPlaces.note_accepted`."""
        self.chats.note_accepted(chat_key, has_loss=has_loss)

    def wake(self, what: Wake, owner: OwnerId | None = None) -> None:
        """Ask a member, or all others, to look at something. A hint, which is sent beside the caller."""
        if owner == self.owner:
            self._hear(what)
        else:
            self._tasks.start(self.store.wake(what, owner), f"wake-up {what}")

    async def wait_until_in(self) -> None:
        """Return at once unless this member is out. Waits until it is in again."""
        while self.is_out:
            self._changed.clear()
            await self._changed.wait()

    # -- coming and going -----------------------------------------------------------------------------------

    async def join(self) -> Sequence[Member]:
        """Join the cluster, and return the members that are alive, this one too. The member before this one
        in the same place ends. Raises `StoreError`."""
        began, mark = self._clock.elapsed(), self._mark()
        found = await self.store.join(self.me, self.lease_seconds)
        self._fresh_at, self._is_lost, self._is_in = began, False, True
        if self._leash is not None:
            self._leash.extend(mark)
        return found

    async def advertise(self, url: str) -> None:
        """Tell the others how they reach this member, unless a setting says so. Raises what the check of
        members raises."""
        if not self.me.url:
            self.me = msgspec.structs.replace(self.me, url=url)
            self._judge(await self.join())

    async def drain(self) -> None:
        """Let others have the new turns of this member's chats, and the turns that it has not begun."""
        if self.is_draining:
            return
        self.is_draining = True
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self.store.drain_member(self.owner)
                await self.store.wake(Wake.MEMBERS)
        except (StoreError, TimeoutError) as error:
            _log.warning("others do not know that this member drains: %s", error)

    async def leave(self) -> None:
        """Let the others go on with what this member has not finished."""
        self._has_left = True
        await stop(*self._tasks)
        if self._leash is not None:
            self._leash.shorten(self._mark())
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self.store.leave(self.owner)
                await self.store.wake(Wake.MEMBERS)
        except (StoreError, TimeoutError) as error:
            _log.warning("others continue its chats when its lease ends, since it could not leave: %s", error)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Be a member while the context is open. Leaving it ends the member's time. Raises what the check of
        members raises."""
        try:
            self._judge(await self.join())
            async with self.store.listen(self.owner, self._hear):
                yield
        finally:
            await self.leave()

    def _judge(self, members: Sequence[Member]) -> None:
        self._check(self.me, [member for member in members if member.owner != self.owner])

    def _hear(self, what: Wake) -> None:
        for heard in self._wakes[what]:
            heard()

    # -- its time: called by the keeper of leases -----------------------------------------------------------

    async def renew(self) -> None:
        """Renew on the event loop."""
        if not self._must_renew():
            return
        began, mark = self._clock.elapsed(), self._mark()
        try:
            is_renewed = await self.store.renew_member(self.owner, self.figures, self.lease_seconds)
        except StoreError as error:
            self._tell(error)
        else:
            self._note(began, mark, is_renewed=is_renewed)

    def renew_from_thread(self, store: ThreadOrders, timeout: float) -> bool:
        """Renew in a thread. Return whether the database carried it out."""
        if not self._must_renew():
            return True
        began, mark = self._clock.elapsed(), self._mark()
        try:
            is_renewed = store.renew_member(self.owner, self.figures, self.lease_seconds, timeout)
        except StoreError as error:
            self._tell(error)
            return False
        self._note(began, mark, is_renewed=is_renewed)
        return True

    def watch(self) -> None:
        """Tell when this member is out and when it is in again. Join again if its time had run out."""
        if self._fresh_at == float("-inf") or self._has_left:
            return
        if self._is_in and self.is_out:
            self._is_in = False
            _log.warning("this member is out: its time could not be renewed, so it begins no turns")
        if self._is_lost:
            if not self._is_joining:
                self._is_joining = True
                self._tasks.start(self._join_again(), "join")
        elif not self.is_out:
            self._changed.set()  # it may have been out for a moment that nobody was told of
            if not self._is_in:
                self._come_in()

    async def _join_again(self) -> None:
        try:
            await self.join()
            if self.is_draining:
                await self.store.drain_member(self.owner)
            self._come_in()
        except StoreError as error:
            _log.warning("this member could not join again: %s", error)
        finally:
            self._is_joining = False

    def _come_in(self) -> None:
        self._is_in = True
        self._changed.set()
        _log.info("this member is in again")
        for tell in self._ins:
            tell()

    def _must_renew(self) -> bool:
        return self._fresh_at != float("-inf") and not self._is_lost and not self._has_left

    def _mark(self) -> float:
        """Return the time for the leash, before something is asked for."""
        return 0.0 if self._leash is None else self._leash.now()

    def _tell(self, error: StoreError) -> None:
        """Log why the time was not renewed, once for all attempts that fail alike."""
        if (why := str(error)) != self._told:
            self._told = why
            _log.warning("the time of this member was not renewed: %s", error)

    def _note(self, began: float, mark: float, *, is_renewed: bool) -> None:
        self._told = ""
        if is_renewed:
            self._fresh_at = max(began, self._fresh_at)
            if self._leash is not None and not self._has_left:
                self._leash.extend(mark)
        elif began >= self._fresh_at:  # it has not joined again meanwhile
            self._is_lost = True


@dataclass(frozen=True, slots=True)
class JoinedCluster:
    """The membership of this gateway, its token of the cluster, and the client with which it calls other
    members."""

    membership: Membership
    token: ClusterToken
    peers: PeerClient


@asynccontextmanager
async def join_cluster(
    store: Store,
    clock: Clock,
    keeper: LeaseKeeper,
    settings: ClusterSettings,
    home: Path,
    *,
    environ: Mapping[str, str],
    files: str = "",
) -> AsyncIterator[JoinedCluster]:
    """Be a member of the cluster of this database while the context is open. The caller has the home's lock.
    `files` is the id of the folder of `store.files`, empty if files are not shared. Raises `ConfigError` if
    this gateway cannot serve beside those that are there."""
    secret = settings.find_token(environ)
    token = ClusterToken.of(settings.token_env, secret)
    owner, place = keeper.owner, find_place(home)
    me = Member(
        owner=owner,
        place=place,
        boot=read_boot(),
        host=socket.gethostname(),
        url=settings.advertise_url,
        version=this_version(),
        schema=(await store.stats()).schema,
        started_at=clock.now(),
        has_shared_files=bool(files),
        figures=MemberFigures(files=files),
    )
    await refuse_copied_home(store.cluster, store.clock, me, home, keeper.lease_seconds)
    takeover = settings.takeover_after.total_seconds()
    here = Here(owner, place, takeover_seconds=takeover, has_shared_files=bool(files))
    with closing(Leash(home, keeper.lease_seconds, takeover)) as leash:
        membership = Membership(store.cluster, clock, keeper, me, here, check=token.check, leash=leash)
        async with membership.open():
            peers = PeerClient(secret, now=store.clock.now)
            try:
                yield JoinedCluster(membership, token, peers)
            finally:
                await peers.close()  # a start that is refused may have called a member
