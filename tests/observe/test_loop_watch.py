"""The loop's watch names what held the loop, and a load that is too high sheds."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from talaria.core.errors import Overloaded
from talaria.core.extensions import CODE_OWNERS
from talaria.core.limits import Limits, LimitSettings
from talaria.core.units import Size
from talaria.observe import loop_watch
from talaria.observe.loop_watch import Load, LoopWatch
from talaria.observe.metrics import Metrics

STALL_SECONDS = 0.25

TURN = "turn_01m7j4rad5pxp5vcg25rh868n9"


@asynccontextmanager
async def watching(loop_lag: float = 2.0, **more: Any) -> AsyncIterator[LoopWatch]:
    watch = LoopWatch(Limits(LimitSettings(loop_lag=timedelta(seconds=loop_lag))), Metrics(), **more)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()


async def hold_the_loop(seconds: float) -> None:
    """Compute for so many seconds of a processor, however long that takes on a busy machine."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def test_the_plugin_that_holds_the_loop_is_named(tmp_path: Path) -> None:
    file = tmp_path / "busy.py"
    file.write_text(
        "async def hold(work, seconds):\n    work(seconds)\n\ndef spin(seconds):\n    import time\n"
        "    end = time.thread_time() + seconds\n    while time.thread_time() < end:\n        pass\n"
    )
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    CODE_OWNERS.add(file, "busy")
    blamed: list[tuple[str, str]] = []
    limits = Limits(LimitSettings(loop_lag=timedelta(seconds=5)))
    watch = LoopWatch(
        limits, Metrics(), on_blocked=lambda holder, seconds: blamed.append((holder.plugin, holder.stack[0]))
    )
    watch.start()
    try:
        await asyncio.create_task(names["hold"](names["spin"], 1.3), name=f"turn {TURN}")
        reading = watch.reading()
    finally:
        watch.stop()
        CODE_OWNERS.drop("busy")
    assert "the plug-in busy, turn " in reading.held_by
    ((plugin, where),) = blamed
    assert plugin == "busy" and where.startswith("busy.py:") and where.endswith("in spin")


async def test_the_code_and_the_turn_that_hold_the_loop_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "talaria.loop"):
        async with watching() as watch:
            await asyncio.create_task(hold_the_loop(3 * STALL_SECONDS), name=f"turn {TURN}")
            reading = watch.reading()
    assert reading.stalls == 1
    assert reading.turn_id == TURN
    assert "in hold_the_loop" in reading.held_by
    assert reading.worst_seconds >= reading.last_seconds >= STALL_SECONDS
    assert "the event loop was held for" in caplog.text
    assert "hold_the_loop" in caplog.text


async def test_an_import_that_holds_the_loop_is_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slow = "import time\nend = time.thread_time() + 1.2\nwhile time.thread_time() < end: pass\n"
    (tmp_path / "slow_to_import.py").write_text(slow)
    monkeypatch.syspath_prepend(tmp_path)
    with caplog.at_level(logging.INFO, "talaria.loop"):
        async with watching() as watch:
            importlib.import_module("slow_to_import")
            assert watch.reading().stalls == 1
    assert [record.levelname for record in caplog.records] == ["INFO"]


async def test_stalls_of_the_start_are_counted_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "talaria.loop"):
        async with watching() as watch:
            watch.begin_start()
            await hold_the_loop(3 * STALL_SECONDS)
            assert watch.reading().stalls == 1
            watch.end_start()
            assert caplog.records == []
            await hold_the_loop(3 * STALL_SECONDS)
            assert watch.reading().stalls == 2
    assert "the event loop was held for" in caplog.text


async def test_code_that_lets_no_thread_run_is_reported_afterwards() -> None:
    async with watching() as watch:
        n = 10_000_000
        while watch.reading().stalls == 0:
            sum(range(n))  # one call into C, which keeps the interpreter's lock
            n *= 2
        reading = watch.reading()
    assert reading.last_seconds >= STALL_SECONDS
    assert reading.turn_id is None


async def test_an_idle_loop_has_no_stalls() -> None:
    async with watching() as watch:
        await asyncio.sleep(0)
        assert (watch.reading().lag_seconds, watch.reading().stalls) == (0.0, 0)
        assert watch.load.trouble() is None


async def test_a_load_that_is_too_high_sheds_scheduled_work_first_and_then_turns() -> None:
    limits = Limits(LimitSettings(loop_lag=timedelta(seconds=2)))
    load = Load(limits)
    load.check()
    load.note(0.6)
    assert (load.sheds_scheduled, load.sheds_turns) == (True, False)
    load.check()
    load.note(2.1)
    assert load.sheds_turns
    with pytest.raises(Overloaded, match=r"limits\.loop_lag") as refused:
        load.check()
    assert refused.value.retry_after > 0
    assert limits.readings()["loop_lag"].refused == 1
    assert load.trouble() == "it was held for 2.1 s"


def test_too_much_memory_or_lag_puts_scheduled_turns_off_and_nothing_else() -> None:
    used = [100 << 20]
    load = Load(Limits(LimitSettings(memory=Size(1 << 30))), memory=lambda: used[0])
    assert load.runs_wait() == ""
    used[0] = 3 << 30
    assert load.runs_wait() == "the gateway has 3.0 GiB of memory (limits.memory is 1.0 GiB)"
    load.check()
    assert (load.sheds_scheduled, load.trouble()) == (False, None)
    used[0] = 0
    load.note(0.6)
    assert load.runs_wait() == "the event loop was held for 0.6 s (limits.loop_lag)"
    load.check()


async def test_a_stall_sheds_before_its_tick_came() -> None:
    wedged: list[object] = []
    more = {"on_wedged": wedged.append, "wedged_seconds": STALL_SECONDS}
    async with watching(loop_lag=STALL_SECONDS, **more) as watch:
        await hold_the_loop(3 * STALL_SECONDS)
        assert watch.load.sheds_turns
    assert len(wedged) == 1, "the loop is reported as wedged once"


PAUSED = """
import asyncio, os, sys
from talaria.core.limits import Limits
from talaria.observe.loop_watch import LoopWatch
from talaria.observe.metrics import Metrics

async def main():
    watch = LoopWatch(Limits(), Metrics(), on_wedged=lambda holder: os._exit(3), wedged_seconds=0.5)
    watch.start()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    print("ready", flush=True)
    await reader.readline()
    reading = watch.reading()
    watch.stop()
    print(reading.stalls, watch.load.lag, flush=True)

asyncio.run(main())
"""


async def test_a_process_that_was_stopped_is_neither_wedged_nor_loaded() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PAUSED, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        os.kill(process.pid, signal.SIGSTOP)
        await asyncio.sleep(0.8)  # longer than it takes to be wedged
        os.kill(process.pid, signal.SIGCONT)
        process.stdin.write(b"\n")
        assert await process.stdout.readline() == b"0 0.0\n"
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_machine_that_is_busy_with_other_programs_is_no_load_of_the_gateway(tmp_path: Path) -> None:
    schedstat = tmp_path / "schedstat"
    schedstat.write_text("0 0 0\n")
    async with watching(loop_lag=STALL_SECONDS, schedstat=str(schedstat)) as watch:
        began = time.monotonic()
        await hold_the_loop(STALL_SECONDS * 1.5)
        waited = time.monotonic() - began + 60.0  # more: the test itself may have to wait before it goes on
        schedstat.write_text(f"0 {waited * 1e9:.0f} 9\n")
        reading = watch.reading()
        assert (reading.stalls, watch.load.sheds_turns) == (0, False)
    assert reading.worst_seconds > STALL_SECONDS, "it was late"


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not tell run delays")
async def test_the_time_that_the_loop_waits_for_a_processor_is_read_from_the_system() -> None:
    """Linux writes the nanoseconds on a processor, those of waiting, and the number of turns."""

    def waited() -> float:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9

    delay = loop_watch._RunDelay(loop_watch._SCHEDSTAT)
    delay.open()
    try:
        assert waited() <= delay.read() <= waited()
    finally:
        delay.close()
