"""A request as a handler reads it: its query, headers and body, at the edges of what is taken."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import msgspec
import pytest

from talaria.channels.http.request import (
    ClientDisconnected,
    HttpError,
    Message,
    Request,
    quoted,
    read_number,
)
from talaria.core.errors import BadRequest


class Body(msgspec.Struct, forbid_unknown_fields=True):
    a: int = 0


def request(*chunks: bytes, query: str = "", **headers: str) -> Request:
    """A request whose body comes in these chunks. Without an end, the client leaves."""
    messages = [
        {"type": "http.request", "body": chunk, "more_body": n + 1 < len(chunks)}
        for n, chunk in enumerate(chunks)
    ]

    async def receive() -> Message:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError("nothing is answered here")

    raw = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {
        "method": "POST", "path": "/", "query_string": query.encode(), "headers": raw, "http_version": "1.1",
    }  # fmt: skip
    return Request(scope, receive, send)


def test_numbers_have_up_to_15_digits() -> None:
    assert read_number("limit", "0") == 0
    assert read_number("limit", "9" * 15) == 10**15 - 1
    for text in ("", "9" * 16, "-1", "+1", "1.5", " 1", "\u0661", "\u00b2"):
        with pytest.raises(BadRequest, match=r"^limit '.*' is not a number") as refused:
            read_number("limit", text)
        assert refused.value.hint == "Send up to 15 digits."


def test_what_is_quoted_is_shortened() -> None:
    assert quoted("x" * 80) == repr("x" * 80)
    assert quoted("x" * 81) == repr("x" * 80 + "…")


def test_a_query_has_up_to_50_fields() -> None:
    assert request().query() == {}
    assert request(query="a=1&b=&c=%20x&a=2").query() == {"a": "2", "b": "", "c": " x"}
    assert len(request(query="&".join(f"f{n}=1" for n in range(50))).query()) == 50
    with pytest.raises(BadRequest, match="more than 50 fields"):
        request(query="&".join(f"f{n}=1" for n in range(51))).query()


def test_a_key_has_1_to_255_characters() -> None:
    assert request().idempotency_key() is None
    assert request(idempotency_key=" k ").idempotency_key() == "k"
    assert request(idempotency_key="k" * 255).idempotency_key() == "k" * 255
    for key in ("", "k" * 256):
        with pytest.raises(BadRequest, match=f"Idempotency-Key has {len(key)} characters"):
            request(idempotency_key=key).idempotency_key()


def test_a_header_that_is_missing_is_none() -> None:
    assert request().header(b"x-file-name") is None
    assert request(x_file_name=" \xfc ").header(b"x-file-name") == "\xfc"
    assert request().content_length == 0
    assert request(content_length="5").content_length == 5


def test_a_route_without_a_guard_has_no_caller() -> None:
    found = request()
    assert not found.has_caller
    assert not found.is_trusted
    with pytest.raises(RuntimeError, match="/ was reached without a caller"):
        _ = found.caller


async def test_a_body_of_exactly_the_limit_is_taken() -> None:
    assert await request(b"abc", b"de").body(5) == b"abcde"
    assert await request(b"").body(0) == b""
    with pytest.raises(HttpError) as refused:
        await request(b"abc", b"def").body(5)
    assert refused.value.type == "too_large"
    assert await request(b"abcde", content_length="5").body(5) == b"abcde"
    with pytest.raises(HttpError) as refused:
        await request(b"", content_length="6").body(5)
    assert refused.value.type == "too_large"


async def test_a_client_that_leaves_in_the_body_is_no_body() -> None:
    found = request(content_length="5")
    with pytest.raises(ClientDisconnected):
        await found.body(5)
    await found.discard_body()
    assert not found.is_read


async def test_the_rest_of_a_body_is_thrown_away() -> None:
    found = request(b"a", b"b", b"c", content_length="3")
    await found.discard_body()
    assert found.is_read
    bodies: list[dict[str, str]] = [
        {"content_length": "3"}, {"transfer_encoding": "chunked"}, {"content_length": "0"}, {},
    ]  # fmt: skip
    assert [request(**headers).is_read for headers in bodies] == [False, False, True, True]


async def test_gzip_is_inflated_up_to_the_limit() -> None:
    data = bytes(range(256)) * 1000
    packed = gzip.compress(data)
    for name in ("gzip", "x-gzip", "GZIP"):
        got = await request(packed[:100], packed[100:], content_encoding=name).body(len(data))
        assert got == data
    for limit in (len(data) - 1, len(packed) - 1):
        with pytest.raises(HttpError) as refused:
            await request(packed, content_encoding="gzip").body(limit)
        assert refused.value.type == "too_large"
    more = [(packed + b"x",), (packed, b"x"), (packed + packed,), (gzip.compress(b"") + b"x",)]
    for wrong in (*more, (packed[:-1],), (zlib.compress(data),), (b"plain",)):
        with pytest.raises(BadRequest, match="gzip"):
            await request(*wrong, content_encoding="gzip").body(1 << 20)
    with pytest.raises(HttpError, match="Content-Encoding 'br' is not known") as refused:
        await request(b"", content_encoding="br").body(9)
    assert refused.value.type == "unsupported_media_type"
    assert await request(b"as it is", content_encoding="identity").body(9) == b"as it is"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no body"),
        (b'{"a": 1', "it ends too early"),
        (b"{a: 1}", "not valid JSON"),
        (b'{"a": "x"}', "`a`"),
        (b'{"b": 1}', "b"),
    ],
)
async def test_a_body_that_is_not_what_it_should_be_is_refused(body: bytes, says: str) -> None:
    with pytest.raises(BadRequest, match=says) as refused:
        await request(body).json(Body, 1 << 20)
    assert refused.value.hint
    for broken, why in ((b'["\xff"]', "not valid UTF-8"), (b"[" * 100_000, "nested too deeply")):
        with pytest.raises(BadRequest, match=why):
            await request(broken).json(list[Any], 1 << 20)


async def test_fields_that_are_not_known_are_given_as_they_came() -> None:
    assert await request(b'{"a": 1}').json(Body, 99) == Body(1)
    assert await request(b'{"a": 1}').json_and_rest(Body, 99) == (Body(1), {})
    found, rest = await request(b'{"b": [1, 2], "a": 1, "c": null}').json_and_rest(Body, 99)
    assert (found.a, {name: bytes(raw) for name, raw in rest.items()}) == (1, {"b": b"[1, 2]", "c": b"null"})
    for body in (b'{"a": "x", "b": 1}', b'{"b": 1, "a": "x"}', b"{", b""):
        with pytest.raises(BadRequest):
            await request(body).json_and_rest(Body, 99)


async def test_values_are_counted_and_not_the_marks_in_texts() -> None:
    found = request()
    most = found.limits.now.body_values

    async def take(value: Any) -> Any:
        return await request(msgspec.json.encode(value)).json(list[Any], 1 << 28)

    assert len(await take(["," * most])) == 1
    assert len(await take([0] * (most - 1))) == most - 1
    with pytest.raises(HttpError, match="too many values") as refused:
        await take([0] * (most + 2))
    assert refused.value.type == "too_large"
