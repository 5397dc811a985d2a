"""Delivery: sends the rows of the outbox, in order for each address, until each is sent, refused or too old.

A row is `sending` before the platform hears of it. How an attempt ended decides what comes next:
- sent: done;
- refused: failed, with the platform's reason;
- delayed (the platform took nothing): sent again when the platform says, or after a growing pause;
- unknown (no answer, a timeout, a crash): sent again, with a visible mark if the platform cannot dedupe.

Times of rows follow a clock that does not jump while the process lives: the wall clock of the start, and the
seconds since then. A wall clock that is set back holds up no reply.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import aclosing, suppress
from functools import partial
from random import Random
from typing import Protocol, TypeAlias

from talaria.commands.command import decision_buttons, host_message
from talaria.core.backoff import Backoff
from talaria.core.delivery import (
    LONGEST_WAIT,
    WHOLE_REPLY,
    DeliveryDelayed,
    DeliveryError,
    DeliveryRefused,
    DeliveryResult,
    OutboxRow,
    OutboxState,
    OutgoingFile,
    OutgoingMessage,
)
from talaria.core.errors import StoreError, ToolError
from talaria.core.events import Event
from talaria.core.failpoints import Failpoint, hit
from talaria.core.ids import ChatKey, QuestionId, SessionId, TurnId, channel_of
from talaria.core.limits import Limits
from talaria.core.questions import Question
from talaria.core.tasks import sleep_until_woken, stop
from talaria.core.tools import MAX_SENT_BYTES
from talaria.core.turns import Turn
from talaria.store.store import Store
from talaria.turns.feed import Change, RecordChange, RecordEvent, TurnChange
from talaria.turns.live import LiveTurn, LiveTurns
from talaria.turns.settings import DeliverySettings

# -- `Outlet`: the sending side of a channel, and `ShownTurn`, a running turn as an outlet sees it --------


FindPicture: TypeAlias = Callable[[SessionId, str], Awaitable[bytes | None]]
"""Returns a PNG of what a call of this tool acts on in a session, or None."""


async def find_no_picture(session_id: SessionId, name: str) -> bytes | None:
    return None


class ShownTurn:
    """A running turn, for the channel that shows it.

    `shown_id` is the platform's id of the message that already shows the turn, from this attempt or from one
    before a restart.
    """

    def __init__(
        self, live: LiveTurn, store: Store, is_ours: Callable[[], bool], find_picture: FindPicture
    ) -> None:
        self._live = live
        self._store = store
        self._is_ours = is_ours
        self._find_picture = find_picture
        self.shown_id = live.turn.shown_id

    @property
    def turn(self) -> Turn:
        return self._live.turn

    @property
    def is_ours(self) -> bool:
        """Whether this gateway still has the channel. False at once in a process that was stopped for so long
        that another one took the channel over; it must not draw over that one's messages."""
        return self._is_ours()

    async def is_next(self) -> bool:
        """Return whether all earlier replies to the same address are sent, so that a new message is below
        them. A reply may wait for long: its last attempt failed, or the gateway that sent it is gone."""
        address = self.turn.inbound.address or ""
        return not await self._store.outbox.is_owed(channel_of(self.turn.chat_key), address)

    async def events(self) -> AsyncIterator[Event]:
        """Yield the events from first to final. Ends early if this process lets go of the turn."""
        async with aclosing(self._live.follow()) as events:
            async for _, event in events:
                yield event

    async def shown(self, platform_id: str) -> None:
        """Store the id of the message that shows the turn; the final reply will be an edit of it."""
        self.shown_id = platform_id
        await self._store.show(self._live.turn.id, platform_id)

    async def question_message(self, question_id: QuestionId) -> str | None:
        """Return the platform's id of the message that already shows the question, or None."""
        found = await self._store.find_question(question_id)
        return None if found is None else found.question.shown_id

    async def picture(self, name: str) -> bytes | None:
        """Return a PNG of what the tool of a question acts on, or None."""
        return await self._find_picture(self.turn.session_id, name)

    async def question_shown(self, question_id: QuestionId, platform_id: str) -> None:
        """Store the id of the message that shows the question."""
        await self._store.show_question(question_id, platform_id)


class Outlet(Protocol):
    """The sending side of a channel. An address is the one that the channel wrote into `Inbound`."""

    @property
    def takes_nonce(self) -> bool:
        """Whether the platform drops a second message with the same nonce."""
        ...

    def split(self, reply: str, address: str) -> Iterator[str]:
        """Yield the messages in which a reply is sent to the address, each within the limit there. Pure.

        Each step is short, whatever the length of the reply. It may yield an empty text, which is no message.
        """
        ...

    async def deliver(self, post: OutgoingMessage) -> str:
        """Send the message, or edit an earlier one, and return the platform's id of it. Raises the kind of
        `DeliveryError` that fits; any other exception counts as `DeliveryUnknown`."""
        ...

    async def show(self, view: ShownTurn) -> None:
        """Show a turn while it runs: that it types, its tool calls, and its text as it comes. The first
        message that shows it is sent only if `view.is_next()`, because the reply replaces that message. The
        reply is delivered after this has ended or was cancelled. An error here ends only the showing."""
        ...


# -- delivery: sends the rows of the outbox, in order for each address, until each is sent, refused or ----


_log = logging.getLogger("talaria.delivery")
_BATCH = 64
_LOOK_SECONDS = 60.0  # for rows that another process wrote
_SHARED_LOOK_SECONDS = 1.0  # the same while other gateways are there
_FAILED_LOOK_SECONDS = 5.0
_WISH_MARGIN = 0.25  # so that a platform that counts in whole seconds is not asked too early
_SHOW_ENDS_SECONDS = 5.0
_STORE_PAUSE = 1.0
_BACKOFF = Backoff(2.0, 300.0)
_TOO_OLD = "it was too old to be sent"
_TOLD: dict[OutboxState, RecordEvent] = {OutboxState.SENT: "reply.sent", OutboxState.FAILED: "reply.failed"}


def pause_after(attempts: int, random: Random) -> float:
    """Return the seconds until the next attempt: twice as long each time, with jitter, up to five minutes."""
    return _BACKOFF.pause(attempts, random.uniform(0.5, 1.0))


async def _is_here(key: ChatKey, path: str) -> bytes | None:
    return None


def _explain_rest(reply: str, most: int) -> str:
    """Return the caption of the file that holds a reply of more than `most` messages."""
    return (
        f"The answer is {len(reply):,} characters long, more than {most} messages hold. All of it is in this "
        "file. The operator can raise limits.reply_messages."
    )


class Delivery:
    """Sends replies on all channels. The rows of a channel that is not attached wait until it is, or until
    they are too old."""

    def __init__(
        self,
        store: Store,
        live: LiveTurns,
        settings: DeliverySettings,
        read_file: Callable[[ChatKey, str], bytes],
        random: Random | None = None,
        *,
        limits: Limits | None = None,
        find_picture: FindPicture = find_no_picture,
    ) -> None:
        """`read_file` reads a file of a chat's folder and raises `ToolError`. `random` is for jitter.
        `find_picture` is for questions."""
        self._store = store
        self._live = live
        self._clock = live.clock
        self._metrics = live.metrics
        self._read_file = read_file
        self._settings = settings
        self._random = random or Random()  # noqa: S311 - it is for jitter
        self._limits = limits or Limits()
        self._find_picture = find_picture
        self._outlets: dict[str, Outlet] = {}
        self._sends: dict[tuple[str, str], asyncio.Task[None]] = {}  # by channel and address
        self._waiting: set[int] = set()  # replies that the store has kept waiting
        self._shows: dict[tuple[str, TurnId], asyncio.Task[None]] = {}  # by channel and turn
        self._watches: dict[str, asyncio.Task[None]] = {}  # of turns elsewhere, by channel
        self._questions: dict[QuestionId, asyncio.Task[None]] = {}  # that are being sent
        self._woken = asyncio.Event()
        self._new_outlets: set[str] = set()  # channels whose next due row is not known
        self._alarms: list[float] = []  # a heap of the times at which to look
        self._new_alarm = asyncio.Event()
        self._started_at = self._clock.now() - self._clock.elapsed()
        self._database_time: Callable[[], float] | None = None
        self._tell_others: Callable[[], None] | None = None
        self._has_channel: Callable[[str], bool] = lambda channel: True
        self._fetch_file: Callable[[ChatKey, str], Awaitable[bytes | None]] = _is_here
        self._look_seconds = _LOOK_SECONDS
        self._expired_at = float("-inf")
        live.observe(self._watch)

    def share(
        self,
        tell_others: Callable[[], None],
        now: Callable[[], float],
        has_channel: Callable[[str], bool],
        fetch_file: Callable[[ChatKey, str], Awaitable[bytes | None]],
    ) -> None:
        """Send together with other gateways on the same database, each on the channels that it has open.

        `tell_others` asks them to look at the outbox. `now` is the database's time, which counts for all.
        `has_channel` returns whether no other gateway may have a channel that is open here. `fetch_file`
        returns files of chats that other gateways have, and None for other files.
        """
        self._tell_others, self._database_time, self._has_channel = tell_others, now, has_channel
        self._fetch_file = fetch_file
        self._look_seconds = _SHARED_LOOK_SECONDS

    def attach(self, channel: str, outlet: Outlet, *, is_only: bool = False) -> None:
        """Send on this channel from now on: its rows that wait, and its running turns as they go. If this is
        the only gateway of a cluster that sends on it, turns that others run are shown too."""
        self._outlets[channel] = outlet
        self._new_outlets.add(channel)
        if is_only and self._live.feed.has_others:
            work = self._show_elsewhere(channel)
            self._watches[channel] = asyncio.create_task(work, name=f"turns elsewhere of {channel}")
        for live in self._live:
            if channel_of(live.turn.chat_key) == channel:
                self._show(live)
        self.wake()

    async def detach(self, channel: str) -> None:
        """Stop sending on this channel. Turns are no longer shown, since another gateway may draw over what
        they left; sends under way may finish."""
        self._outlets.pop(channel, None)
        shows = [task for (name, _), task in self._shows.items() if name == channel]
        if (watch := self._watches.pop(channel, None)) is not None:
            shows.append(watch)
        for task in shows:
            task.cancel()
        sends = [task for (name, _), task in self._sends.items() if name == channel]
        if sends:
            await asyncio.wait(sends, timeout=self._settings.timeout.total_seconds())
        for task in sends:
            task.cancel()
        await asyncio.gather(*sends, *shows, return_exceptions=True)

    def _watch(self, live: LiveTurn) -> None:
        """Show a turn while it runs, and send its reply as soon as it is settled."""
        if live.turn.inbound.address is not None:
            channel = channel_of(live.turn.chat_key)
            live.settled.add_done_callback(lambda _: self.written(channel))
            self._show(live)

    @property
    def is_busy(self) -> bool:
        """Whether a message is being sent now."""
        return bool(self._sends)

    def wake(self) -> None:
        """Look at the outbox now."""
        self._woken.set()

    def written(self, channel: str = "") -> None:
        """Look at the outbox, because a row was written. If its channel is not open here, or not known,
        others look too."""
        self.wake()
        if self._tell_others is not None and channel not in self._outlets:
            self._tell_others()

    async def run(self) -> None:
        """Send until cancelled. Sends under way are cancelled too, and tried again by the next start."""
        ticking = asyncio.create_task(self._tick(), name="delivery-tick")
        try:
            while True:
                self._woken.clear()
                await self._look()
                await self._woken.wait()
        finally:
            tasks = [ticking, *self._sends.values(), *self._shows.values(), *self._questions.values()]
            await stop(*tasks)

    async def drain(self, deadline: float) -> None:
        """Send what is due, for at most `deadline` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline):
                while await self._look() or self._sends:
                    await asyncio.gather(*self._sends.values(), return_exceptions=True)

    # -- sending --------------------------------------------------------------------------------------------

    async def _look(self) -> int:
        """Start the sends that are due and not under way, and return how many."""
        try:
            await self._expire()
            return sum([await self._begin_due(*attached) for attached in list(self._outlets.items())])
        except StoreError as error:
            _log.error("replies wait for the store: %s", error)
            self._look_at(self._now() + _FAILED_LOOK_SECONDS)
            return 0

    async def _begin_due(self, channel: str, outlet: Outlet) -> int:
        now = self._now()
        due = await self._store.outbox.due(channel, _BATCH, now)
        if channel in self._new_outlets:
            if (later := await self._store.outbox.next_due(channel, now)) is not None:
                self._look_at(later)
            self._new_outlets.discard(channel)
        fresh = [row for row in due if (channel, row.address) not in self._sends]
        for row in fresh:
            place = (channel, row.address)
            task = asyncio.create_task(self._send(outlet, row), name=f"send {row.id}")
            self._sends[place] = task
            task.add_done_callback(partial(self._sent, place))
        return len(fresh)

    def _sent(self, place: tuple[str, str], _: object) -> None:
        del self._sends[place]
        self.wake()

    async def _expire(self) -> None:
        now = self._now()
        if now - self._expired_at >= 60.0:
            self._expired_at = now
            # Rows are dated by the wall clock. A reply is old if it is old by both clocks.
            oldest = min(now, self._clock.now()) - self._settings.max_age.total_seconds()
            old = await self._store.outbox.expire(oldest, _TOO_OLD)
            if old:
                _log.warning("replies that could not be sent for too long were marked as failed: %d", old)

    async def _send(self, outlet: Outlet, row: OutboxRow) -> None:
        """Make one attempt and record how it ended. Raises nothing but `CancelledError`."""
        until = None
        try:
            await self._end_show(row)
            await self._split(outlet, row)
            until = self._now() + 2 * self._settings.timeout.total_seconds()
            claimed = await self._store.outbox.claim(row, until)
            if claimed is None:
                return
            hit(Failpoint.CLAIMED)
            mark = await self._attempt(outlet, claimed, was_tried=row.state is OutboxState.SENDING)
            hit(Failpoint.DELIVERED)
            self._metrics.delivered(row.channel, mark.state)
            await self._store.outbox.mark(mark)
            self._waiting.discard(row.id)
            self._tell(row, mark.state)
            until = mark.due_at or None
            hit(Failpoint.MARKED)
        except StoreError as error:
            level = logging.DEBUG if row.id in self._waiting else logging.ERROR
            self._waiting.add(row.id)
            _log.log(level, "reply %d waits for the store: %s", row.id, error)
            await self._clock.sleep(_STORE_PAUSE)
        finally:
            if until is not None:
                self._look_at(until)

    def _tell(self, row: OutboxRow, state: OutboxState) -> None:
        """Tell those who listen how an attempt ended."""
        feed = self._live.feed
        if feed.listeners:
            what = _TOLD.get(state, "reply.delayed")
            feed.note(RecordChange(what, str(row.id), row.chat_key, feed.now(), turn_id=row.turn_id))

    async def _split(self, outlet: Outlet, row: OutboxRow) -> None:
        """Split a reply that is longer than its platform allows, before the first attempt. `claim` then
        returns the first part. A reply of too many parts ends with a file that holds all of it."""
        if row.attempts or row.part or row.file is not None:
            return
        most, bodies = self._limits.now.reply_messages, list[str]()
        file = None
        for body in outlet.split(row.body, row.address):
            if body and len(bodies) == most:
                self._limits.refuse("reply_messages")
                file = WHOLE_REPLY
                bodies.append(_explain_rest(row.body, most))
                break
            if body:
                bodies.append(body)
            if len(bodies) != 1:
                await asyncio.sleep(0)  # a long reply is split in short steps
        if len(bodies) > 1:
            await self._store.outbox.split(row.id, bodies, file)

    async def _attempt(self, outlet: Outlet, row: OutboxRow, *, was_tried: bool) -> DeliveryResult:
        try:
            post = await self._post(row, is_repeat=was_tried and not outlet.takes_nonce)
            async with asyncio.timeout(self._settings.timeout.total_seconds()):
                platform_id = await outlet.deliver(post)
        except DeliveryRefused as error:
            _log.warning("the reply of turn %s was refused: %s", row.turn_id, error)
            return DeliveryResult(row.id, row.attempts, OutboxState.FAILED, error=error.user_text)
        except DeliveryDelayed as error:
            again = self._again(row, error.retry_after)
            # An earlier attempt may have arrived, whatever this one reports: the row then stays SENDING.
            state = OutboxState.SENDING if was_tried else OutboxState.PENDING
            return DeliveryResult(row.id, row.attempts, state, again, error=error.user_text)
        except (DeliveryError, TimeoutError) as error:
            why = str(error) or "no answer in time"
            _log.warning("the reply of turn %s may not have arrived: %s", row.turn_id, why)
            return DeliveryResult(row.id, row.attempts, OutboxState.SENDING, self._again(row), error=why)
        except Exception as error:
            _log.exception("the reply of turn %s may not have arrived", row.turn_id)
            return DeliveryResult(
                row.id, row.attempts, OutboxState.SENDING, self._again(row), error=repr(error)
            )
        return DeliveryResult(row.id, row.attempts, OutboxState.SENT, platform_id=platform_id)

    async def _post(self, row: OutboxRow, *, is_repeat: bool) -> OutgoingMessage:
        """Raises `DeliveryRefused` for a file that is gone or not in the chat's folder."""
        file = None
        if row.file == WHOLE_REPLY:
            record = await self._store.turn_record(row.turn_id)
            if record is None or record.turn.reply is None:
                raise DeliveryRefused("The whole reply is gone.")
            data = record.turn.reply.encode("utf-8", "replace")[:MAX_SENT_BYTES]
            file = OutgoingFile(WHOLE_REPLY.removeprefix("/"), data)
        elif row.file is not None:
            try:
                found = await self._fetch_file(row.chat_key, row.file)
                if found is None:
                    found = await asyncio.to_thread(self._read_file, row.chat_key, row.file)
            except ToolError as error:
                raise DeliveryRefused(error.user_text) from None
            file = OutgoingFile(row.file.rpartition("/")[2], found)
        return OutgoingMessage(row.address, row.body, row.nonce, row.edits, row.buttons, file, is_repeat)

    # -- times ----------------------------------------------------------------------------------------------

    def _now(self) -> float:
        """Return the time that rows are compared with. It does not jump."""
        if self._database_time is not None:
            return self._database_time()
        return self._started_at + self._clock.elapsed()

    def _again(self, row: OutboxRow, wish: float | None = None) -> float:
        """Return when to try again: when the platform wishes, else after a growing pause."""
        if wish is None:
            return self._now() + pause_after(row.attempts, self._random)
        return self._now() + min(max(wish, 0.0) + _WISH_MARGIN, LONGEST_WAIT)

    def _look_at(self, time: float) -> None:
        """Look at the outbox at this time."""
        heapq.heappush(self._alarms, time)
        if self._alarms[0] == time:
            self._new_alarm.set()

    async def _tick(self) -> None:
        """Look at the outbox when the earliest row that waits is due, and now and then."""
        while True:
            self._new_alarm.clear()
            seconds = self._look_seconds
            if self._alarms:
                seconds = min(seconds, self._alarms[0] - self._now())
            if seconds > 0:
                await sleep_until_woken(self._clock, seconds, self._new_alarm)
            if self._new_alarm.is_set():
                continue
            while self._alarms and self._alarms[0] <= self._now():
                heapq.heappop(self._alarms)
            self.wake()

    # -- showing --------------------------------------------------------------------------------------------

    def _show(self, live: LiveTurn) -> None:
        place = (channel_of(live.turn.chat_key), live.turn.id)
        outlet = self._outlets.get(place[0])
        if outlet is None or live.turn.inbound.address is None or place in self._shows:
            return
        task = asyncio.create_task(self._run_show(outlet, live), name=f"show {live.turn.id}")
        self._shows[place] = task
        task.add_done_callback(lambda _: self._shows.pop(place, None))

    async def _show_elsewhere(self, channel: str) -> None:
        """Show the channel's turns that other members of the cluster run, until cancelled."""
        feed = self._live.feed
        with feed.listen(lambda key: channel_of(key) == channel) as listener:
            changes: Collection[Change] = [each for each in feed.elsewhere if listener.sees(each.chat_key)]
            while changes or (changes := await listener.take()):
                for change in changes:
                    if not isinstance(change, TurnChange):
                        continue
                    is_known = (channel, change.id) in self._shows or self._live.get(change.id) is not None
                    if is_known or change.state.is_final:
                        continue
                    try:
                        record = await self._store.turn_record(change.id)
                    except StoreError as error:
                        _log.warning("turn %s is not shown: %s", change.id, error)
                        continue
                    if record is not None and not record.turn.state.is_final:
                        self._show(self._live.find(record.turn))
                changes = ()

    async def _run_show(self, outlet: Outlet, live: LiveTurn) -> None:
        try:
            is_ours = partial(self._has_channel, channel_of(live.turn.chat_key))
            await outlet.show(ShownTurn(live, self._store, is_ours, self._find_picture))
        except Exception:
            _log.warning("turn %s is not shown while it runs", live.turn.id, exc_info=True)

    async def _end_show(self, row: OutboxRow) -> None:
        """Stop showing the turn before its reply is sent, so that the reply comes last."""
        task = self._shows.get((row.channel, row.turn_id))
        if task is None:
            return
        await asyncio.wait((task,), timeout=_SHOW_ENDS_SECONDS)
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))

    # -- questions ------------------------------------------------------------------------------------------

    def show_host_question(self, turn: Turn, question: Question, outcome: str = "") -> None:
        """Send a question about a host to the turn's chat or, with `outcome`, let its message tell that. For
        a question that no running turn shows. Without an outlet for the chat nothing is sent."""
        outlet, address = self._outlets.get(channel_of(turn.chat_key)), turn.inbound.address
        if outlet is None or address is None or question.id in self._questions:
            return
        work = self._put_question(outlet, address, question, outcome)
        task = asyncio.create_task(work, name=f"show {question.id}")
        self._questions[question.id] = task
        task.add_done_callback(lambda _: self._questions.pop(question.id, None))

    async def _put_question(self, outlet: Outlet, address: str, question: Question, outcome: str) -> None:
        """Try until the platform has taken or refused the message. An attempt of which nothing is known is
        the last one, since a second message would confuse."""
        try:
            found = await self._store.find_question(question.id)
            shown = found.question.shown_id if found is not None else None
            if (shown is not None) is not bool(outcome):
                return
            buttons = () if outcome else decision_buttons(question.id)
            body = host_message(question, outcome)
            post = OutgoingMessage(address, body, question.id, shown, buttons)
            platform_id = await self._insist(outlet, post)
            if not outcome:
                await self._store.show_question(question.id, platform_id)
        except Exception:
            _log.warning("question %s is not shown as it should be", question.id, exc_info=True)

    async def _insist(self, outlet: Outlet, post: OutgoingMessage) -> str:
        attempts = 0
        while True:
            try:
                async with asyncio.timeout(self._settings.timeout.total_seconds()):
                    return await outlet.deliver(post)
            except DeliveryDelayed as error:
                attempts += 1
                wish = error.retry_after
                pause = pause_after(attempts, self._random) if wish is None else wish + _WISH_MARGIN
                await self._clock.sleep(min(pause, LONGEST_WAIT))
