"""Which addresses a tool may open without asking a person. Pure: from the log that the model sees.

An address carries data to its host: `https://evil.example/?q=SECRET`. As long as the conversation is free of
untrusted content, the model may open any address. Afterwards untrusted content may instruct it, so an address
must come from somebody else than the model:

- the person wrote it in a message, and not in a line that quotes another message (`> …`), or
- a result offers it: the hits of a search, the links of a page. Tools report these addresses themselves
  (`ToolResult.links`). The text of results is never searched, because the model can put an address there: by
  a command that prints it, a file, or an error that repeats it.

A page can offer many links and learn from which of them is opened: one of 256 is a byte. So a model opens at
most `MAX_FOLLOWED` addresses after a message of the person; then the person is asked. Every tool that opens
addresses shares this rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from talaria.core.entries import Entry, Summary, is_from_gateway
from talaria.core.messages import AssistantMessage, ToolResults, UserMessage
from talaria.core.tools import inner_call

OPENING_TOOLS = frozenset({"web_fetch", "browser_open", "browser_click"})
MAX_LINKS = 256  # of one result
MAX_FOLLOWED = 16

_QUOTED = re.compile("^>.*", re.MULTILINE)  # it may be an answer of the model
_URL = re.compile(r"https?://[^\s<>\"'`\\^{|}]+")
_PATH = re.compile("//.*[/?]")
_CLOSING = {")": "(", "]": "["}
_MARKS = ".,;:!?*_~"


class SeenAddresses(msgspec.Struct, frozen=True):
    """The addresses that the person wrote, those that results offer, and how many calls have opened one since
    the person's last message."""

    said: frozenset[str]
    offered: frozenset[str]
    opened: int


def may_open(url: str, seen: SeenAddresses) -> bool:
    """Return whether the address may be opened without asking. Fragments do not count: they are not sent."""
    address = normalize(url)
    return address in seen.said or (address in seen.offered and seen.opened < MAX_FOLLOWED)


def read_seen(entries: Iterable[Entry], call_id: str) -> SeenAddresses:
    """Read the visible entries of a session up to the call with this id. If there are several, it is the last
    one: some model servers count the calls of each answer from 1."""
    said: set[str] = set()
    offered: set[str] = set()
    opened = opened_before = 0
    for entry in entries:
        match entry.body:
            case UserMessage() as message if message.untrusted is True or is_from_gateway(message):
                pass
            case UserMessage(text=text):
                said.update(urls_in(_QUOTED.sub("", text)))
                opened = 0
            case ToolResults(results=results):
                offered.update(normalize(link) for result in results for link in result.links or ())
            case AssistantMessage(tool_calls=calls):
                for call in map(inner_call, calls):
                    opened_before = opened if call.id == call_id else opened_before
                    opened += call.name in OPENING_TOOLS
            case Summary():  # calls that it stands for are not visible any more
                opened = MAX_FOLLOWED
            case _:
                pass
    return SeenAddresses(frozenset(said), frozenset(offered), opened_before)


def has_written(text: str, entries: Iterable[Entry]) -> bool:
    """Return whether the person wrote this text in a message, in any case and with any blanks.

    Lines that quote another message do not count. A single character tells a host next to nothing.
    """
    wanted = _fold(text)
    if len(wanted) <= 1:
        return True
    for entry in entries:
        match entry.body:
            case UserMessage() as message if message.untrusted is True or is_from_gateway(message):
                pass
            case UserMessage(text=said) if wanted in _fold(_QUOTED.sub("", said)):
                return True
            case _:
                pass
    return False


def _fold(text: str) -> str:
    return " ".join(text.casefold().split())


def urls_in(text: str) -> Iterator[str]:
    """Yield the addresses of pages in a text, normalized, without the punctuation of the sentence."""
    for match in _URL.finditer(text):
        url = match[0].rstrip(_MARKS)
        while url and url[-1] in _CLOSING and url.count(url[-1]) > url.count(_CLOSING[url[-1]]):
            url = url[:-1].rstrip(_MARKS)
        yield normalize(url)


def normalize(url: str) -> str:
    """Return the address without its fragment, and with a path. Every other difference counts, also a slash
    at the end: the host would learn how many there are."""
    url = url.partition("#")[0]
    return url if _PATH.search(url) else f"{url}/"
