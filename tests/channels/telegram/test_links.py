"""What a model writes reaches nothing by itself, and inner addresses cannot be clicked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from channels.telegram.line import way_back
from support.link_table import OUTER, OWN, REFUSED
from talaria.channels.links import own_hosts
from talaria.channels.telegram.outlet import TelegramOutlet
from talaria.channels.telegram.render import refused_addresses, to_html
from talaria.core.delivery import OutgoingFile, OutgoingMessage
from talaria.testing.telegram_server import FaultKind, TelegramFault, TelegramServer
from talaria.testing.telegram_text import TextEntity, found_links, parse

HOSTS = own_hosts(OWN)
PIECES = [
    "http://",
    "https://",
    "127.0.0.1",
    "1",
    "27",
    ".",
    "0",
    "[",
    "](",
    ")",
    "*",
    "_",
    "**",
    "`",
    "~~",
    "x",
]
PIECES += [
    " ",
    "\n",
    "example.org",
    "@",
    ":",
    "/",
    "\\",
    "<",
    "&",
    "talaria.example.org",
    "tg://",
    "- ",
    "> ",
    "|",
]


@pytest.fixture
async def outlet(server: TelegramServer) -> AsyncIterator[TelegramOutlet]:
    async with way_back(server, own=HOSTS) as outlet:
        yield outlet


def clickable(markdown: str) -> list[str]:
    return found_links(*parse(to_html(markdown, HOSTS), "HTML"))


@pytest.mark.parametrize(
    "form", ["{}", "[label]({})", "![label]({})", "*{}*", "> # {}", "[{0}]({0})", "x({})"]
)
def test_only_public_hosts_become_links(form: str) -> None:
    is_labelled = "label" in form
    for url in OUTER:
        # Telegram does not find addresses of IPv6 by itself.
        assert clickable(form.format(url)) == ([url] if is_labelled or "[" not in url else [])
    for url in REFUSED:
        # Telegram does not know these schemes, and finds the public address that follows.
        inner = url.partition(":")[2] if url.startswith(("blob:", "view-source:")) else ""
        assert clickable(form.format(url)) == ([inner] if inner and not is_labelled else [])


def is_inner(link: str) -> bool:
    """Return whether a client that opens the link would reach 127.0.0.1. It adds http to a bare host."""
    try:
        return urlsplit(link if "://" in link else f"http://{link}").hostname == "127.0.0.1"
    except ValueError:
        return False


@example("127.0.0.1http://http://127.0.0.1http://")
@example("- example.org/*&127.0.0.1.")
@example("12[7.0.0.1](http://127.0.0.1)")
@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_no_mixture_of_marks_and_addresses_becomes_an_inner_link(markdown: str) -> None:
    assert [link for link in clickable(markdown) if is_inner(link)] == []
    entities = [TextEntity(**each) for each in refused_addresses(markdown, HOSTS)]
    links = found_links(markdown, entities)
    assert [link for link in links if is_inner(link)] == []


async def test_no_link_is_fetched_for_a_preview(server: TelegramServer, outlet: TelegramOutlet) -> None:
    body = "[look](https://evil.example/?secret)"
    first = await outlet.deliver(OutgoingMessage("7::", body, "n"))
    await outlet.deliver(OutgoingMessage("7::", f"{body} again", "n", edits=first))
    (shown,) = server.platform.chats[7].messages.values()
    assert shown.links == ["https://evil.example/?secret"]
    assert server.platform.previews == []


async def test_inner_addresses_stay_text_when_telegram_refuses_the_formatting(
    server: TelegramServer, outlet: TelegramOutlet
) -> None:
    refusal = {"ok": False, "error_code": 400, "description": "Bad Request: can't parse entities: x"}
    server.fail("sendMessage", TelegramFault(FaultKind.STATUS, status=400, body=refusal))
    await outlet.deliver(OutgoingMessage("7::", "😀 **http://127.0.0.1/** https://example.org", "n"))
    server.fail("sendDocument", TelegramFault(FaultKind.STATUS, status=400, body=refusal))
    file = OutgoingFile("a.txt", b"data")
    await outlet.deliver(OutgoingMessage("7::", "at 10.0.0.1", "n", file=file))
    message, document = server.platform.chats[7].messages.values()
    assert message.text.startswith("😀 **http")
    assert message.links == ["https://example.org"]
    assert (document.text, document.links) == ("at 10.0.0.1", [])


@pytest.mark.parametrize("text", ["**b** " * 100 + "see 127.0.0.1:8765", "127.0.0.1 " * 101])
def test_an_address_behind_more_marks_than_telegram_reads_is_no_link(text: str) -> None:
    html = to_html(text)
    assert html == f"<pre>{text}</pre>"
    first = refused_addresses(text)[0]
    assert len(refused_addresses(text)) == 1
    assert text[first["offset"] :][: first["length"]] in ("127.0.0.1:8765", text)


def test_many_marks_without_such_an_address_stay_marks() -> None:
    assert to_html("**b** " * 200).count("<b>") == 200
