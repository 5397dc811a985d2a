"""The life of the process of the built-in model: how long a start waits after failures, and what ends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.local.test_local_endpoint import CHILD
from talaria.core.errors import ModelRefused, ModelUnavailable
from talaria.models.local.runtime import ModelProcess
from talaria.testing.clock import HastyClock


class Life:
    """A process over a fake child, and the pauses before its starts."""

    def __init__(self, folder: Path) -> None:
        self.clock = HastyClock()
        self.process = ModelProcess(self.clock, command=CHILD)
        self.weights = folder / "weights"
        self.loads = 0

    async def start(self, doing: str = "serve", name: str = "m") -> float:
        """Start it. Gives the pause before."""
        self.weights.write_text(doing)
        self.clock.slept.clear()
        try:
            await self.process.start(name, self.weights, self.load)
        finally:
            (self.pause,) = self.clock.slept
        return self.pause

    def load(self) -> None:
        self.loads += 1


async def test_each_failed_start_waits_longer_and_an_unload_begins_anew(tmp_path: Path) -> None:
    life = Life(tmp_path)
    pauses = []
    for _ in range(3):
        with pytest.raises(ModelUnavailable, match="not a model"):
            await life.start("refuse")
        pauses.append(life.pause)
    assert pauses == [0, 1, 2]
    assert await life.start() == 4
    assert (life.process.is_running, life.process.starts, life.loads) == (True, 4, 4)
    await life.process.unload()
    assert (life.process.is_running, life.process.pid) == (False, None)
    assert await life.start() == 0
    assert await life.start(name="other") == 0, "a process for other weights is no failure"
    assert life.process.serves("other")
    assert not life.process.serves("m")
    address = await life.process.start("other", life.weights, life.load)
    assert address == await life.process.start("other", life.weights, life.load)
    assert life.process.starts == 6
    assert await life.process.exit_reason() is None
    await life.process.stop()
    await life.process.stop()
    assert await life.process.exit_reason() is None


async def test_a_process_that_dies_by_itself_counts_as_a_failure(tmp_path: Path) -> None:
    life = Life(tmp_path)
    await life.start()
    for expected in (1, 2):
        child = life.process._child
        assert child is not None
        child.kill()
        await child.wait()
        assert await life.process.exit_reason() == "it was ended by SIGKILL"
        assert await life.start() == expected
    child = life.process._child
    assert child is not None
    life.clock.advance(3600)
    child.kill()
    await child.wait()
    assert await life.start() == 1, "it had run for long"
    await life.process.stop()


@pytest.mark.parametrize(
    ("doing", "kind", "words"),
    [
        ("libgomp", ModelRefused, "libgomp is missing"),
        ("illegal", ModelRefused, "lacks an instruction"),
        ("refuse", ModelUnavailable, "could not be loaded: RuntimeError: not a model"),
    ],
)
async def test_a_start_that_fails_says_why(
    tmp_path: Path, doing: str, kind: type[Exception], words: str
) -> None:
    life = Life(tmp_path)
    with pytest.raises(kind, match=words):
        await life.start(doing)
    assert not life.process.is_running


async def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    process = ModelProcess(HastyClock(), command=[str(tmp_path / "none")])
    with pytest.raises(ModelUnavailable, match="could not be started: No such file"):
        await process.start("m", tmp_path, lambda: None)
