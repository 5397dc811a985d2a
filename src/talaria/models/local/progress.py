"""How far a fetch is, as a snapshot that anybody may show."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import StrEnum

import msgspec

from talaria.core.units import format_wait

_WINDOW_SECONDS = 10.0
_FIRST_SECONDS = 2.0  # what is measured in less says nothing


class Stage(StrEnum):
    WAITING = "waiting"  # for another process that fetches the same file
    FETCHING = "fetching"
    VERIFYING = "verifying"
    HERE = "here"
    FAILED = "failed"


class Progress(msgspec.Struct, frozen=True):
    """`rate` is bytes a second over the last ten seconds, zero while it is not known."""

    model: str
    stage: Stage
    done: int
    total: int
    rate: float = 0.0
    source: str = ""
    error: str = ""

    @property
    def seconds_left(self) -> float | None:
        if self.done >= self.total:
            return 0.0
        return (self.total - self.done) / self.rate if self.rate > 0 else None

    def view(self) -> dict[str, object]:
        return {**msgspec.structs.asdict(self), "rate": round(self.rate), "seconds_left": self.seconds_left}

    def line(self) -> str:
        """`fetching 128/491 MB, 15.2 MB/s, 31 s left`."""
        if self.stage is Stage.FAILED:
            return self.error
        if self.stage is Stage.VERIFYING:
            return f"verifying {megabytes(self.total)} MB"
        parts = [f"{self.stage} {megabytes(self.done)}/{megabytes(self.total)} MB"]
        if self.rate:
            parts.append(f"{self.rate / 1e6:.1f} MB/s")
            parts.append(f"{format_wait(self.seconds_left or 0.0)} left")
        return ", ".join(parts)


def megabytes(count: int) -> str:
    return f"{count / 1e6:.0f}" if count >= 10_000_000 else f"{count / 1e6:.1f}"


class Meter:
    """Makes snapshots of one fetch and hands them on. What was here before, and what is fetched again after a
    source has failed, makes no difference to the rate: it counts the bytes that came."""

    def __init__(
        self, model: str, total: int, now: Callable[[], float], report: Callable[[Progress], None]
    ) -> None:
        self._model = model
        self._total = total
        self._now = now
        self._report = report
        self._done: int | None = None
        self._came = 0
        self._seen: deque[tuple[float, int]] = deque()  # when so much had come
        self.source = ""

    def at(self, done: int, stage: Stage = Stage.FETCHING) -> None:
        if self._done is not None:
            self._came += max(0, done - self._done)
        self._done = done
        # What another process fetches is seen in bursts of whole parts.
        rate = self._rate() if stage is Stage.FETCHING else 0.0
        self._report(Progress(self._model, stage, done, self._total, rate, self.source))

    def _rate(self) -> float:
        """Time begins with the first bytes: how long it took to find them is no measure of the rest."""
        now = self._now()
        if self._came and (not self._seen or now - self._seen[-1][0] > 0.2):
            self._seen.append((now, self._came))
        while len(self._seen) > 1 and now - self._seen[1][0] >= _WINDOW_SECONDS:
            self._seen.popleft()
        if not self._seen or now - self._seen[0][0] < _FIRST_SECONDS:
            return 0.0
        began, before = self._seen[0]
        return (self._came - before) / (now - began)
