"""What a process holds, as /proc shows it, and small statistics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def memory(pid: int) -> int:
    """Return the resident bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def most_memory(pid: int) -> int:
    """Return the most resident bytes so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def children(pid: int) -> list[int]:
    listings = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return [int(child) for listing in listings for child in listing.split()]


async def left_over(read: Callable[[], int], allowed: int, seconds: float) -> int:
    """Return how much more than `allowed` there is, at the latest after `seconds`; a broken connection is
    closed a moment later."""
    for _ in range(int(seconds * 10)):
        if read() <= allowed:
            return 0
        await asyncio.sleep(0.1)
    return max(0, read() - allowed)


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that is not below `share` of all; 0 for none."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the best-fitting line, or 0 for too few points."""
    count = len(points)
    if count < 2:
        return 0.0
    middle_x, middle_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / spread if spread else 0.0
