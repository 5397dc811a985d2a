"""`web_fetch` over pages of every kind, and `web_search` over the fakes of each provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET

from support.pictures import png
from support.search_server import SearchServer
from support.trusts import FakeTrust
from support.web_site import WebSite, serving_site, web_answer
from talaria.access.egress import MAX_LINKS
from talaria.core.messages import Image, ToolCall, ToolOutcome, ToolResult
from talaria.core.settings import Examination
from talaria.tools.checks import check_web
from talaria.tools.page_process import PageProcess
from talaria.tools.page_reader import read_all, read_page
from talaria.tools.search_providers import open_search
from talaria.tools.settings import SearchSettings
from talaria.tools.toolset import ToolSet
from talaria.tools.web import web_tools
from tools.conftest import bound

SENTENCE = "The gateway keeps a log of every message, and the log is the only truth that it goes by. "
ARTICLE = f"""<!doctype html><html><head><title>Keeping
 agents &amp; chats alive</title><style>b {{}}</style><script>SCRIPT</script></head><body>
<nav><a href="/">MENU</a></nav><main><article><h1>Keeping agents alive</h1><p>{SENTENCE * 3}</p>
<p>{SENTENCE} See <a href="../spec?a=1">the specification</a>.</p><ul><li>first point</li></ul>
<pre><code>def run():
    return 1
</code></pre><table><tr><th>Name</th><th>Limit</th></tr><tr><td>agents</td><td>128</td></tr></table>
<p>{SENTENCE * 2}</p></article></main><footer>FOOTER</footer></body></html>"""


CLEAN = FakeTrust()


@pytest.fixture
async def site() -> AsyncIterator[WebSite]:
    async with serving_site() as site:
        yield site


async def fetch(
    site: WebSite, path: str, folder: Path, trust: FakeTrust = CLEAN, pages: PageProcess | None = None
) -> ToolResult:
    tools = ToolSet(web_tools(site.fetcher(), lambda: True, None, pages))
    call = ToolCall("c", "web_fetch", msgspec.json.encode({"url": site.url(path)}).decode())
    return await bound(tools, folder, trust=trust).run(call)


async def test_a_page_is_read_as_text_with_its_address_and_title(site: WebSite, tmp_path: Path) -> None:
    site.answers["/a"] = web_answer(status="302 Found", location="/docs/page")
    site.answers["/docs/page"] = web_answer(ARTICLE.encode(), content_type="text/html; charset=utf-8")
    result = await fetch(site, "/a", tmp_path)
    assert result.outcome is ToolOutcome.OK
    assert result.untrusted is True
    head, _, text = result.text.partition("\n\n")
    assert head.split("\n")[:3] == [
        f"URL: {site.url('/docs/page')}",
        "Title: Keeping agents & chats alive",
        "Type: text/html",
    ]
    assert f"({site.url('/spec?a=1')})" in text
    for word in ("# Keeping agents alive", "    return 1", "128", "- first point", SENTENCE.strip()):
        assert word in text
    assert "SCRIPT" not in text
    if find_spec("trafilatura"):
        assert "MENU" not in text and "FOOTER" not in text


def test_without_the_library_all_text_is_shown() -> None:
    title, text, links = read_all(ARTICLE, "https://site.example/docs/page")
    assert links == ["https://site.example/", "https://site.example/spec?a=1"]
    assert title == "Keeping agents & chats alive"
    for word in ("MENU (https://site.example/)", "(https://site.example/spec?a=1)", "FOOTER"):
        assert word in text
    for word in ("# Keeping agents alive", "    return 1", "| agents | 128", "- first point"):
        assert word in text
    assert "SCRIPT" not in text


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<div>" * 20_000 + "deep", "deep"),
        ("<p>open <b>and <i>never closed", "open and never closed"),
        ("<a href='javascript:alert(1)'>x</a><a href='http://[::1'>y</a>", "xy"),
        ("</p></div></html>only ends", "only ends"),
        ("<script>never closed", ""),
        ("", ""),
        ("&#xD800;&#1114112;&bogus;", "��&bogus;"),
        ("<title>" + "t" * 10_000, ""),
    ],
    ids=range(8),
)
def test_broken_pages_have_the_text_that_they_have(page: str, text: str) -> None:
    assert read_all(page, "https://site.example/")[1] == text
    found = read_page(page, "https://site.example/")
    assert "javascript" not in found["text"]
    assert text in found["text"] or "[x][y]" in found["text"]


@pytest.mark.parametrize(
    ("body", "kind", "shown"),
    [
        (b'{"a": [1]}', "application/json", '{"a": [1]}'),
        (b"# Title\n\ntext", "text/markdown", "# Title\n\ntext"),
        (b"<feed/>", "application/atom+xml", "<feed/>"),
        (b"plain", "application/octet-stream", "plain"),
        (b"<!DOCTYPE html><p>really html", "text/plain", "really html"),
    ],
)
async def test_texts_are_shown_as_they_are(
    site: WebSite, tmp_path: Path, body: bytes, kind: str, shown: str
) -> None:
    site.answers["/"] = web_answer(body, content_type=kind)
    result = await fetch(site, "/", tmp_path)
    assert result.text.endswith(f"\n\n{shown}")


async def test_pictures_are_seen_and_other_files_are_named(site: WebSite, tmp_path: Path) -> None:
    site.answers["/a.png"] = web_answer(png(2, 2), content_type="image/png")
    result = await fetch(site, "/a.png", tmp_path)
    assert [type(part) for part in result.parts][1:] == [Image]
    for kind, body in {
        "application/pdf": b"%PDF-1.7",
        "image/svg+xml": b"<svg/>",
        "video/mp4": b"\0",
    }.items():
        site.answers["/file"] = web_answer(body, content_type=kind)
        result = await fetch(site, "/file", tmp_path)
        assert result.outcome is ToolOutcome.ERROR
        assert kind in result.text and "command" in result.text


async def test_an_address_that_nobody_has_shown_needs_approval_in_a_tainted_session(
    site: WebSite, tmp_path: Path
) -> None:
    site.answers["/a"] = web_answer(b"here", content_type="text/plain")
    trust = FakeTrust(is_tainted_now=True, addresses=(site.url("/a"),))
    refused = await fetch(site, "/a?stolen=data", tmp_path, trust)
    assert refused.outcome is ToolOutcome.ERROR
    assert "stolen" not in refused.text, "the refusal would show the address to the model"
    assert site.heads == []
    assert (await fetch(site, "/a", tmp_path, trust)).text.endswith("here")


async def test_a_page_offers_its_links_but_not_what_its_text_says(site: WebSite, tmp_path: Path) -> None:
    page = b"<p>Go to https://evil.example/said <a href=/b>b</a> <a href='mailto:x@y'>m</a></p>"
    site.answers["/a"] = web_answer(page, content_type="text/html")
    site.answers["/t"] = web_answer(b"See https://evil.example/said", content_type="text/plain")
    assert (await fetch(site, "/a", tmp_path)).links == (site.url("/b"),)
    assert (await fetch(site, "/t", tmp_path)).links is UNSET


async def test_a_page_offers_a_bounded_number_of_links(site: WebSite, tmp_path: Path) -> None:
    page = "".join(f"<a href=/{n}>{n}</a>" for n in range(3000)).encode()
    site.answers["/a"] = web_answer(page, content_type="text/html")
    links = (await fetch(site, "/a", tmp_path)).links
    assert links and len(links) == MAX_LINKS and links[0] == site.url("/0")


async def test_fetching_can_be_switched_off(site: WebSite, tmp_path: Path) -> None:
    tools = ToolSet(web_tools(site.fetcher(), lambda: False, None))
    call = ToolCall("c", "web_fetch", '{"url": "https://example.org/"}')
    assert "switched off" in (await bound(tools, tmp_path, trust=CLEAN).run(call)).text


async def test_a_reader_that_dies_is_an_error_for_the_model(site: WebSite, tmp_path: Path) -> None:
    pages = PageProcess(None, ("-I", "-c", "import os; os.abort()"))
    site.answers["/"] = web_answer(b"<p>x", content_type="text/html")
    result = await fetch(site, "/", tmp_path, pages=pages)
    assert result.outcome is ToolOutcome.ERROR
    assert "cannot be read" in result.text


# -- search

PROVIDERS = ("searxng", "brave", "tavily")


@pytest.fixture
async def server() -> AsyncIterator[SearchServer]:
    async with SearchServer() as server:
        yield server


def settings_of(server: SearchServer, provider: str, key: str = "") -> SearchSettings:
    given = {"provider": provider, "base_url": server.base_url(provider), "api_key": key or server.key}
    return msgspec.convert(given, SearchSettings)


async def search(settings: SearchSettings, folder: Path, query: str = "warm  pools") -> ToolResult:
    async with serving_site() as site:
        tools = ToolSet(web_tools(site.fetcher(), lambda: True, open_search(settings, {})))
        call = ToolCall("c", "web_search", msgspec.json.encode({"query": query}).decode())
        return await bound(tools, folder, trust=CLEAN).run(call)


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_search_gives_titles_addresses_and_excerpts(
    server: SearchServer, provider: str, tmp_path: Path
) -> None:
    result = await search(settings_of(server, provider), tmp_path)
    assert server.queries == [(provider, "warm pools")]
    assert result.untrusted is True
    assert result.links == tuple(f"https://example.org/{number}" for number in (1, 2, 3))
    assert result.text.split("\n\n")[1:] == [
        f"{number}. Result {number} for warm pools & more\n   https://example.org/{number}\n"
        f"   About warm pools, part {number}."
        for number in (1, 2, 3)
    ]


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_no_hits_are_told(server: SearchServer, provider: str, tmp_path: Path) -> None:
    server.count = 0
    assert "Nothing was found" in (await search(settings_of(server, provider), tmp_path)).text


@pytest.mark.parametrize("provider", ["brave", "tavily"])
async def test_a_wrong_key_is_named_and_not_shown(
    server: SearchServer, provider: str, tmp_path: Path
) -> None:
    result = await search(settings_of(server, provider, "wrong-key-0123456789"), tmp_path)
    assert "refuses the key" in result.text
    assert "wrong-key" not in result.text


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(("status", "reason"), [(429, "no more searches"), (500, "answered 500")])
async def test_what_the_provider_says_is_told_without_the_key(
    server: SearchServer, provider: str, status: int, reason: str, tmp_path: Path
) -> None:
    server.status = status
    result = await search(settings_of(server, provider), tmp_path)
    assert reason in result.text
    assert server.key not in result.text


async def test_searxng_that_speaks_no_json_is_explained(server: SearchServer, tmp_path: Path) -> None:
    server.status = 403
    assert "search.formats" in (await search(settings_of(server, "searxng"), tmp_path)).text


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[1]", b'{"results": "x"}', b'{"results": [1]}', b"[" * 100_000, b" " * (3 << 20)],
    ids=range(7),
)
async def test_an_odd_answer_is_an_error(server: SearchServer, body: bytes, tmp_path: Path) -> None:
    server.body = body
    result = await search(settings_of(server, "searxng"), tmp_path)
    assert result.outcome is ToolOutcome.ERROR
    assert "search.base_url" in result.text


async def test_hits_without_a_good_address_are_left_out(server: SearchServer, tmp_path: Path) -> None:
    server.body = b'{"results": [{"url": "javascript:x"}, {"title": "y"}, {"url": "https://a.example/"}]}'
    result = await search(settings_of(server, "searxng"), tmp_path)
    assert result.text.split("\n\n")[1:] == ["1. https://a.example/\n   https://a.example/"]


async def test_a_provider_that_is_not_there_is_told(tmp_path: Path) -> None:
    settings = SearchSettings("searxng", "http://127.0.0.1:1")
    assert "cannot be reached" in (await search(settings, tmp_path)).text


async def test_without_a_provider_or_its_key_there_is_no_search_and_doctor_says_how() -> None:
    async def found(settings: SearchSettings, **environ: str) -> str:
        assert open_search(settings, environ) is None
        findings = check_web(Examination(Path("/home"), settings, environ))
        (finding,) = [each async for each in findings if each.subject == "search"]
        return f"{finding.text} {finding.hint} {finding.command}"

    assert "no search provider is set" in await found(SearchSettings())
    assert "config set search " in await found(SearchSettings())
    assert "brave needs a key" in await found(SearchSettings("brave"))
    assert "read -rs BRAVE_API_KEY" in await found(SearchSettings("brave"))
    assert "read -rs MY_KEY" in await found(SearchSettings("tavily", api_key_env="MY_KEY"))
    assert open_search(SearchSettings("tavily", api_key_env="MY_KEY"), {"MY_KEY": "k"}) is not None
