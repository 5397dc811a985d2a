"""The cost of parsing a stream grows with its bytes, however they are cut into lines and reads."""

from __future__ import annotations

from contextlib import suppress

import pytest

from support.complexity import assert_linear
from talaria.net.sse import SseDataParser, SseOverflow, SseParser

ENDLESS = 1 << 40
LINE = b"data: " + b"x" * 60 + b"\r"


@pytest.mark.parametrize("unit", [b"x", LINE * 10 + b"\r", LINE + b"\r\n", b"id" + LINE])
@pytest.mark.parametrize("parser", [SseParser, SseDataParser])
def test_parsing_is_linear(parser: type[SseParser] | type[SseDataParser], unit: bytes) -> None:
    def parse(stream: bytes) -> None:
        made = parser(ENDLESS)
        for at in range(0, len(stream), 4096):
            made.feed(stream[at : at + 4096])
        made.flush()

    assert_linear(lambda size: unit * (size // len(unit)), parse)


@pytest.mark.parametrize("unit", [b"x", b"data\n", b"data:\n", b"data: x\n"])
def test_an_event_without_end_is_refused(unit: bytes) -> None:
    parser = SseDataParser(100_000)
    with pytest.raises(SseOverflow):
        for _ in range(200_000):
            parser.feed(unit)
    with suppress(SseOverflow):
        parser.flush()
    assert parser.unread <= 101_000
