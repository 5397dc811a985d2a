"""The check of prefix bytes finds broken prefixes."""

from __future__ import annotations

from support.prefixes import PrefixWatch


def watch(*bodies: bytes) -> PrefixWatch:
    watch = PrefixWatch(lambda raw: "one")
    watch.see_all(bodies)
    return watch


def test_a_request_that_goes_on_where_the_last_ended_is_no_break() -> None:
    assert watch(b'{"messages":[1,2],"tools":[3]}', b'{"messages":[1,2,4],"tools":[3]}').breaks == []


def test_changed_history_and_changed_tools_are_breaks() -> None:
    assert watch(b'{"messages":[1,2]}', b'{"messages":[1, 2,4]}').breaks == [
        "session one: messages of request 1"
    ]
    assert watch(b'{"messages":[1],"tools":[3]}', b'{"messages":[1],"tools":[4]}').breaks == [
        "session one: tools of request 1"
    ]


def test_sessions_are_apart() -> None:
    seen = PrefixWatch(lambda raw: raw[-3:-1].decode())
    seen.see_all([b'{"messages":[1],"x":"a"}', b'{"messages":[2],"x":"b"}'])
    assert (seen.breaks, len(seen.requests)) == ([], 2)
