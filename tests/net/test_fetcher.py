"""Pages that servers of every kind send: redirects, bombs, broken and endless bodies."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import AsyncIterator

import pytest

from support.web_site import WebSite, serving_site, web_answer
from talaria.core.errors import ToolError
from talaria.net.fetcher import FetchedPage, FetchLimits, check_url


@pytest.fixture
async def site() -> AsyncIterator[WebSite]:
    async with serving_site() as site:
        yield site


async def test_a_page_comes_with_its_type_and_nothing_of_ours_goes_out(site: WebSite) -> None:
    site.answers["/a?b=c"] = web_answer(
        "grüße".encode(), content_type="text/plain; charset=utf-8", set_cookie="a=b"
    )
    page = await site.fetch("/a?b=c#part")
    assert (page.url, page.media_type, page.text()) == (site.url("/a?b=c"), "text/plain", "grüße")
    await site.fetch("/a?b=c")
    for head in site.heads:
        assert head.startswith("GET /a?b=c HTTP/1.1\r\n")
        assert "cookie" not in head.lower() and "authorization" not in head.lower()


async def test_redirects_are_followed_and_each_hop_is_checked(site: WebSite) -> None:
    site.answers["/1"] = web_answer(status="302 Found", location="/2")
    site.answers["/2"] = web_answer(status="308 Permanent Redirect", location=site.url("/3"))
    site.answers["/3"] = web_answer(b"here", content_type="text/plain")
    assert (await site.fetch("/1")).url == site.url("/3")
    for place, reason in {
        "http://169.254.169.254/latest/meta-data": "metadata",
        "http://127.0.0.1:1/": "loopback",
        "http://[::1]/": "loopback",
        "http://0x7f000001/": "refused",
        f"http://rebound.example:{site.port}/": "metadata",
        "file:///etc/passwd": "no address of a page",
        "gopher://site.example/": "no address of a page",
        "http://user:pass@site.example/": "user name",
        "/1": "leads on more than 8 times",
    }.items():
        site.answers["/1"] = web_answer(status="302 Found", location=place)
        with pytest.raises(ToolError, match=reason):
            await site.fetch("/1")


BOMB = gzip.compress(bytes(50 << 20), 1)


@pytest.mark.parametrize(
    ("name", "raw", "size"),
    [
        ("a gzip bomb", web_answer(BOMB, content_encoding="gzip"), 1 << 20),
        (
            "a deflate bomb",
            web_answer(zlib.compress(bytes(50 << 20), 1), content_encoding="deflate"),
            1 << 20,
        ),
        ("a bomb in a bomb", web_answer(gzip.compress(BOMB), content_encoding="gzip"), len(BOMB)),
        ("a long page", web_answer(b"x" * (3 << 20)), 1 << 20),
        ("an endless length", web_answer(b"x" * (3 << 20), content_length=str(1 << 40)), 1 << 20),
        ("cut gzip", web_answer(gzip.compress(b"x" * 1000)[:20], content_encoding="gzip"), None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_page_costs_no_more_than_its_limit(
    site: WebSite, name: str, raw: bytes, size: int | None
) -> None:
    site.answers["/"] = raw
    page = await site.fetch("/")
    assert page.is_cut or size == len(BOMB)
    assert size is None or len(page.body) == min(size, 1 << 20)


async def test_packed_pages_are_unpacked(site: WebSite) -> None:
    packed = {"gzip": gzip.compress(b"text"), "deflate": zlib.compress(b"text"), "identity": b"text"}
    bare = zlib.compressobj(wbits=-15)
    packed["raw"] = bare.compress(b"text") + bare.flush()
    for name, body in packed.items():
        site.answers["/"] = web_answer(body, content_encoding="deflate" if name == "raw" else name)
        page = await site.fetch("/")
        assert (page.body, page.is_cut) == (b"text", False), name


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (web_answer(b"\x1f\x8bnonsense", content_encoding="gzip"), "cannot be unpacked"),
        (web_answer(b"x", content_encoding="br"), "packed as 'br'"),
        (web_answer(b"x", content_encoding="gzip, gzip"), "packed as 'gzip, gzip'"),
        (web_answer(b"gone", "410 Gone"), "answered 410 Gone"),
        (web_answer(b"", "404 Not Found"), "no such page"),
        (web_answer(b"", "429 Too Many Requests"), "fewer requests"),
        (web_answer(b"abc", content_length="10"), "closed the connection too early"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "cannot be read"),
        (b"HTTP/1.1 200 OK\r\n" + b"x-long: " + b"y" * 70_000 + b"\r\n\r\n", "cannot be read"),
        (b"", "closed the connection too early"),
    ],
)
async def test_what_went_wrong_is_said(site: WebSite, raw: bytes, reason: str) -> None:
    site.answers["/"] = raw
    with pytest.raises(ToolError) as caught:
        await site.fetch("/")
    assert reason in str(caught.value)


async def test_a_server_that_never_ends_is_left_in_time(site: WebSite) -> None:
    site.answers["/"] = web_answer(b"x", content_length="100")
    site.silent.add("/")
    with pytest.raises(ToolError, match=r"did not send the page within 0\.2 seconds"):
        await site.fetcher(FetchLimits(seconds=0.2)).fetch(site.url("/"))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.org",
        "//a/b",
        "ftp://example.org/",
        "javascript:alert(1)",
        "data:text/html,x",
        "http://",
        "http://a b/",
        "https://a/\x01b",
        "http://[::1",
        "http://a:99999/",
        "http://u:p@a/",
        "https://a/" + "x" * 5000,
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ToolError):
        check_url(url)


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        ("ü".encode(), "", "ü"),
        ("ü".encode("latin-1"), "", "ü"),
        ("ü".encode("latin-1"), "iso-8859-1", "ü"),
        ("ü".encode("utf-16"), "", "ü"),
        (b"\xef\xbb\xbfa", "latin-1", "a"),
        ('<meta charset="cp1251">ж'.encode("cp1251"), "", '<meta charset="cp1251">ж'),
        (b"a", "no-such-charset", "a"),
        (b"a", "base64", "a"),
    ],
)
def test_the_charset_is_found(body: bytes, charset: str, text: str) -> None:
    assert FetchedPage("http://a/", "text/html", charset, body).text() == text
