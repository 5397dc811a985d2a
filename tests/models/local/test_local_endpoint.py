"""The built-in model as an endpoint: its process comes when needed, goes when not, and may die."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from talaria.core.clock import Clock
from talaria.core.errors import ModelError, ModelRefused, ModelUnavailable
from talaria.core.events import ModelLoading
from talaria.core.messages import Text, UserMessage
from talaria.core.specs import Completion, ModelCall, ModelDelta, TextDelta
from talaria.models.local.downloads import WeightsDownloads
from talaria.models.local.fetch import WeightsError
from talaria.models.local.local_endpoint import LocalEndpoint
from talaria.models.local.runtime import ModelProcess
from talaria.models.local.weights import (
    DEFAULT_MODEL,
    MANIFEST,
    FetchProgress,
    Weights,
    WeightsCache,
    find_weights,
)
from talaria.testing.clock import FakeClock, HastyClock
from talaria.tools.files import READ_FILE

CHILD = (sys.executable, str(Path(__file__).with_name("fake_child.py")))


class Local:
    """An endpoint over a fake child, with weights that are a word each."""

    def __init__(self, folder: Path, clock: Clock, doing: str = "serve") -> None:
        self.clock = clock
        self.cache = HonestCache(folder)
        for weights in MANIFEST:
            self.cache.path(weights).write_text(doing)
        self.process = ModelProcess(clock, command=CHILD)
        self.downloads = WeightsDownloads(self.cache, {}, clock)
        self.requirement: ModelRefused | None = None
        self.endpoint = LocalEndpoint(
            self.cache,
            self.downloads,
            self.process,
            clock,
            idle_after=timedelta(minutes=10),
            requirement=lambda: self.requirement,
        )

    async def ask(
        self, said: str, model: str = DEFAULT_MODEL, *, tools: bool = True
    ) -> tuple[Completion, list[ModelDelta]]:
        wire, heard = self.endpoint.wire, list[ModelDelta]()
        prefix = wire.render_prefix("Be brief.", [READ_FILE] if tools else [])
        call = ModelCall(model, prefix, [wire.encode(UserMessage((Text(said),)))], session_id=said)
        return await self.endpoint.complete(call, heard.append), heard


class HonestCache(WeightsCache, frozen=True):
    """Any size will do."""

    def has(self, weights: Weights) -> bool:
        return self.path(weights).exists()


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Local]:
    made = Local(tmp_path, HastyClock())
    yield made
    await made.endpoint.close()
    assert made.process.pid is None


async def test_it_starts_with_the_first_call_and_says_that_it_loads(local: Local) -> None:
    assert local.process.pid is None
    completion, heard = await local.ask("hello")
    assert completion.message.text == "You said: hello"
    assert heard[:2] == [
        ModelLoading(f"local/{DEFAULT_MODEL}", "loading"),
        ModelLoading(f"local/{DEFAULT_MODEL}", "reading"),
    ]
    assert "".join(delta.text for delta in heard if isinstance(delta, TextDelta)) == "You said: hello"
    assert (completion.usage.input, completion.usage.output) == (30, 15), "of all calls"
    pid = local.process.pid
    _, heard = await local.ask("again")
    assert not any(isinstance(delta, ModelLoading) for delta in heard)
    assert (local.process.pid, local.process.starts) == (pid, 1)


async def test_it_gets_none_of_the_gateways_secrets(local: Local) -> None:
    os.environ["TEST_API_KEY"] = "secret"
    try:
        seen = (await local.ask("environment"))[0].message.text
    finally:
        del os.environ["TEST_API_KEY"]
    assert "PATH" in seen
    assert "TEST_API_KEY" not in seen


async def test_calls_take_turns(local: Local) -> None:
    answers = await asyncio.gather(*(local.ask(str(n)) for n in range(5)))
    assert [completion.message.text for completion, _ in answers] == [f"You said: {n}" for n in range(5)]
    assert local.process.starts == 1
    assert local.endpoint.reading().busy == 0


async def test_one_that_dies_fails_the_call_for_now_and_the_next_one_starts_it_again(local: Local) -> None:
    assert isinstance(local.clock, HastyClock)
    await local.ask("hello")
    for n in (1, 2, 3):
        with pytest.raises(ModelUnavailable, match="died: it was ended by SIGKILL"):
            await local.ask("die")
        local.clock.slept.clear()
        assert (await local.ask("hello"))[0].message.text == "You said: hello"
        assert local.process.starts == n + 1
        assert max(local.clock.slept) == 2.0 ** (n - 1), "each start waits longer than the one before"


async def test_one_that_nobody_uses_leaves_memory(tmp_path: Path) -> None:
    clock = FakeClock()
    local = Local(tmp_path, clock)
    watching = asyncio.create_task(local.endpoint.run())
    await local.ask("hello")
    pid = local.process.pid
    assert pid is not None
    await clock.play(590)
    assert await _lives(pid)
    await clock.play(30)
    while await _lives(pid):
        await asyncio.sleep(0.01)
    assert (await local.ask("hello"))[0].message.text == "You said: hello"
    watching.cancel()
    await local.endpoint.close()


async def test_another_model_takes_its_place(local: Local) -> None:
    await local.ask("hello")
    pid = local.process.pid
    assert pid is not None
    await local.ask("hello", "smollm2-135m")
    assert local.process.pid != pid
    assert not await _lives(pid)


async def test_one_that_holds_on_is_killed(tmp_path: Path) -> None:
    local = Local(tmp_path, HastyClock(), "stubborn")
    await local.ask("hello")
    pid = local.process.pid
    assert pid is not None
    await local.endpoint.close()
    assert not await _lives(pid)


@pytest.mark.parametrize(
    ("doing", "kind", "text"),
    [
        ("refuse", ModelUnavailable, "could not be loaded: RuntimeError: not a model."),
        ("libgomp", ModelRefused, "the system library libgomp is missing"),
        ("illegal", ModelRefused, "this processor lacks an instruction"),
    ],
)
async def test_one_that_cannot_load_says_why_and_what_to_do(
    tmp_path: Path, doing: str, kind: type[ModelError], text: str
) -> None:
    local = Local(tmp_path, HastyClock(), doing)
    with pytest.raises(kind, match=text) as caught:
        await local.ask("hello")
    assert caught.value.hint
    assert local.process.pid is None
    await local.endpoint.close()


async def test_what_is_not_here_names_the_command_that_fetches_it(local: Local) -> None:
    local.cache.remove(find_weights(DEFAULT_MODEL))
    with pytest.raises(ModelRefused) as caught:
        await local.ask("hello")
    assert caught.value.user_text == f"The built-in model {DEFAULT_MODEL} is not on this machine yet."
    assert f"`talaria model pull {DEFAULT_MODEL}` (491 MB)" in caught.value.hint
    with pytest.raises(ModelRefused, match="no built-in model named other"):
        await local.ask("hello", "other")


async def test_a_machine_that_lacks_something_is_told_of_in_one_sentence(local: Local) -> None:
    local.requirement = ModelRefused("It cannot run: no AVX2.", "Do that.")
    with pytest.raises(ModelRefused, match=r"It cannot run: no AVX2\. Do that\."):
        await local.ask("hello")


async def test_a_call_waits_for_weights_that_are_on_their_way(tmp_path: Path) -> None:
    local, here = Local(tmp_path, HastyClock()), asyncio.Event()
    local.cache.remove(find_weights(DEFAULT_MODEL))

    async def fetcher(weights: Weights, cache: WeightsCache, *rest: object) -> Path:
        await here.wait()
        cache.path(weights).write_text("serve")
        return cache.path(weights)

    downloads = WeightsDownloads(local.cache, {}, local.clock, find_weights(DEFAULT_MODEL), fetcher)
    local.endpoint.downloads = downloads
    running = asyncio.create_task(downloads.run())
    asking = asyncio.create_task(local.ask("hello"))
    await asyncio.sleep(0)
    here.set()
    completion, heard = await asking
    assert completion.message.text == "You said: hello"
    stages = [delta.stage for delta in heard if isinstance(delta, ModelLoading)]
    assert stages == ["fetching", "loading", "reading"]
    running.cancel()
    await local.endpoint.close()


async def test_weights_that_cannot_be_had_are_told_of_and_tried_for_again(tmp_path: Path) -> None:
    clock = FakeClock()
    local, tries = Local(tmp_path, clock), list[FetchProgress]()
    local.cache.remove(find_weights(DEFAULT_MODEL))

    async def fetcher(*rest: object) -> Path:
        tries.append(downloads.progress)  # type: ignore[arg-type]
        raise WeightsError("There is no network.", "Check it.")

    downloads = WeightsDownloads(local.cache, {}, clock, find_weights(DEFAULT_MODEL), fetcher)
    local.endpoint.downloads = downloads
    running = asyncio.create_task(downloads.run())
    await clock.until_sleepers(1)
    with pytest.raises(ModelRefused, match=r"There is no network\. Check it\."):
        await local.ask("hello")
    assert downloads.progress is not None
    assert downloads.progress.line() == "There is no network."
    await clock.play(15 + 30 + 60)
    assert len(tries) == 4
    running.cancel()


ORPHAN = """
import asyncio, sys
from pathlib import Path
from talaria.core.clock import SystemClock
from talaria.models.local.runtime import ModelProcess
async def main():
    process = ModelProcess(SystemClock(), command=sys.argv[2:])
    await process.start("tiny", Path(sys.argv[1]), lambda: None)
    print(process.pid, flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
"""


async def test_it_ends_with_the_gateway_also_when_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("serve")
    command = [sys.executable, "-c", ORPHAN, str(tmp_path / "weights"), *CHILD]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(await asyncio.to_thread(parent.stdout.readline))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    while await _lives(pid):
        await asyncio.sleep(0.01)


async def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
