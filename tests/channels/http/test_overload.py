"""An overloaded gateway, and a chat whose queue is full, over HTTP."""

from __future__ import annotations

from pathlib import Path

from support.gateway import Api, in_process
from talaria.testing.model_server import ModelServer

COMPLETION = {"model": "main", "messages": [{"role": "user", "content": "hello"}]}


async def test_a_lagging_loop_is_told_with_a_time_to_try_again(api: Api) -> None:
    api.gateway.loop_watch.load.note(60)
    calls = {
        "/api/sessions/one/messages": {"text": "hello"},
        "/v1/chat/completions": COMPLETION,
    }
    for path, body in calls.items():
        for headers in ({}, {"X-Talaria-Session": "one"}):
            async with api.client.post(api.url + path, json=body, headers=headers) as response:
                assert (response.status, response.headers["Retry-After"]) == (503, "2"), path
                error = (await response.json())["error"]
                assert error["type"] == "overloaded"
                assert 'limits.loop_lag = "2s"' in error["hint"]
    ready = await api.get("/readyz", 503)
    assert ready == {"ready": False, "phase": "ready", "loop_lag_seconds": 60, "troubles": ["loop"]}
    status = await api.get("/api/status")
    assert status["reasons"] == ["loop: it was held for 60.0 s"]
    assert status["limits"]["loop_lag"]["refused"] == 4
    assert (await api.say("one", "/status"))["state"] == "done"


async def test_a_full_chat_is_refused_before_its_message_is_accepted(
    tmp_path: Path, model: ModelServer
) -> None:
    async with in_process(tmp_path / "home", model, tables={"limits": {"chat_queue": 1}}) as api:
        await api.begin("one", "[[hang]]")
        await model.until(lambda: model.answering == 1)
        await api.begin("one", "this waits")
        for path, body, headers in (
            ("/api/sessions/one/messages", {"text": "one too many"}, {}),
            ("/v1/chat/completions", COMPLETION, {"X-Talaria-Session": "one"}),
        ):
            error = (await api.post(path, body, 429, headers=headers))["error"]
            assert error["type"] == "limit"
            assert "limits.chat_queue = 1" in error["hint"]
        assert (await api.get("/api/status"))["limits"]["chat_queue"] == {"limit": 1, "used": 1, "refused": 2}
        assert (await api.say("one", "/stop"))["state"] == "done"
