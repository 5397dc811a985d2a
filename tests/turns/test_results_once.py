"""The result of a tool stands in the log, and its step keeps no more than the beginning."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.rig import start
from talaria.core.events import PREVIEW_CHARS
from talaria.core.messages import ToolResults
from talaria.core.tools import ToolSpec
from talaria.core.turns import StepKind, Turn, TurnState
from talaria.store.store import Store
from talaria.tools.function import FunctionTool, parameters
from talaria.tools.tool import Tool, ToolContext

WHOLE = "a line of a result\n" * 100


async def _give(arguments: dict[str, object], context: ToolContext) -> str:
    return WHOLE


LOOK = FunctionTool(ToolSpec("look", "Looks.", parameters({}), read_only=True), _give)
MAKE = FunctionTool(ToolSpec("make", "Makes.", parameters({})), _give)


async def stored(store: Store, turn: Turn) -> tuple[list[str], list[str]]:
    """Return the results in the log and those in the steps."""
    log = await store.log(turn.session_id, 0)
    entries = [entry.body for entry in log if isinstance(entry.body, ToolResults)]
    record = await store.turn_record(turn.id)
    assert record is not None
    steps = [step for step in record.steps if step.kind is StepKind.TOOL]
    assert [step.call_id for step in steps] == [item.call_id for body in entries for item in body.results]
    return (
        [item.text for body in entries for item in body.results],
        [step.result.text if step.result else "" for step in steps],
    )


@pytest.mark.parametrize(
    "calls",
    ["make", "look", "make make", "look look", "look make", "make look look"],
)
async def test_steps_keep_the_beginning_of_results_that_are_in_the_log(
    store: Store, tmp_path: Path, calls: str
) -> None:
    async with start(store, tmp_path, tools=lambda tools: tools.with_tools([LOOK, MAKE])) as rig:
        marks = "+".join(f"[[call {name} {{}}]]" for name in calls.split())
        turn = await rig.say(f"{marks}[[call make {{}}]][[reply done]]")
        assert (turn.state, turn.reply) == (TurnState.DONE, "done")
        whole, kept = await stored(store, turn)
        assert whole == [WHOLE] * (calls.count(" ") + 2)
        assert kept == [WHOLE[:PREVIEW_CHARS]] * len(whole)


class Stuck(Tool):
    """A tool that never ends."""

    spec = ToolSpec("hang", "Hangs.", parameters({}))

    def __init__(self) -> None:
        self.started = asyncio.Event()

    async def run(self, arguments: dict[str, object], context: ToolContext) -> str:
        self.started.set()
        await asyncio.Event().wait()
        return ""


async def test_cancelled_turn_keeps_its_results_once(store: Store, tmp_path: Path) -> None:
    stuck = Stuck()
    async with start(store, tmp_path, tools=lambda tools: tools.with_tools([MAKE, stuck])) as rig:
        live = await rig.submit("[[call make {}]]+[[call hang {}]]")
        await stuck.started.wait()
        await rig.say("/stop")
        turn = await rig.turns.wait(live)
        assert turn.state is TurnState.CANCELLED
        whole, kept = await stored(store, turn)
        assert (whole[0], kept[0]) == (WHOLE, WHOLE[:PREVIEW_CHARS])
        assert whole[1] == kept[1] != ""


async def test_files_of_an_earlier_life_go_out_with_the_reply(store: Store, tmp_path: Path) -> None:
    (tmp_path / "plan.txt").write_text("the plan")
    stuck = Stuck()
    tools = lambda tools: tools.with_tools([stuck])  # noqa: E731
    send = '[[call send_file {"path": "plan.txt"}]]'
    async with start(store, tmp_path, tools=tools) as rig:
        live = await rig.submit(f"{send}[[call hang {{}}]][[reply here it is]]")
        await stuck.started.wait()
    async with start(store, tmp_path, tools=tools) as rig:
        resumed = await rig.turns.find(live.turn.id)
        turn = await rig.turns.wait(resumed)
        assert (turn.reply, [file.name for file in turn.files]) == ("here it is", ["plan.txt"])
