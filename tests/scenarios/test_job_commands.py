"""`/jobs` in a chat: a job in plain words, shown before it is saved, run, paused and removed."""

from __future__ import annotations

from pathlib import Path

from support.gateway import in_process
from talaria.testing.model_server import ModelServer


async def test_job_is_shown_saved_once_run_and_removed(tmp_path: Path) -> None:
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        say = api.say
        assert "no jobs yet" in (await say("home", "/jobs"))["reply"]
        nothing = await say("home", "/jobs save")
        assert "nothing to save" in nothing["reply"]
        shown = (await say("home", "/jobs add every weekday at 9 tell me what changed"))["reply"]
        assert shown.count("Next:") + shown.count("then:") == 3
        assert "no jobs yet" in (await say("home", "/jobs"))["reply"], "nothing was saved"
        assert "Saved." in (await say("home", "/jobs save"))["reply"]
        assert "Saved." in (await say("home", "/jobs save"))["reply"], "the same job again"
        listed = (await say("home", "/jobs"))["reply"]
        assert listed.count("\n- ") + listed.startswith("- ") == 1
        (job,) = (await api.get("/api/jobs"))["items"]
        assert (job["chat_key"], len(job["next"])) == ("agent:main:http:api:home", 3)
        assert "Paused" in (await say("home", f"/jobs pause {job['id']}"))["reply"]
        assert "paused" in (await say("home", f"/jobs show {job['name']}"))["reply"]
        assert "next" in (await say("home", f"/jobs resume {job['id']}"))["reply"]
        assert "runs now" in (await say("home", f"/jobs run {job['id']}"))["reply"]
        status = await api.get("/api/status")
        assert sum(status["jobs"]["jobs"].values()) == 1
        assert "Removed" in (await say("home", f"/jobs remove {job['id']}"))["reply"]
        assert "no jobs yet" in (await say("home", "/jobs"))["reply"]


async def test_unclear_words_are_asked_about_and_wrong_ones_explained(tmp_path: Path) -> None:
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        unclear = await api.say("home", "/jobs add water the flowers")
        assert "When should it run?" in unclear["reply"]
        wrong = await api.say("home", "/jobs fly")
        assert "/jobs add" in wrong["reply"]
        missing = await api.say("home", "/jobs show nothing")
        assert "no job" in missing["reply"]
