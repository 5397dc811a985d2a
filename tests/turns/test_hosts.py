"""Hosts that commands want to reach: held while a person is asked, granted to the session afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from support.rig import Rig, inbound, start
from talaria.access.approvals import Decider
from talaria.core.clock import SystemClock
from talaria.core.errors import BadRequest
from talaria.core.ids import SessionId
from talaria.core.ledger import AskedQuestion, Page
from talaria.core.questions import APPROVE, DENY, QuestionKind, Span
from talaria.net.host_rules import HostAnswer, HostRequest, NetworkGate, NetworkSettings
from talaria.store.in_memory import MemoryStore
from talaria.store.sqlite.store import SqliteStore
from talaria.store.store import Store
from talaria.tools.toolset import ToolSet
from talaria.turns.live import LiveTurn
from turns.test_stopping import Gate

ADMITTED = HostAnswer(True)


@pytest.fixture
def store() -> Store:
    return MemoryStore(SystemClock())


class Scene:
    """A turn whose command runs, and wants to reach hosts."""

    def __init__(self, rig: Rig, live: LiveTurn, gate: Gate) -> None:
        self.rig = rig
        self.live = live
        self.gate = gate

    @property
    def session_id(self) -> SessionId:
        return self.live.turn.session_id

    def ask(
        self, host: str = "a.example", port: int = 443, *, is_background: bool = False
    ) -> asyncio.Task[HostAnswer]:
        request = HostRequest(self.session_id, host, port, is_background)
        return asyncio.create_task(self.rig.turns.hosts.ask(request))

    async def asked(self) -> AskedQuestion:
        while not (items := (await self.rig.store.open_questions(Page())).items):
            await asyncio.sleep(0)
        [item] = items
        return item

    async def decide(self, text: str = APPROVE, span: Span = Span.ONCE) -> None:
        decider = Decider("tester", self.live.turn.chat_key, is_operator=span is Span.ALWAYS)
        await self.rig.turns.decisions.decide_as(decider, (await self.asked()).question.id, text, span)

    async def end(self) -> None:
        self.gate.opened.set()
        await self.rig.turns.wait(self.live)


async def begin(rig: Rig, gate: Gate) -> Scene:
    live = await rig.submit("[[call gate {}]][[reply done]]")
    await gate.entered.wait()
    return Scene(rig, live, gate)


def life(store: Store, folder: Path, *gates: Gate) -> Any:
    return start(store, folder, tools=lambda known: ToolSet([*known, *gates]))


async def test_a_held_command_goes_on_after_the_approval_and_once_is_its_call(
    store: Store, tmp_path: Path
) -> None:
    gate, second = Gate("gate"), Gate("second")
    async with life(store, tmp_path, gate, second) as rig:
        live = await rig.submit("[[call gate {}]][[call second {}]][[reply done]]")
        await gate.entered.wait()
        scene = Scene(rig, live, second)
        asking, again = scene.ask(), scene.ask()
        item = await scene.asked()
        assert (item.question.kind, item.turn.id) == (QuestionKind.HOST, scene.live.turn.id)
        assert item.question.text.startswith("a.example (ports 80 and 443)")
        await scene.decide()
        assert [await asking, await again] == [ADMITTED, ADMITTED], "connections share a question"
        assert await scene.ask() == ADMITTED, "the same call connects again"
        assert await scene.ask(port=80) == ADMITTED, "the other port of the web"
        gate.opened.set()
        await second.entered.wait()
        later = scene.ask()
        await scene.decide(DENY)
        assert (await later).is_admitted is False
        assert (await scene.ask()).is_admitted is False, "a denial lasts for the turn"
        assert (await store.open_questions(Page())).items == ()
        await scene.end()


async def test_an_approval_for_a_call_is_not_for_background_processes(store: Store, tmp_path: Path) -> None:
    gate = Gate("gate")
    async with life(store, tmp_path, gate) as rig:
        scene = await begin(rig, gate)
        asking = scene.ask()
        await scene.decide()
        assert await asking == ADMITTED
        assert (await scene.ask(is_background=True)).is_admitted is False
        await scene.end()


@pytest.mark.parametrize("span", [Span.SESSION, Span.ALWAYS])
async def test_a_grant_admits_the_host_in_this_session_only(store: Store, tmp_path: Path, span: Span) -> None:
    gate = Gate("gate")
    async with life(store, tmp_path, gate) as rig:
        scene = await begin(rig, gate)
        asking = scene.ask()
        await scene.decide(span=span)
        assert await asking == ADMITTED
        assert await scene.ask() == ADMITTED
        other = scene.ask("b.example")
        await scene.decide(DENY)
        assert (await other).is_admitted is False
        await scene.end()
        assert await scene.ask() == ADMITTED
        await rig.turns.end(scene.session_id)
        assert not await store.is_granted(scene.session_id, "host:a.example:443")


async def test_a_decision_after_the_hold_is_a_grant_for_the_session(store: Store, tmp_path: Path) -> None:
    gate = Gate("gate")
    async with life(store, tmp_path, gate) as rig:
        scene = await begin(rig, gate)
        network = NetworkGate(lambda: NetworkSettings(allow=()), rig.turns.hosts.ask, hold_seconds=0.01)
        refused = await network.admit(HostRequest(scene.session_id, "a.example", 443))
        assert not refused.is_admitted and "has not answered yet" in refused.reason
        await scene.end()
        await scene.decide()
        assert await network.admit(HostRequest(scene.session_id, "a.example", 443)) == ADMITTED


async def test_a_background_process_is_refused_at_once_and_the_question_stays(
    store: Store, tmp_path: Path
) -> None:
    gate = Gate("gate")
    async with life(store, tmp_path, gate) as rig:
        scene = await begin(rig, gate)
        await scene.end()
        assert (await scene.ask(is_background=True)).is_admitted is False
        assert (await scene.ask(is_background=True)).is_admitted is False
        await scene.asked()
        await scene.decide()
        assert await scene.ask(is_background=True) == ADMITTED


async def test_nobody_is_asked_for_an_unattended_turn(store: Store, tmp_path: Path) -> None:
    gate = Gate("gate")
    async with life(store, tmp_path, gate) as rig:
        alone = replace(inbound("[[call gate {}]][[reply done]]"), is_unattended=True)
        live = await rig.turns.submit(alone)
        await gate.entered.wait()
        scene = Scene(rig, live, gate)
        assert (await scene.ask()).is_admitted is False
        assert (await store.open_questions(Page())).items == ()
        await scene.end()


async def test_a_host_is_not_answered_in_words(store: Store, tmp_path: Path) -> None:
    gate = Gate("gate")
    async with life(store, tmp_path, gate) as rig:
        scene = await begin(rig, gate)
        asking = scene.ask()
        with pytest.raises(BadRequest):
            await scene.decide("perhaps")
        await scene.decide(DENY)
        await asking
        await scene.end()


async def test_a_command_opens_three_questions_and_further_hosts_are_refused(tmp_path: Path) -> None:
    gate = Gate("gate")
    async with (
        await SqliteStore.open(tmp_path / "talaria.db", SystemClock()) as store,
        life(store, tmp_path, gate) as rig,
    ):
        scene = await begin(rig, gate)
        hosts = [f"{n}.example" for n in range(20)]
        asking = [scene.ask(host, is_background=True) for host in (*hosts, "0.example", "0.example")]
        answers = [await each for each in asking]
        items = (await store.open_questions(Page())).items
        assert len(items) == 3, "also if all of them come at once"
        too_many = {answer.reason for answer in answers if "3 requests" in answer.reason}
        assert len(too_many) == 1 and sum(answer.reason in too_many for answer in answers) >= 17
        decider = Decider("tester", scene.live.turn.chat_key)
        await rig.turns.decisions.decide_as(decider, items[0].question.id, DENY)
        assert "A person is asked" in (await scene.ask("next.example", is_background=True)).reason
        assert len((await store.open_questions(Page())).items) == 3
        await scene.end()
