"""Commands that are not built in: found by name, answered or turned into a message, and never in the way."""

from __future__ import annotations

from pathlib import Path

from support.rig import start
from talaria.commands.command import Command, CommandCall, ExtraCommand
from talaria.core.clock import SystemClock
from talaria.core.errors import TalariaError
from talaria.core.messages import Text, UserMessage
from talaria.core.turns import TurnState
from talaria.store.in_memory import MemoryStore
from talaria.turns.histories import SentExchange, after_commands
from talaria.turns.slash import ExtraCommands


async def _answer(call: CommandCall) -> str:
    if not call.args:
        raise TalariaError("Say where.", "For example: /weather2 Vienna")
    return f"Sunny in {call.args}, {call.sender.id}."


WEATHER = ExtraCommand(
    name="weather2", help="tell the weather", origin="plugin:sky", arguments="PLACE", run=_answer
)
SUM = ExtraCommand(
    name="sum-up", help="sum up", origin="skill:sum-up", message=lambda args: f"Sum up: {args}"
)
STOP = ExtraCommand(name="stop", help="never reached", origin="plugin:greedy", run=_answer)
RESET = ExtraCommand(name="reset", help="never reached", origin="plugin:greedy", run=_answer)
SECOND = ExtraCommand(name="sum-up", help="too late", origin="plugin:late", run=_answer)
EXTRA = ExtraCommands(lambda: [STOP, RESET, WEATHER, SUM], lambda: [SECOND])


def test_builtin_commands_and_earlier_sources_win() -> None:
    assert list(EXTRA) == [WEATHER, SUM]
    assert EXTRA.find("stop") is None and EXTRA.find("reset") is None and EXTRA.find("") is None
    assert EXTRA.find("sum-up") is SUM
    assert EXTRA.is_control("stop") and not EXTRA.is_control("weather2") and not EXTRA.is_control("")
    assert EXTRA.is_control("nothing"), "an unknown command says so at once"


def test_name_with_digits_is_a_command_only_if_there_is_one() -> None:
    assert EXTRA.parse("/weather2 Vienna") == Command("weather2", "Vienna")
    assert EXTRA.parse("/v2 is out") is None
    assert EXTRA.parse("/help") == Command("help")
    assert EXTRA.parse("/nothing") == Command("nothing")


def test_history_of_a_front_end_has_the_message_for_which_a_command_stands() -> None:
    said = ["/sum-up the news", "/weather2 Vienna", "/v2 is out"]
    sent = [SentExchange(UserMessage((Text(text),)), "Well.") for text in said]
    kept, is_rewritten = after_commands(sent, EXTRA)
    assert [each.said.text for each in kept if each.said] == ["Sum up: the news", "/v2 is out"]
    assert not is_rewritten


async def test_extra_commands_are_answered_listed_and_turned_into_messages(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    async with start(store, tmp_path, commands=[STOP, WEATHER, SUM]) as rig:
        answered = await rig.say("/weather2 Vienna")
        assert (answered.reply, answered.command) == ("Sunny in Vienna, tester.", "weather2")
        assert not rig.model.bodies
        failed = await rig.say("/weather2")
        assert failed.state is TurnState.FAILED and failed.error is not None
        assert failed.error.message == "Say where."
        assert (await rig.say("/sum-up the news")).reply == "You said: Sum up: the news"
        assert (await rig.say("/v2 is out")).reply == "You said: /v2 is out"
        helped = (await rig.say("/help")).reply or ""
        assert "/weather2 PLACE: tell the weather (plugin:sky)" in helped
        assert "/sum-up: sum up (skill:sum-up)" in helped
        assert "never reached" not in helped
        assert (await rig.say("/help sum-up")).reply == "/sum-up: sum up (skill:sum-up)"
        assert "Did you mean /weather2?" in ((await rig.say("/weathr")).reply or "")
        assert (await rig.say("/stop")).reply == "Nothing is running."
    await store.close()
