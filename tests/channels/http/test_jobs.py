"""`/api/jobs`: what would be saved, what is saved, and who may see it."""

from __future__ import annotations

from typing import Any

import pytest

from channels.http.test_roles import add_token, bearer
from support.gateway import Api
from support.waiting import until
from talaria.core.jobs import EditJob, JobState

DAILY = {"text": "the news", "when": "every weekday at 9", "name": "news", "timezone": "Europe/Berlin"}


async def call(api: Api, method: str, path: str, status: int = 200, body: Any = None, **more: Any) -> Any:
    async with api.client.request(method, api.url + path, json=body, **more) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def test_a_job_is_shown_confirmed_changed_run_and_removed(api: Api) -> None:
    shown = await api.post("/api/jobs", DAILY | {"confirm": False})
    assert (shown["worded"], len(shown["next"])) == (True, 3)
    assert all(" 09:00 CE" in instant for instant in shown["next"])
    assert (await api.get("/api/jobs"))["items"] == []
    job = await api.post("/api/jobs", DAILY | {"asked_at": shown["asked_at"]}, 201)
    assert job["next"] == shown["next"]
    assert (job["state"], job["schedule"], job["session"], job["missed"]) == (
        "active",
        "cron 0 9 * * 1-5",
        "new",
        "once",
    )
    assert (await api.get("/api/jobs"))["items"] == [job]
    assert await api.get(f"/api/jobs/{job['id']}") == await api.get("/api/jobs/news") == job
    edited = await call(api, "PATCH", "/api/jobs/news", body={"when": "every day at 7", "to": "none"})
    assert (edited["schedule"], edited["to"], edited["text"]) == ("cron 0 7 * * *", "none", job["text"])
    paused = await call(api, "PATCH", "/api/jobs/news", body={"state": "paused"})
    assert (paused["state"], paused["next"]) == ("paused", [])
    assert (await call(api, "PATCH", "/api/jobs/news", body={"state": "active"}))["state"] == "active"
    assert (await call(api, "DELETE", "/api/jobs/news"))["id"] == job["id"]
    await api.get("/api/jobs/news", 404)


async def test_a_run_on_request_is_a_run_of_the_job(api: Api) -> None:
    await api.post("/api/jobs", DAILY, 201)
    run = await api.post("/api/jobs/news/run", status=202)
    assert (run["state"], run["manual"]) == ("due", True)
    (listed,) = (await api.get("/api/jobs/news/runs"))["items"]
    assert listed["id"] == run["id"]
    assert {"id", "slot", "state", "turn_id", "reason"} <= set(listed)
    await until(lambda: _is_done(api))


async def _is_done(api: Api) -> bool:
    (run,) = (await api.get("/api/jobs/news/runs"))["items"]
    return bool(run["state"] == "done")


async def test_a_sentence_is_a_job(api: Api) -> None:
    job = await api.post("/api/jobs", {"text": "remind me in ten minutes to stretch"}, 201)
    assert (job["text"], job["reminder"]) == ("stretch", True)


async def test_finished_jobs_are_listed_apart(api: Api) -> None:
    await api.post("/api/jobs", DAILY, 201)
    job = await api.post("/api/jobs", {"text": "Stretch.", "every": "1h", "remind": True}, 201)
    assert job["results_to"].startswith("the chat terminal")
    store = api.gateway.store.jobs
    stored = await store.find(job["id"])
    assert stored is not None
    await store.edit(EditJob(stored.id, stored.version, stored.plan, JobState.DONE, None))
    finished = (await api.get("/api/jobs?finished=1&limit=20"))["items"]
    assert [(found["id"], found["state"]) for found in finished] == [(job["id"], "done")]
    assert [found["name"] for found in (await api.get("/api/jobs?unfinished=1"))["items"]] == ["news"]


async def test_remind_and_quiet_are_fields_of_a_job(api: Api) -> None:
    plain = await api.post("/api/jobs", DAILY, 201)
    assert (plain["reminder"], plain["quiet"]) == (False, False)
    quiet = await call(api, "PATCH", "/api/jobs/news", body={"quiet": True})
    assert (quiet["reminder"], quiet["quiet"]) == (False, True)
    body = {"remind": True, "quiet": False}
    reminder = await call(api, "PATCH", "/api/jobs/news", body=body)
    assert (reminder["reminder"], reminder["quiet"]) == (True, False)
    refused = await call(api, "PATCH", "/api/jobs/news", 400, {"session": "same"})
    assert "takes no session" in refused["error"]["message"]
    shown = await api.post("/api/jobs", {"text": "x", "every": "1h", "remind": True, "confirm": False})
    assert (shown["reminder"], shown["lines"][0]) == (True, "Reminder: x")


@pytest.mark.parametrize(
    ("body", "kind", "told"),
    [
        ({"text": "x", "when": "every day"}, "unclear_schedule", "At what time"),
        ({"text": "x", "cron": "0 9 31 2 *"}, "bad_request", "31 February"),
        ({"text": "x", "every": "1m"}, "bad_request", "5m is the shortest"),
        ({"text": "x", "every": "1h", "timezone": "Mars/Base"}, "bad_request", "no time zone"),
        ({"text": "x", "every": "1h", "chat": "a b"}, "bad_request", "not a valid chat name"),
        ({"text": "x", "when": "in ten minutes", "asked_at": 5}, "bad_request", "out of date"),
        ({"text": "x", "every": 5}, "bad_request", "expected `str`"),
    ],
)
async def test_a_wrong_job_is_refused_with_the_reason(
    api: Api, body: dict[str, Any], kind: str, told: str
) -> None:
    error = (await api.post("/api/jobs", body, 400))["error"]
    assert error["type"] == kind
    assert told in error["message"]
    assert error["hint"]
    assert (await api.get("/api/jobs"))["items"] == []


async def test_a_token_that_chats_has_jobs_of_its_own(api: Api) -> None:
    phone, tablet = await add_token(api, "phone", "chat"), await add_token(api, "tablet", "chat")
    mine = await api.post("/api/jobs", DAILY, 201, headers=bearer(phone))
    await api.post("/api/jobs", DAILY | {"name": "home"}, 201)
    own = (await api.get("/api/jobs", headers=bearer(phone)))["items"]
    assert [job["id"] for job in own] == [mine["id"]]
    assert (await api.get("/api/jobs", headers=bearer(tablet)))["items"] == []
    await api.get(f"/api/jobs/{mine['id']}", 404, headers=bearer(tablet))
    await api.post(f"/api/jobs/{mine['id']}/run", status=404, headers=bearer(tablet))
    assert len((await api.get("/api/jobs"))["items"]) == 2
    reader = await add_token(api, "monitor", "read")
    assert len((await api.get("/api/jobs", headers=bearer(reader)))["items"]) == 2
    await api.post("/api/jobs", DAILY, 403, headers=bearer(reader))
