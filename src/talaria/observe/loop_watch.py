"""Watches the event loop: how late it runs, which code holds it, and whether it is wedged.

The loop ticks a few times a second, and a thread looks at the age of the last tick. If the loop is held, the
thread takes the stack of the loop's thread and the task that runs there. The next tick reports the stall with
its duration. Code that holds the interpreter's lock stops the thread too; such a stall is reported without a
stack. A stall in which the process used no processor time and the thread did not run either was a pause of
the whole process (SIGSTOP) and is no stall of the loop. Neither is the time for which the loop's thread could
have run while other programs had the processors: on a busy machine messages wait, but none is refused.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread, get_ident, get_native_id
from types import FrameType

import msgspec

from talaria.core.errors import Overloaded
from talaria.core.extensions import CODE_OWNERS
from talaria.core.ids import TURN_PREFIX, TurnId
from talaria.core.limits import Limits
from talaria.core.units import format_size
from talaria.observe.health import read_rss
from talaria.observe.metrics import LoopReading, Metrics, loop_metrics

_log = logging.getLogger("talaria.loop")

TICK_SECONDS = 0.1
STALL_SECONDS = 0.25
_SETTLE_SECONDS = 2.0  # for which a stall counts after it has ended
_SCHEDULED_SHARE = 4  # scheduled work is put off at this fraction of the limit
_WARN_SECONDS = 1.0
_SCHEDSTAT = "/proc/self/task/{thread}/schedstat"
_LOG_SECONDS = 10.0  # between two reports of stalls shorter than a second
_MINUTE = 60.0
_FRAMES = 16
_TURN = re.compile(re.escape(TURN_PREFIX) + "[0-9a-z]+")
_ROOT = Path(__file__).parents[2]
_OWN = str(_ROOT / "talaria") + os.sep
_LOOP_FILES = {Path(asyncio.__path__[0], name) for name in ("events.py", "base_events.py", "runners.py")}


class Holder(msgspec.Struct, frozen=True):
    """The code that held the loop. `stack` begins with the innermost call. `turn_id` is the turn for which
    the task worked, None if it worked for none. `plugin` is the plug-in whose code it was, or that called a
    library which did; empty for the gateway's own code."""

    task: str
    turn_id: TurnId | None
    stack: tuple[str, ...]
    plugin: str = ""

    def __str__(self) -> str:
        by = f"the plug-in {self.plugin}, " if self.plugin else ""
        return f"{by}{self.task or 'a callback'}: {' < '.join(self.stack)}"


class Stall(msgspec.Struct, frozen=True):
    """A time in which the loop did not run. `holder` is None if the interpreter's lock was held too."""

    ended_at: float
    seconds: float
    holder: Holder | None


class Load:
    """How far the loop is behind, and what is put off or refused because of it.

    A stall counts for two seconds after its end, while the loop works off what has waited.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        measure: Callable[[], None] = lambda: None,
        elapsed: Callable[[], float] = time.monotonic,
        memory: Callable[[], int] = lambda: 0,
    ) -> None:
        """`measure` is called before the lag is read, so that it includes a stall that ended just now.
        `memory` returns how much memory the process has."""
        self.limits = limits or Limits()
        self._memory = memory
        self._measure = measure
        self._elapsed = elapsed
        self._lag = 0.0
        self._until = 0.0

    def note(self, seconds: float) -> None:
        """Count a stall that has ended now."""
        self._lag = max(seconds, self._recent)
        self._until = self._elapsed() + _SETTLE_SECONDS

    @property
    def lag(self) -> float:
        """The seconds for which the loop was held last, 0 if it runs in time."""
        self._measure()
        return self._recent

    @property
    def _recent(self) -> float:
        return self._lag if self._elapsed() < self._until else 0.0

    @property
    def sheds_scheduled(self) -> bool:
        """Whether work that can wait is put off."""
        return self.lag > self._limit / _SCHEDULED_SHARE

    def runs_wait(self) -> str:
        """Return why scheduled turns are not begun now, '' if they are."""
        if self.sheds_scheduled:
            return f"the event loop was held for {self._lag:.1f} s (limits.loop_lag)"
        used, most = self._memory(), self.limits.now.memory
        if used > most:
            return f"the gateway has {format_size(used)} of memory (limits.memory is {format_size(most)})"
        return ""

    @property
    def sheds_turns(self) -> bool:
        """Whether new turns are refused."""
        return self.lag > self._limit

    @property
    def _limit(self) -> float:
        return self.limits.now.loop_lag.total_seconds()

    def check(self) -> None:
        """Raise `Overloaded` while new turns are refused."""
        if self.sheds_turns:
            raise Overloaded(
                f"The gateway was held up for {self._lag:.1f} s and takes no new messages for a moment.",
                f"Send it again in {_SETTLE_SECONDS:g} seconds. {self.limits.refuse('loop_lag')}",
                retry_after=_SETTLE_SECONDS,
            )

    def trouble(self) -> str | None:
        """Return why no turns are accepted, for `Health`; None if they are."""
        return f"it was held for {self._lag:.1f} s" if self.sheds_turns else None


class LoopWatch:
    """Belongs to the running loop from `start` to `stop`.

    After `wedged_seconds` without a tick, `on_wedged` is called once in the thread, with the holder if it is
    known. It is expected to end the process.
    """

    def __init__(
        self,
        limits: Limits,
        metrics: Metrics,
        *,
        on_wedged: Callable[[Holder | None], None] = lambda holder: None,
        wedged_seconds: float = math.inf,
        on_blocked: Callable[[Holder, float], None] = lambda holder, seconds: None,
        schedstat: str = _SCHEDSTAT,
    ) -> None:
        """`on_blocked` is called on the loop, with the holder and the seconds, after a stall that is warned
        of. `schedstat` is the file in which the system reports how long the loop's thread waited for a
        processor."""
        self.load = Load(limits, measure=self._measure, memory=read_rss)
        self._metrics = metrics
        self._on_wedged = on_wedged
        self._on_blocked = on_blocked
        self._wedged_seconds = wedged_seconds
        self._run_delay = _RunDelay(schedstat)
        self._stop = Event()
        self._thread = Thread(target=self._run, name="talaria-loop-watch", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._home = 0
        self._timer: asyncio.TimerHandle | None = None
        self._worst: deque[tuple[float, float]] = deque()  # when it was late, and by how many seconds
        self._last: Stall | None = None
        self._stalls = 0
        self._logged_at = -math.inf
        self._is_starting = False
        # Written on the loop, read in the thread.
        self._ticks = 0
        self._due = math.inf
        self._cpu = 0.0
        self._delayed = 0.0
        # Written in the thread, read on the loop.
        self._looks = 0
        self._looks_before = 0
        self._seen: tuple[int, Holder | None] | None = None  # the ticks until then, and the holder
        self._is_wedged = False

    @property
    def is_wedged(self) -> bool:
        """Whether the loop was held for `wedged_seconds`. Any thread may ask."""
        return self._is_wedged

    def start(self) -> None:
        self._loop, self._home = asyncio.get_running_loop(), get_ident()
        self._run_delay.open()
        self._metrics.watch(lambda: loop_metrics(self.reading()))
        self.load.limits.watch("loop_lag", lambda: self.load.lag)
        self.load.limits.watch("memory", read_rss)
        self._schedule()
        self._thread.start()

    def begin_start(self) -> None:
        """Log no stalls until `end_start`: most are imports, which are made once. They are counted."""
        self._is_starting = True

    def end_start(self) -> None:
        """Log the stalls that come from now on, and those of the start in one line."""
        self._is_starting = False
        if self._stalls:
            _log.debug("the event loop was held %d times while the gateway started", self._stalls)

    def stop(self) -> None:
        self._stop.set()
        if self._timer is not None:
            self._timer.cancel()
        self._due = math.inf
        self._thread.join()
        self._run_delay.close()

    def reading(self) -> LoopReading:
        """Return the figures of this moment. Only the loop may ask."""
        lag, last = self.load.lag, self._last
        holder = None if last is None else last.holder
        return LoopReading(
            lag_seconds=round(lag, 3),
            worst_seconds=round(max((late for _, late in self._worst), default=0.0), 3),
            stalls=self._stalls,
            last_seconds=0.0 if last is None else round(last.seconds, 3),
            last_at=None if last is None else last.ended_at,
            held_by="" if holder is None else str(holder),
            turn_id=None if holder is None else holder.turn_id,
        )

    # -- on the loop ----------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = time.monotonic()
        late = max(0.0, now - self._due)
        self._note_late(now, late)
        if late >= STALL_SECONDS:
            self._end_stall(late)
        self._schedule()

    def _schedule(self) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)
        self._note_tick()

    def _note_tick(self) -> None:
        self._looks_before = self._looks
        self._cpu = time.process_time()
        self._delayed = self._run_delay.read()
        self._due = time.monotonic() + TICK_SECONDS
        self._ticks += 1

    def _measure(self) -> None:
        """Take in a stall that has ended but whose tick has not come yet."""
        now = time.monotonic()
        if (late := now - self._due) >= STALL_SECONDS:
            self._note_late(now, late)
            self._end_stall(late)
            self._note_tick()

    def _note_late(self, now: float, late: float) -> None:
        self._metrics.loop_was_late(late)
        worst = self._worst
        while worst and worst[0][0] < now - _MINUTE:
            worst.popleft()
        while worst and worst[-1][1] <= late:  # it will leave the minute before the new one does
            worst.pop()
        worst.append((now, late))

    def _end_stall(self, seconds: float) -> None:
        seconds -= self._run_delay.read() - self._delayed
        if seconds < STALL_SECONDS:
            return
        was_looked_at = (self._looks - self._looks_before) * TICK_SECONDS > seconds / 4
        if not was_looked_at and time.process_time() - self._cpu < seconds / 4:
            _log.info("the whole process was paused for %.1f s", seconds)
            return
        ticks, holder = self._seen or (-1, None)
        self._last = Stall(time.time(), seconds, holder if ticks == self._ticks else None)
        self._stalls += 1
        self.load.note(seconds)
        self._report(self._last)

    def _report(self, stall: Stall) -> None:
        now = time.monotonic()
        if self._is_starting:
            return
        if stall.seconds < 1 and now - self._logged_at < _LOG_SECONDS:
            return
        self._logged_at = now
        by = stall.holder or "code that could not be seen from another thread"
        # A library is imported once, mostly while the gateway starts.
        is_import = stall.holder is not None and any("importlib" in call for call in stall.holder.stack)
        is_warned = stall.seconds >= _WARN_SECONDS and not is_import
        level = logging.WARNING if is_warned else logging.INFO
        _log.log(level, "the event loop was held for %.1f s by %s", stall.seconds, by)
        if is_warned and stall.holder is not None:
            self._on_blocked(stall.holder, stall.seconds)

    # -- in the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        ticks, held, last = self._ticks, 0.0, time.monotonic()
        while not self._stop.wait(TICK_SECONDS):
            now = time.monotonic()
            self._looks += 1
            if ticks != self._ticks:
                ticks, held = self._ticks, 0.0
            else:
                # A pause of the whole process counts as one look: the loop had no chance to tick either.
                held += min(now - last, 2 * TICK_SECONDS)
            last = now
            if held >= STALL_SECONDS and (self._seen is None or self._seen[0] != ticks):
                self._seen = ticks, self._find_holder()
            if held >= self._wedged_seconds:
                self._is_wedged = True
                self._on_wedged(self._find_holder())
                return

    def _find_holder(self) -> Holder | None:
        try:
            return self._look()
        except Exception:  # the thread must live on: it ends a wedged process
            _log.exception("what holds the event loop could not be seen")
            return None

    def _look(self) -> Holder:
        assert self._loop is not None
        frame = sys._current_frames().get(self._home)
        task = asyncio.current_task(self._loop)
        name = "" if task is None else task.get_name()
        found = _TURN.search(name)
        turn_id = TurnId(found[0]) if found else None
        return Holder(name, turn_id, tuple(_describe(frame)), _blame(frame) if CODE_OWNERS else "")


class _RunDelay:
    """The seconds for which a thread waited for a processor, all its life. They stay 0 where the system does
    not tell them."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = -1

    def open(self) -> None:
        """Watch the calling thread."""
        with suppress(OSError):  # not Linux
            self._file = os.open(self._path.format(thread=get_native_id()), os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> float:
        if self._file < 0:
            return 0.0
        return int(os.pread(self._file, 64, 0).split()[1]) / 1e9  # time on a processor, time waiting, turns

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _blame(frame: FrameType | None) -> str:
    """Return the plug-in whose call is nearer to the innermost one than any call of the gateway."""
    while frame is not None:
        file = frame.f_code.co_filename
        if owner := CODE_OWNERS.find(file):
            return owner
        if file.startswith(_OWN):
            return ""
        frame = frame.f_back
    return ""


def _describe(frame: FrameType | None) -> list[str]:
    """Return the innermost calls of a stack, the innermost first."""
    calls: list[str] = []
    while frame is not None and len(calls) < _FRAMES:
        code, line = frame.f_code, frame.f_lineno
        path = Path(code.co_filename)
        if path in _LOOP_FILES:
            break
        shown = path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else path.name
        calls.append(f"{shown}:{line} in {code.co_qualname}")
        frame = frame.f_back
    return calls
