from __future__ import annotations

from talaria.core.clock import SystemClock


async def test_elapsed_time_never_goes_back() -> None:
    clock = SystemClock()
    seen = [clock.elapsed() for _ in range(1000)]
    assert seen == sorted(seen)
    await clock.sleep(0)
    assert clock.elapsed() >= seen[-1]
    assert clock.now() > 0
