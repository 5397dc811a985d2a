"""Fetching a page by GET: every hop is checked and bounded, and nothing of the gateway is sent along."""

from __future__ import annotations

import asyncio
import codecs
import re
import zlib
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin, urlsplit

from talaria.core.errors import ToolError
from talaria.core.text import cut
from talaria.core.units import format_size

if TYPE_CHECKING:
    import aiohttp

    from talaria.net.dialer import Dialer

ACCEPT: Final = "text/html, text/markdown, text/plain, application/json;q=0.9, image/*;q=0.8, */*;q=0.5"
_AGENT: Final = "Mozilla/5.0 (compatible; Talaria; web_fetch)"
_MAX_URL = 4096
_MAX_REDIRECTS = 8
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_STEP = 256 << 10  # bytes that are unpacked at once
_CHARSET = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?([A-Za-z0-9_:.-]{1,40})""", re.IGNORECASE)
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_TOO_MUCH = "Look for a smaller page, or download the file with a command."


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """`seconds` is the time for all hops together. `received` counts bytes as they come, `unpacked` those of
    the page; a page that is longer is cut there."""

    seconds: float = 30.0
    received: int = 8 << 20
    unpacked: int = 8 << 20


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """A page with a good status. `url` is where the redirects led to. `charset` is what the server said, if
    it said anything."""

    url: str
    media_type: str
    charset: str
    body: bytes
    is_cut: bool = False

    def text(self) -> str:
        """Return the body as text: by its byte order mark, by what the server or the page says, as UTF-8, or
        else as Windows-1252, which never fails."""
        found = _CHARSET.search(self.body, 0, 4096) if "html" in self.media_type else None
        named = found[1].decode() if found else ""
        by_mark = (name for mark, name in _BOMS if self.body.startswith(mark))
        for name in (*by_mark, self.charset, named, "utf-8"):
            try:
                if name:
                    return self.body.decode(name, "replace" if self.is_cut else "strict")
            except (LookupError, UnicodeError, ValueError):
                continue
        return self.body.decode("windows-1252", "replace")


def check_url(url: str) -> str:
    """Return the address without its fragment. Raises `ToolError` for one that is not fetched."""
    shown = cut(url, 200)
    if len(url) > _MAX_URL:
        raise ToolError(f"The address has more than {_MAX_URL} characters.", "Fetch a shorter one.")
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ToolError(f"{shown!r} is not an address: {error}.", "Write it as https://host/path.") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ToolError(f"{shown!r} is no address of a page.", "Write it as https://host/path.")
    if parts.username is not None:
        raise ToolError("An address with a user name or a password is not fetched.", "Leave them out.")
    if re.search(r"[\x00-\x20\x7f]", parts.geturl()):
        raise ToolError(f"{shown!r} has a blank or a control character.", "Write blanks as %20.")
    return parts._replace(fragment="").geturl()


class PageFetcher:
    """Fetches pages over checked connections. Sends no cookie, no credential and no body."""

    def __init__(self, dialer: Dialer, limits: FetchLimits | None = None) -> None:
        self._dialer = dialer
        self._limits = limits or FetchLimits()

    async def fetch(self, url: str, owner: Hashable = None) -> FetchedPage:
        """Return the page, following redirects. Raises `ToolError`, also for an error status."""
        import aiohttp  # noqa: PLC0415

        from talaria.net.checked_connector import checked_connector  # noqa: PLC0415

        seconds = self._limits.seconds
        headers = {"User-Agent": _AGENT, "Accept": ACCEPT, "Accept-Encoding": "gzip, deflate"}
        target = check_url(url)
        try:
            async with (
                asyncio.timeout(seconds),
                aiohttp.ClientSession(
                    connector=checked_connector(self._dialer, owner),
                    cookie_jar=aiohttp.DummyCookieJar(),
                    headers=headers,
                    auto_decompress=False,
                    trust_env=False,
                    timeout=aiohttp.ClientTimeout(total=None, sock_read=seconds),
                ) as session,
            ):
                for _ in range(_MAX_REDIRECTS + 1):
                    found = await self._hop(session, target)
                    if isinstance(found, FetchedPage):
                        return found
                    target = found
        except TimeoutError:
            text = f"{_host(target)} did not send the page within {seconds:g} seconds."
            raise ToolError(text, "Try again later, or fetch another page.") from None
        except aiohttp.ClientError as error:
            raise ToolError(f"{_host(target)} could not be asked: {_reason(error)}.") from error
        raise ToolError(f"{url} leads on more than {_MAX_REDIRECTS} times.", "Fetch another address.")

    async def _hop(self, session: aiohttp.ClientSession, url: str) -> FetchedPage | str:
        """Return the page, or the address that it leads to."""
        async with session.get(url, allow_redirects=False) as response:
            if response.status in _REDIRECTS and (place := response.headers.get("Location")):
                return check_url(urljoin(url, place))
            if response.status != 200:
                text = f"The server answered {response.status} {response.reason or ''}".strip()
                raise ToolError(f"{text} for {url}.", _HINTS.get(response.status, ""))
            body, is_cut = await self._read(response)
            return FetchedPage(url, response.content_type, response.charset or "", body, is_cut)

    async def _read(self, response: aiohttp.ClientResponse) -> tuple[bytes, bool]:
        """Return the unpacked body, and whether it was cut at a limit."""
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        unpack = _Unpacker(encoding, self._limits.unpacked)
        received = 0
        async for chunk in response.content.iter_any():
            received += len(chunk)
            if not unpack.feed(chunk) or received > self._limits.received:
                return bytes(unpack.data), True
            if received > _MAX_STEP:
                await asyncio.sleep(0)  # others have their turn while a large page comes
        return bytes(unpack.data), not unpack.is_whole


_HINTS = {
    401: "The page is for people who have logged in.",
    403: "The server does not show it to programs, or not to everybody.",
    404: "There is no such page: check the address, or search for it.",
    429: "The server wants fewer requests: wait before you ask it again.",
}


class _Unpacker:
    """Unpacks a body step by step, so that a small one that would become gigabytes is cut in time."""

    def __init__(self, encoding: str, limit: int) -> None:
        """Raises `ToolError` for an encoding that was not asked for."""
        if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise ToolError(f"The server sent the page packed as {encoding[:40]!r}, which is not read here.")
        self._is_packed = encoding not in ("", "identity")
        self._limit = limit
        self._inflate = zlib.decompressobj(47)  # the header tells gzip from zlib
        self._has_begun = False
        self.data = bytearray()

    @property
    def is_whole(self) -> bool:
        return not self._is_packed or self._inflate.eof or not self._has_begun

    def feed(self, chunk: bytes) -> bool:
        """Take a piece of the body. Return False when there is no more room. Raises `ToolError`."""
        if not self._is_packed:
            self.data += chunk[: self._limit - len(self.data)]
            return len(self.data) < self._limit
        try:
            return self._unpack(chunk)
        except zlib.error as error:
            raise ToolError(f"The page is broken: it cannot be unpacked ({error}).") from error

    def _unpack(self, chunk: bytes) -> bool:
        if not self._has_begun and chunk:
            self._has_begun = True
            if chunk[:2] != b"\x1f\x8b" and chunk[0] & 0x0F != 8:
                self._inflate = zlib.decompressobj(-15)  # some servers send it without a header
        while chunk and not self._inflate.eof:
            room = self._limit - len(self.data)
            if room <= 0:
                return False
            self.data += self._inflate.decompress(chunk, min(room, _MAX_STEP))
            chunk = self._inflate.unconsumed_tail
        return len(self.data) < self._limit


def _host(url: str) -> str:
    return urlsplit(url).netloc or url[:80]


def _reason(error: Exception) -> str:
    """Return why a request failed, in a few words."""
    import aiohttp  # noqa: PLC0415

    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not valid"
    if isinstance(error, aiohttp.ClientSSLError):
        return "it does not speak TLS as it should"
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError):
        return "it closed the connection too early"
    if isinstance(error, aiohttp.ClientOSError):
        return f"{error.strerror or 'the connection failed'}".rstrip(".")
    return f"its answer cannot be read ({type(error).__name__})"


def too_large(what: str, limit: int) -> ToolError:
    return ToolError(f"{what} has more than {format_size(limit)}.", _TOO_MUCH)
