"""What `talaria doctor` says of jobs."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from talaria.cli.gateway_checks import check_jobs, find_jobs
from talaria.config.home import Home
from talaria.config.settings import settings_type
from talaria.core.access import OWNER
from talaria.core.clock import SystemClock
from talaria.core.ids import ChatKey, JobId, OwnerId
from talaria.core.jobs import (
    MAX_FAILURES,
    AddJob,
    ClaimSlots,
    EditJob,
    Every,
    JobOrigin,
    JobPlan,
    SettleSlot,
    SlotState,
)
from talaria.core.problems import Severity
from talaria.core.turns import Sender
from talaria.parts import PARTS
from talaria.store.part import open_store

CHAT = ChatKey("agent:main:http:api:terminal")


async def test_jobs_that_cannot_run_or_be_heard_are_told(tmp_path: Path) -> None:
    home, settings = Home(tmp_path), settings_type(PARTS)()
    home.prepare()
    assert await find_jobs(home, settings, None) == ()

    async def told(*, is_running: bool = False) -> list[tuple[Severity, str, str]]:
        jobs = await find_jobs(home, settings, None)
        found = check_jobs(jobs, home, settings, PARTS, is_running=is_running)
        return [(finding.severity, finding.text, finding.command) async for finding in found]

    async def save(**plans: JobPlan) -> None:
        origin = JobOrigin(OWNER, CHAT, Sender("me"))
        async with open_store(home.database, SystemClock()) as store:
            for name, unnamed in plans.items():
                job_id, plan = JobId(f"job_{name}"), msgspec.structs.replace(unnamed, name=name)
                await store.jobs.add(AddJob(job_id, origin, plan, time.time() + 3600, 100))

    hourly = JobPlan("look", Every(3600, 0.0), "")
    await save(fine=hourly)
    assert await told() == [(Severity.OK, "1 job active.", "")]

    await save(
        lost=msgspec.structs.replace(hourly, zone="Mars/Olympus"),
        away=msgspec.structs.replace(hourly, to="agent:main:telegram:dm:7"),
        silent=msgspec.structs.replace(hourly, to="none"),
        failing=hourly,
        late=hourly,
    )
    async with open_store(home.database, SystemClock()) as store:
        for number in range(MAX_FAILURES):
            await store.jobs.fire(JobId("job_failing"), 1000.0 + number, is_manual=True)
            (claimed,) = await store.jobs.claim(ClaimSlots(OwnerId("own_me"), 4))
            await store.jobs.settle(SettleSlot(claimed.slot.claim, SlotState.FAILED, "it broke"))
        late = await store.jobs.find(JobId("job_late"))
        assert late is not None
        order = EditJob(late.id, late.version, late.plan, late.state, time.time() - 3600)
        await store.jobs.edit(order)
    found = await told()
    assert {level for level, *_ in found} == {Severity.WARN}
    texts = "\n".join(text for _, text, _ in found)
    assert "“failing” is paused: it failed 10 times in a row" in texts
    assert "“lost” has a time zone that this machine does not know: Mars/Olympus" in texts
    assert "Results of “away” cannot arrive: telegram is not connected" in texts
    assert "1 job should have run: “late”. No gateway runs." in texts
    assert len(found) == 4
    assert {command for *_, command in found} >= {
        "talaria jobs resume job_failing",
        "talaria jobs edit job_lost --timezone UTC",
    }
    assert len(await told(is_running=True)) == 3, "a gateway that runs is about to run it"

    await save(watch=msgspec.structs.replace(hourly, check="test -e new"))
    tools = msgspec.structs.replace(settings.tools, sandbox="container")
    settings = msgspec.structs.replace(settings, tools=tools)
    assert "no sandbox for the checks of “watch”" in (await told(is_running=True))[-1][1]
