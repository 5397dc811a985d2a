"""Delegates in the background: their parent continues, and each reports to it exactly once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.asking_tools import Danger, calling
from support.gateway import Api, in_process, real_process
from support.waiting import until
from talaria.core.clock import SystemClock
from talaria.core.failpoints import Failpoint
from talaria.core.ids import TurnId
from talaria.core.turns import TurnState
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer
from turns.test_delegates import asked, hand_out, results_of


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


def aside(*tasks: str) -> str:
    return hand_out(*tasks, background=True)


async def reports_of(api: Api | GatewayProcess, session_id: str) -> list[str]:
    """Return the messages about ends of delegates in a session."""
    path = f"/api/sessions/{session_id}/entries"
    page = await (api.get(path) if isinstance(api, Api) else api.call("GET", path))
    texts = (part.get("text", "") for entry in page["entries"] for part in entry["body"].get("parts", ()))
    return [text for text in texts if "in the background has ended" in text]


async def test_a_delegate_in_the_background_reports_once_and_its_parent_does_not_wait(
    tmp_path: Path, model: ModelServer
) -> None:
    async with in_process(tmp_path, model) as api:
        turn = await api.say("chat", aside("[[delay 0.3]][[reply found 42]]") + "[[reply started]]")
        assert turn["reply"] == "started"
        session = turn["session_id"]
        (handed,) = await results_of(api, session)
        assert handed.startswith("Handed out in the background.")
        assert not await reports_of(api, session)
        (report,) = await until(lambda: reports_of(api, session))
        assert "It is done:\nfound 42]" in report
        await until(lambda: not list(api.gateway.turns.live))
        assert len(await reports_of(api, session)) == 1
        assert not await api.gateway.store.owed_delegates()


async def test_reports_join_the_turn_that_runs(tmp_path: Path, model: ModelServer) -> None:
    wait = '[[call terminal {"command": "until test -e go; do sleep 0.02; done"}]]'
    async with in_process(tmp_path, model) as api:
        marks = aside('[[call write_file {"path": "go", "content": ""}]][[reply quick]]')
        turn = await api.say("chat", marks + wait + "[[reply all]]")
        (report,) = await until(lambda: reports_of(api, turn["session_id"]))
        assert "quick" in report


async def test_only_the_agent_of_a_person_has_delegates_in_the_background(
    tmp_path: Path, model: ModelServer
) -> None:
    async with in_process(tmp_path, model) as api:
        await api.say("chat", hand_out(aside("[[reply never]]") + "[[reply ok]]") + "[[reply ok]]")
    assert asked(model, "[[reply never]]") == 0
    assert any(b"can hand out tasks in the background" in body for body in model.bodies)


async def test_stop_ends_what_works_in_the_background_without_a_report(
    tmp_path: Path, model: ModelServer
) -> None:
    tasks = ["[[hang]]"] * 4  # one of them waits for a place
    async with in_process(tmp_path, model) as api:
        turn = await api.say("chat", aside(*tasks) + "[[reply started]]")
        await until(lambda: asked(model, "[[hang]]") == 3)
        listed = (await api.say("chat", "/agents"))["reply"]
        assert listed.count("— running") == 3
        assert (await api.say("chat", "/stop"))["reply"] == "Stopped 4 tasks in the background."
        await until(lambda: not list(api.gateway.turns.live))
        assert asked(model, "[[hang]]") == 3
        assert not await reports_of(api, turn["session_id"])
        assert (await api.say("chat", "/stop"))["reply"] == "Nothing is running."


async def test_a_stop_that_is_carried_out_again_ends_nothing_that_came_after_it(
    tmp_path: Path, model: ModelServer
) -> None:
    async with in_process(tmp_path, model) as api:
        await api.say("chat", "hello")
        record = await api.gateway.store.turn_record(TurnId((await api.say("chat", "/stop"))["id"]))
        assert record is not None
        turn = await api.say("chat", aside("[[delay 0.3]][[reply found 42]]") + "[[reply started]]")
        again = await api.gateway.turns._runner.slash.stop(record.turn, "")
        assert again.reply == "Nothing is running."
        await until(lambda: reports_of(api, turn["session_id"]))


async def test_one_that_is_stopped_by_number_reports_what_it_has_said(
    tmp_path: Path, model: ModelServer
) -> None:
    async with in_process(tmp_path, model) as api:
        turn = await api.say("chat", aside("[[hang]]") + "[[reply started]]")
        await until(lambda: asked(model, "[[hang]]"))
        assert (await api.say("chat", "/agents stop 1"))["reply"].startswith("Stopped “[[hang]]”.")
        (report,) = await until(lambda: reports_of(api, turn["session_id"]))
        assert "stopped by a person" in report


async def test_a_new_session_ends_what_the_old_one_has_in_the_background(
    tmp_path: Path, model: ModelServer
) -> None:
    async with real_process(tmp_path, model) as gateway:
        await gateway.begin("chat", aside("[[hang]]") + "[[reply started]]")
        await until(lambda: asked(model, "[[hang]]"))
        new = await gateway.begin("chat", "/new")
        await gateway.ended_turn(new)
        await gateway.kill()
        await gateway.start()

        async def is_at_rest() -> bool:
            turns = (await gateway.call("GET", "/api/status"))["turns"]
            return bool(turns["running"] == turns["waiting"] == turns["accepted"] == 0)

        await until(is_at_rest, pause=0.05)
        assert await owed_in(gateway) == 0


@pytest.mark.parametrize(
    ("point", "hit"),
    [
        (Failpoint.PARKED, 1),
        *((Failpoint.HANDED_OUT, n) for n in (1, 2)),
        *((Failpoint.ENDED, n) for n in (1, 2, 3)),
        *((Failpoint.WOKEN, n) for n in (1, 2)),
    ],
)
async def test_a_kill_neither_loses_a_report_nor_repeats_it(
    tmp_path: Path, model: ModelServer, point: Failpoint, hit: int
) -> None:
    async with real_process(tmp_path, model, failpoints=f"{point}={hit}") as gateway:
        with suppress(aiohttp.ClientError):
            await gateway.begin("chat", aside("[[reply first]]", "[[reply second]]") + "[[reply ok]]")
        await gateway.wait(20)
        assert not gateway.is_running, "the failpoint was not reached"
        await gateway.start()
        (session,) = (await gateway.call("GET", "/api/sessions"))["items"]

        async def has_reported() -> bool:
            return await owed_in(gateway) == 0 and len(await reports_of(gateway, session["id"])) >= 2

        await until(has_reported, pause=0.05)
        reports = await reports_of(gateway, session["id"])
    assert sorted("first" in each for each in reports) == [False, True]
    assert (asked(model, "[[reply first]]"), asked(model, "[[reply second]]")) <= (2, 2)


async def owed_in(gateway: GatewayProcess) -> int:
    async with await SqliteStore.open(gateway.home / "talaria.db", SystemClock()) as store:
        return len(await store.owed_delegates())


async def test_a_person_tells_a_delegate_something_that_it_reads_next(
    tmp_path: Path, model: ModelServer
) -> None:
    danger = Danger()
    async with in_process(tmp_path, model, parts=danger.parts()) as api:
        inner = hand_out(calling("ls") + "[[reply looked]]") + "[[reply inner]]"
        turn_id = await api.begin("chat", hand_out(inner) + "[[reply all]]")

        async def requests() -> list[dict[str, Any]]:
            return list((await api.get("/api/approvals"))["items"])

        (request,) = await until(requests)
        await until(lambda: all(live.turn.state is TurnState.WAITING for live in api.gateway.turns.live))
        asking = await api.say("chat", "/agents tell 2 Skip the tests.")
        assert asking["reply"].startswith("It was not told")
        told = await api.say("chat", "/agents tell 1 Skip the tests.")
        assert told["reply"].endswith("reads this next.")
        assert not any(b"Skip the tests." in body for body in model.bodies)
        await api.say("chat", f"/approve {request['id']}")
        await api.gateway.turns.wait(await api.gateway.turns.find(TurnId(turn_id)))
        assert any(b"Skip the tests." in body for body in model.bodies)
        assert (await api.get(f"/api/turns/{turn_id}"))["reply"] == "all"
        late = await api.say("chat", "/agents tell 1 Too late.")
        assert late["reply"] == "It has ended already."
