"""Which addresses may be opened without asking a person."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from talaria.access.egress import MAX_FOLLOWED, may_open, read_seen, urls_in
from talaria.core.entries import WAKING, Announcement, Entry, EntryBody, Note, Summary
from talaria.core.ids import SessionId
from talaria.core.messages import AssistantMessage, Text, ToolCall, ToolResult, ToolResults, UserMessage
from talaria.core.shown import settled_bodies

URL = "https://site.example/page"
CALL = AssistantMessage(tool_calls=(ToolCall("call_1", "web_fetch", "{}"),))


def said(text: str, *, untrusted: bool = False) -> UserMessage:
    return UserMessage((Text(text),), untrusted=untrusted or UNSET)


def result(text: str = "", *links: str, name: str = "web_fetch") -> ToolResults:
    return ToolResults((ToolResult("call_0", name, text, untrusted=True, links=links),))


def opens(url: str, *bodies: EntryBody) -> bool:
    """Whether the last call of this log may open the address."""
    entries = [Entry(SessionId("ses_1"), seq, 0, 0.0, None, body) for seq, body in enumerate(bodies, 1)]
    return may_open(url, read_seen(entries, "call_1"))


# A branch of a conversation has notes and announcements as messages.
NEWS: list[EntryBody] = [
    Note("process:1", f"[Note: `curl {URL}` ended]"),
    Announcement(f"a job says {URL}"),
    AssistantMessage("Done."),
]
BRANCHED = settled_bodies(
    SessionId("ses_0"),
    [Entry(SessionId("ses_0"), seq, 0, 0.0, None, body) for seq, body in enumerate(NEWS, 1)],
    1,
)[:2]


@pytest.mark.parametrize(
    ("url", "body"),
    [
        (URL, said(f"Look at {URL}.")),
        (URL + "#part", said(f"(see {URL})")),
        (URL, said(f"*{URL}* or https://other.example")),
        ("https://other.example/", said("https://other.example")),
        ("https://other.example", said("https://other.example/.")),
        (URL, result("a page", "https://other.example", URL)),
        (URL, result("hits", URL, name="web_search")),
    ],
)
def test_an_address_of_the_person_or_offered_by_a_result_is_opened(url: str, body: EntryBody) -> None:
    assert opens(url, said("hello"), body, CALL)


@pytest.mark.parametrize(
    "body",
    [
        result(f"Refused: {URL}"),
        ToolResults((ToolResult("c", "terminal", URL),)),
        AssistantMessage(f"I would open {URL}"),
        said(f"from a webhook: {URL}", untrusted=True),
        said(f"[In reply to Talaria:]\n> I would open\n> {URL}\nthank you"),
        Note("process:1", f"[Note: `curl {URL}` ended]"),
        Announcement(f"a job says {URL}"),
        said(f"{URL}?more=1"),
        said("https://site.example/"),
        said("http://site.example/page"),
        said(f"{URL}/"),
        said(f"{URL}//"),
        *BRANCHED,
    ],
)
def test_an_address_that_the_model_or_untrusted_content_wrote_is_not_opened(body: EntryBody) -> None:
    assert not opens(URL, said("hello"), body, CALL)


def test_the_person_resets_how_many_offered_addresses_are_opened() -> None:
    offer, call = result("", URL), AssistantMessage(tool_calls=(ToolCall("c", "web_fetch", "{}"),))
    other = AssistantMessage(tool_calls=(ToolCall("c", "terminal", "{}"),))
    before: list[EntryBody] = [said("go"), offer, other, *(call,) * (MAX_FOLLOWED - 1)]
    assert opens(URL, *before, CALL)
    assert not opens(URL, *before, call, CALL)
    assert opens(URL, *before, call, said("more"), CALL)
    assert not opens(URL, *before, call, said("a webhook", untrusted=True), CALL)
    assert opens(URL, said(URL), *before, call, CALL), "the person wrote it"


def test_the_gateway_does_not_reset_how_many_offered_addresses_are_opened() -> None:
    woken = said(f"{WAKING}background process p1 ended with exit code 0 after 0 s.]")
    before: list[EntryBody] = [said("go"), result("", URL), *(CALL,) * MAX_FOLLOWED]
    assert not opens(URL, *before, woken, CALL)
    assert not any(opens(URL, *before, body, CALL) for body in BRANCHED)


def test_calls_that_a_compaction_has_folded_are_not_forgotten() -> None:
    before: list[EntryBody] = [said("go"), result("", URL), Summary(1, 2, "It opened many.")]
    assert not opens(URL, *before, CALL)
    assert opens(URL, *before, said("more"), CALL)


def test_calls_through_tool_call_count_too() -> None:
    call = AssistantMessage(
        tool_calls=(ToolCall("c", "tool_call", '{"name": "web_fetch", "arguments": {}}'),)
    )
    assert not opens(URL, said("go"), result("", URL), *(call,) * MAX_FOLLOWED, CALL)


def test_calls_of_one_answer_count_one_by_one() -> None:
    calls = tuple(ToolCall(f"call_{n}", "web_fetch", "{}") for n in range(MAX_FOLLOWED + 1))
    bodies: list[EntryBody] = [said("go"), result("", URL), AssistantMessage(tool_calls=calls)]
    entries = [Entry(SessionId("ses_1"), seq, 0, 0.0, None, body) for seq, body in enumerate(bodies, 1)]
    allowed = [may_open(URL, read_seen(entries, call.id)) for call in calls]
    assert allowed == [True] * MAX_FOLLOWED + [False]


def test_an_id_that_comes_again_is_that_of_the_last_call() -> None:
    assert not opens(URL, said("go"), CALL, result("", URL), *(CALL,) * MAX_FOLLOWED, CALL)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("https://a.example/x, and (http://b.example/y).", ["https://a.example/x", "http://b.example/y"]),
        ("https://a.example/w_(x)", ["https://a.example/w_(x)"]),
        ("[here](https://a.example/x)", ["https://a.example/x"]),
        ("ftp://a.example javascript:https", []),
    ],
)
def test_addresses_are_found_without_the_punctuation_around_them(text: str, found: list[str]) -> None:
    assert list(urls_in(text)) == found
