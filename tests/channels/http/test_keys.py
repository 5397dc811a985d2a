"""A key makes repeated calls one call, and a connection that is closed makes room."""

from __future__ import annotations

from channels.http.test_bounds import connected, used
from support.gateway import Api
from support.waiting import until


async def test_a_stateless_call_with_a_known_key_and_other_content_is_refused(api: Api) -> None:
    def body(text: str) -> dict[str, object]:
        return {"model": "main", "messages": [{"role": "user", "content": text}]}

    headers = {"Idempotency-Key": "k"}
    first = await api.post("/v1/chat/completions", body("one"), headers=headers)
    again = await api.post("/v1/chat/completions", body("one"), headers=headers)
    assert first["id"] == again["id"]
    refused = await api.post("/v1/chat/completions", body("two"), 422, headers=headers)
    assert refused["error"]["message"]
    other = await api.post("/v1/chat/completions", body("two"))
    assert other["id"] != first["id"]


async def test_a_connection_that_is_closed_is_counted_no_more(api: Api) -> None:
    before = used(api, "connections") or 0
    async with connected(api), connected(api):
        await until(lambda: used(api, "connections") == before + 2)
    await until(lambda: used(api, "connections") == before)
