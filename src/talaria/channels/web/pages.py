"""`/` and `/assets/NAME`: the page's own files, open to everybody, since they hold nothing of anybody's."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from talaria.channels.http.answers import Answer, Reply
from talaria.channels.http.calls import Call
from talaria.channels.http.errors import RawHeaders
from talaria.channels.http.resources import not_found

INDEX: Final = "index.html"
_SCRIPT: Final = b"text/javascript; charset=utf-8"
# All that is ever served: a name that is not here is not looked for on the disk.
MEDIA_TYPES: Final = {
    INDEX: b"text/html; charset=utf-8",
    "app.js": _SCRIPT,
    "chats.js": _SCRIPT,
    "composer.js": _SCRIPT,
    "elements.js": _SCRIPT,
    "keep.js": _SCRIPT,
    "markdown.js": _SCRIPT,
    "net.js": _SCRIPT,
    "room.js": _SCRIPT,
    "transcript.js": _SCRIPT,
    "style.css": b"text/css; charset=utf-8",
    "icon.svg": b"image/svg+xml",
}
_HEADERS: Final[RawHeaders] = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),  # kept, and asked for again by its tag: an update is seen at once
)


@dataclass(frozen=True, slots=True)
class Asset:
    body: bytes
    media_type: bytes
    etag: str

    @classmethod
    def read(cls, name: str) -> Asset:
        body = (files(__package__) / "assets" / name).read_bytes()
        return cls(body, MEDIA_TYPES[name], f'"{hashlib.sha256(body).hexdigest()}"')


class PageRoutes:
    def __init__(self) -> None:
        self._assets: dict[str, Asset] = {}  # filled at first use

    async def index(self, call: Call) -> Reply:
        return self._answer(call, INDEX)

    async def asset(self, call: Call) -> Reply:
        name = call.path("name")
        if name == INDEX or name not in MEDIA_TYPES:
            return await not_found(call)
        return self._answer(call, name)

    def _answer(self, call: Call, name: str) -> Reply:
        asset = self._assets.get(name)
        if asset is None:
            asset = self._assets[name] = Asset.read(name)
        headers: RawHeaders = (*_HEADERS, (b"etag", asset.etag.encode()))
        if _has(call.header(b"if-none-match"), asset.etag):
            return Answer(b"", 304, headers, asset.media_type)
        return Answer(asset.body, 200, headers, asset.media_type)


def _has(known: str | None, etag: str) -> bool:
    """Whether the caller's `If-None-Match` names this version. A proxy that packs answers marks tags weak."""
    return known is not None and etag in (tag.strip().removeprefix("W/") for tag in known.split(","))
