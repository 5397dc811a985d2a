"""How far a fetch is, as a snapshot that anybody may show."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import StrEnum

import msgspec

_WINDOW_SECONDS = 60.0  # parts come in bursts


class Stage(StrEnum):
    WAITING = "waiting"  # for another process that fetches the same file
    FETCHING = "fetching"
    VERIFYING = "verifying"
    HERE = "here"
    FAILED = "failed"


class Progress(msgspec.Struct, frozen=True):
    """`rate` is bytes a second over the last seconds, zero while it is not known."""

    model: str
    stage: Stage
    done: int
    total: int
    rate: float = 0.0
    source: str = ""
    error: str = ""

    @property
    def seconds_left(self) -> float | None:
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
        if (left := self.seconds_left) is not None:
            parts.append(f"{spoken_seconds(left)} left")
        return ", ".join(parts)


def megabytes(count: int) -> str:
    return f"{count / 1e6:.0f}" if count >= 10_000_000 else f"{count / 1e6:.1f}"


def spoken_seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


class Meter:
    """Makes snapshots of one fetch and hands them on."""

    def __init__(
        self, model: str, total: int, now: Callable[[], float], report: Callable[[Progress], None]
    ) -> None:
        self._model = model
        self._total = total
        self._now = now
        self._report = report
        self._seen: deque[tuple[float, int]] = deque()
        self.source = ""

    def at(self, done: int, stage: Stage = Stage.FETCHING) -> None:
        now = self._now()
        if self._seen and done < self._seen[-1][1]:
            self._seen.clear()
        if not self._seen or now - self._seen[-1][0] > 0.2:
            self._seen.append((now, done))
        while now - self._seen[0][0] > _WINDOW_SECONDS and len(self._seen) > 2:
            self._seen.popleft()
        began, first = self._seen[0]
        rate = (done - first) / (now - began) if now - began > 0.2 else 0.0
        self._report(Progress(self._model, stage, done, self._total, rate, self.source))
