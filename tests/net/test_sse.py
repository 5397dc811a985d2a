"""The parser gives the same events for every split, and what the standard says for every shape."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.net.sse import LineParser, SseDataParser, SseEvent, SseOverflow, SseParser


def parse(*pieces: bytes) -> list[SseEvent]:
    parser = SseParser()
    return [event for piece in pieces for event in parser.feed(piece)]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_an_event_ends_with_a_blank_line_in_every_line_ending(end: bytes) -> None:
    lines = end.join([b"event: delta", b"id: 7", b"data: one", b"data:two", b"", b"data: last", b"", b""])
    assert parse(lines) == [SseEvent("delta", b"one\ntwo", "7"), SseEvent("", b"last", "7")]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b": a comment\n\n", []),
        (b"event: only-a-name\n\n", []),
        (b"data\n\n", [SseEvent("", b"")]),
        (b"data:  two spaces\n\n", [SseEvent("", b" two spaces")]),
        (b"\xef\xbb\xbfdata: marked\n\n", [SseEvent("", b"marked")]),
        (b"data: \xef\xbb\xbf\n\n", [SseEvent("", b"\xef\xbb\xbf")]),
        (b"id: a\0b\ndata: x\n\n", [SseEvent("", b"x")]),
        (b"unknown: field\nretry: 10\ndata: x\n\n", [SseEvent("", b"x")]),
        (b"event: a\n\ndata: x\n\n", [SseEvent("", b"x")]),
        (b"data: unfinished\n", []),
        (b"", []),
    ],
)
def test_the_standard_cases(stream: bytes, events: list[SseEvent]) -> None:
    assert parse(stream) == events


def test_flush_gives_an_event_that_lacks_only_its_blank_line() -> None:
    parser = SseParser()
    assert parser.feed(b"data: [DONE]") == []
    assert parser.flush() == [SseEvent("", b"[DONE]")]
    assert parser.flush() == []


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 200, b": " + b"x" * 200 + b"\n", b"data: x\n" * 40])
def test_more_than_it_may_hold_raises_however_it_arrives(stream: bytes) -> None:
    for size in (1, 7, len(stream)):
        parser = SseParser(max_event_bytes=100)
        with pytest.raises(SseOverflow):
            for start in range(0, len(stream), size):
                parser.feed(stream[start : start + size])


ENDS = st.sampled_from([b"\r", b"\n", b"\r\n"])
LINES = st.sampled_from([b"", b"data: x", b"data: y", b"event: e", b"id: 1", b": c", b"data"])
TOKENS = st.sampled_from([b"data", b":", b" ", b"\xc3\xa9", b"\xef\xbb\xbf", b"\0"])
STREAMS = st.lists(st.one_of(st.tuples(LINES, ENDS).map(b"".join), TOKENS, ENDS), max_size=30).map(b"".join)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_a_cut_at_any_place_changes_nothing(end: bytes) -> None:
    stream = b"\xef\xbb\xbf" + end.join(
        [b"event: e", b"data: one", b"data: two", b"", b": c", b"data: 3", b"", b""]
    )
    for cut in range(len(stream) + 1):
        assert parse(stream[:cut], stream[cut:]) == [SseEvent("e", b"one\ntwo"), SseEvent("", b"3")]


@settings(max_examples=300)
@given(STREAMS, st.lists(st.integers(0, 200), max_size=20))
def test_any_split_gives_the_same_events(stream: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[a:b] for a, b in pairwise(edges)]
    whole, split = SseParser(), SseParser()
    expected = whole.feed(stream) + whole.flush()
    assert [event for piece in pieces for event in split.feed(piece)] + split.flush() == expected


@settings(max_examples=100)
@given(STREAMS)
def test_byte_by_byte_gives_the_same_events(stream: bytes) -> None:
    assert parse(*(stream[n : n + 1] for n in range(len(stream)))) == parse(stream)


PARSERS = (SseParser, SseDataParser)


@pytest.mark.parametrize("kind", PARSERS)
@pytest.mark.parametrize("start", [b"data: ", b"data:", b": ", b"id: ", b"data: x\ndata: "])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_as_much_as_it_may_hold_is_taken_and_a_byte_more_is_not(
    kind: type[LineParser[object]], start: bytes, size: int
) -> None:
    second_line = 64 - 1 if b"\n" in start else 0  # a further line counts for 64 bytes and its text
    whole = start + b"x" * (100 - second_line - len(start))
    parser = kind(max_event_bytes=100)
    for line in (whole, whole):
        stream = line + b"\n\n"
        events = [e for at in range(0, len(stream), size) for e in parser.feed(stream[at : at + size])]
        assert len(events) == start.startswith(b"data")
        assert parser.unread == 0
    with pytest.raises(SseOverflow):
        for at in range(0, len(whole) + 2, size):
            parser.feed((whole + b"x\n")[at : at + size])


@pytest.mark.parametrize("kind", PARSERS)
def test_it_says_how_much_waits_and_how_many_lines_there_were(kind: type[LineParser[object]]) -> None:
    parser = kind()
    assert (parser.unread, parser.lines) == (0, 0)
    parser.feed(b"data: one\nda")
    assert (parser.unread, parser.lines) == (11, 1)
    parser.feed(b"ta: two\n\n")
    assert (parser.unread, parser.lines) == (0, 3)
    parser.feed(b"data: three")
    assert parser.unread == 11
    assert len(parser.flush()) == 1
    assert parser.unread == 0


def test_the_parser_of_data_alone_gives_the_same_data() -> None:
    stream = b"event: a\ndata: one\ndata:two\n\n: c\n\ndata\n\ndata:  x\n\ndata: last\n\n"
    assert SseDataParser().feed(stream) == [event.data for event in parse(stream)]


def test_an_event_may_have_16_mebibytes() -> None:
    parser = SseDataParser()
    assert parser.feed(b"x" * (16 << 20)) == []
    with pytest.raises(SseOverflow):
        parser.feed(b"x")
