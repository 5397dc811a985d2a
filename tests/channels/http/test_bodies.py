"""Bodies and framing: gzip within the limit, and clients of HTTP/1.0."""

from __future__ import annotations

import asyncio
import gzip
import json

from support.gateway import TOKEN, Api

MESSAGE = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()


async def post(api: Api, body: bytes, encoding: str = "gzip") -> tuple[int, bytes]:
    headers = {"Content-Encoding": encoding}
    async with api.client.post(f"{api.url}/v1/chat/completions", data=body, headers=headers) as response:
        return response.status, await response.read()


async def test_a_body_may_be_gzip(api: Api) -> None:
    status, answer = await post(api, gzip.compress(MESSAGE))
    assert (status, b"You said: hi" in answer) == (200, True)
    long = json.dumps({"messages": [{"role": "user", "content": "x" * 300_000}]}).encode()
    assert (await post(api, gzip.compress(long)))[0] == 200


async def test_a_bomb_and_what_is_no_gzip_are_refused(api: Api) -> None:
    assert (await post(api, gzip.compress(bytes(64 << 20))))[0] == 413
    assert (await post(api, MESSAGE))[0] == 400
    assert (await post(api, gzip.compress(MESSAGE)[:-4]))[0] == 400
    assert (await post(api, MESSAGE, "br"))[0] == 415


async def test_a_stream_to_http_1_0_has_no_chunks_and_ends_with_the_connection(api: Api) -> None:
    host = api.url.removeprefix("http://")
    body = MESSAGE[:-1] + b', "stream": true}'
    reader, writer = await asyncio.open_connection(*host.split(":"))
    writer.write(
        b"POST /v1/chat/completions HTTP/1.0\r\nHost: %b\r\nAuthorization: Bearer %b\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (host.encode(), TOKEN.encode(), len(body), body)
    )
    head, _, stream = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    assert b"transfer-encoding" not in head.lower()
    assert stream.startswith(b"data: {")
    assert stream.endswith(b"data: [DONE]\n\n")


async def test_a_file_is_not_kept_compressed_under_its_own_name(api: Api) -> None:
    packed, url = gzip.compress(b"text"), f"{api.url}/api/files?name=a.txt"
    for encoding, status in (("gzip", 415), ("identity", 201)):
        async with api.client.post(url, data=packed, headers={"Content-Encoding": encoding}) as answer:
            assert answer.status == status, await answer.text()
