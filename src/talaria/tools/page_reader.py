"""The text of an HTML page, as a program of its own for a child process.

A page is written by anybody: the program has limits of its own, no environment, and ends with the gateway.
It reads one line of JSON, `{"url": …}`, and then the page in UTF-8 until the end. It answers with one JSON
object: `{"title": …, "text": …, "links": […]}`.

Trafilatura (the extra `web`) finds the main content and writes it as Markdown. Without it, and for a page
that it cannot make out, all visible text is taken.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import select
import sys
from contextlib import suppress
from html.parser import HTMLParser
from urllib.parse import urljoin

MAX_TEXT = 2_000_000  # characters
_MAX_LINKS = 2000
_CPU_SECONDS = 20
_MEMORY_BYTES = 1 << 30
_MAX_TITLE = 300
_ENOUGH = 200  # characters of main content; less is probably not all of it
_SKIPPED = frozenset(
    ("script", "style", "noscript", "template", "svg", "math", "iframe", "object", "canvas", "head", "select")
)
_LINES = (
    "br",
    "dd",
    "dl",
    "dt",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "li",
    "ol",
    "p",
    "pre",
    "tr",
    "ul",
)
_BOXES = ("address", "article", "aside", "blockquote", "div", "footer", "form", "header", "main", "nav")
_KEPT = "\ue000"  # a blank of preformatted text
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_BLOCKS = frozenset((*_LINES, *_BOXES, *_HEADINGS, "fieldset", "figure", "section", "table"))


class _AllText(HTMLParser):
    """Collects the visible text, with links, headings, lists and the rows of tables."""

    def __init__(self, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self._url = url
        self._skipped = 0
        self._depth_of_pre = 0
        self._links: list[str] = []
        self._is_title = False
        self.title = ""
        self.links: dict[str, None] = {}
        self.pieces: list[str] = []
        self.room = MAX_TEXT

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title":
            self._is_title = not self.title
        if tag in _SKIPPED:
            self._skipped += 1
        if tag in _BLOCKS:
            self._add("\n")
        if tag in _HEADINGS:
            self._add(f"\n{_HEADINGS[tag]}")
        elif tag == "li":
            self._add("- ")
        elif tag in ("td", "th"):
            self._add(" | ")
        elif tag == "pre":
            self._depth_of_pre += 1
        elif tag == "a" and len(self._links) < 100:
            link = _absolute(self._url, dict(attrs).get("href") or "")
            self._links.append(link)
            if link and not self._skipped and len(self.links) < _MAX_LINKS:
                self.links[link] = None

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._is_title = False
        if tag in _SKIPPED:
            self._skipped = max(0, self._skipped - 1)
        if tag in _BLOCKS:
            self._add("\n")
        if tag == "pre":
            self._depth_of_pre = max(0, self._depth_of_pre - 1)
        elif tag == "a" and self._links and (link := self._links.pop()):
            self._add(f" ({link})")

    def handle_data(self, data: str) -> None:
        if self._is_title:
            self.title += data[: _MAX_TITLE - len(self.title)]
        elif not self._skipped:
            self._add(data.replace(" ", _KEPT) if self._depth_of_pre else re.sub(r"\s+", " ", data))

    def _add(self, text: str) -> None:
        if not self._skipped and self.room > 0:
            self.pieces.append(text[: self.room])
            self.room -= len(text)

    def text(self) -> str:
        lines = (line.strip(" ").replace(_KEPT, " ") for line in "".join(self.pieces).split("\n"))
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _absolute(base: str, link: str) -> str:
    with suppress(ValueError):
        whole = urljoin(base, link)
        return whole if whole.startswith(("http://", "https://")) and len(whole) <= 2000 else ""
    return ""


def read_all(page: str, url: str) -> tuple[str, str, list[str]]:
    """Return the title, all visible text and the links in it."""
    parser = _AllText(url)
    parser.feed(page)
    parser.close()
    return " ".join(parser.title.split()), parser.text(), [*parser.links]


def read_main(page: str, url: str) -> str:
    """Return the main content as Markdown; an empty text if it is not found, or without the library."""
    try:
        from trafilatura import extract  # noqa: PLC0415 - not everybody has it
    except ImportError:
        return ""
    try:
        found = extract(
            page,
            url=url,
            output_format="markdown",
            include_links=True,
            include_tables=True,
            include_formatting=True,
            include_comments=False,
            favor_recall=True,
            with_metadata=False,
        )
    except Exception:  # a page that the library does not survive has text all the same
        return ""
    return found or ""


def read_page(page: str, url: str) -> dict[str, str | list[str]]:
    """Return the title, the text and the links, first those that are in the text."""
    title, everything, links = read_all(page, url)
    main = _with_whole_links(read_main(page, url), url)
    is_all = len(main) < _ENOUGH and len(main) < len(everything) / 2
    if not is_all:
        shown = set(re.findall(r"\]\(([^()\s]+)\)", main))
        links.sort(key=lambda link: link not in shown)
    return {"title": title, "text": (everything if is_all else main)[:MAX_TEXT], "links": links}


def _with_whole_links(text: str, url: str) -> str:
    def whole(found: re.Match[str]) -> str:
        link = _absolute(url, found[1] or found[2])
        return f"]({link})" if link else "]"

    return re.sub(r"\]\((?:<([^<>\n]{0,2000})>|([^()<>\s]{1,2000}))\)", whole, text)


def _end_with_gateway() -> None:
    """Let this process end with the gateway: SIGIO, whose default action is to end the process, comes when
    the other end of stderr's pipe is closed."""
    with suppress(OSError):  # not every system sends signals for pipes
        fcntl.fcntl(2, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(2, fcntl.F_SETFL, fcntl.fcntl(2, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([2], [], [], 0)[0]:
        sys.exit(1)  # the gateway is gone already


def _limit() -> None:
    """Bound the time and memory of this process."""
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    with suppress(OSError, ValueError):  # macOS refuses a limit below what is mapped already
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


if __name__ == "__main__":
    if sys.argv[1:] != ["confined"]:  # a sandbox ends with the gateway by itself
        _end_with_gateway()
    _limit()
    order = json.loads(sys.stdin.buffer.readline())
    answer = read_page(sys.stdin.buffer.read().decode(errors="replace"), order["url"])
    sys.stdout.buffer.write(json.dumps(answer, ensure_ascii=False).encode(errors="replace"))
