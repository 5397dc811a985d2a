"""`/` and `/assets/NAME`: the files of the web pages. They need no login, since they hold no data."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from talaria.channels.http.errors import nothing_at
from talaria.channels.http.request import RawHeaders, Request
from talaria.channels.http.response import Response
from talaria.core.program import program_name

INDEX: Final = "index.html"
_SCRIPT: Final = b"text/javascript; charset=utf-8"
# Only these files are served: a name that is not here is never looked up on the disk.
MEDIA_TYPES: Final = {
    INDEX: b"text/html; charset=utf-8",
    "api.js": _SCRIPT,
    "app.js": _SCRIPT,
    "calls.css": b"text/css; charset=utf-8",
    "calls.html": b"text/html; charset=utf-8",
    "calls.js": _SCRIPT,
    "chat.js": _SCRIPT,
    "chats.js": _SCRIPT,
    "composer.js": _SCRIPT,
    "deletion.js": _SCRIPT,
    "elements.js": _SCRIPT,
    "files.js": _SCRIPT,
    "jobs.js": _SCRIPT,
    "links.js": _SCRIPT,
    "markdown.js": _SCRIPT,
    "memory.js": _SCRIPT,
    "model.js": _SCRIPT,
    "questions.js": _SCRIPT,
    "search.js": _SCRIPT,
    "storage.js": _SCRIPT,
    "tools.js": _SCRIPT,
    "transcript.js": _SCRIPT,
    "style.css": b"text/css; charset=utf-8",
    "icon.svg": b"image/svg+xml",
}
# Hosts that a policy can name with a path: names, and the one address that browsers compare.
_NAMEABLE: Final = re.compile(r"(?:127\.0\.0\.1|[a-z0-9.-]*[a-z][a-z0-9.-]*)(?::\d+)?")
_HEADERS: Final[RawHeaders] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (
        b"cache-control",
        b"no-cache",
    ),  # a browser asks by tag, so an update counts at once
)


@dataclass(frozen=True, slots=True)
class Asset:
    body: bytes
    media_type: bytes
    etag: str

    @classmethod
    def read(cls, name: str) -> Asset:
        body = (files(__package__) / "assets" / name).read_bytes()
        if name == INDEX:
            body = _name_program(body, program_name().encode())
        return cls(body, MEDIA_TYPES[name], f'"{hashlib.sha256(body).hexdigest()}"')


def _name_program(body: bytes, program: bytes) -> bytes:
    """Write how the program is typed into the page. Its scripts read it from the attribute."""
    body = body.replace(b'data-program="talaria"', b'data-program="' + program + b'"')
    return body.replace(b"<code>talaria ", b"<code>" + program + b" ")


class PageFiles:
    def __init__(self) -> None:
        self._assets: dict[str, Asset] = {}  # filled at first use

    async def index(self, request: Request) -> Response:
        return self._response(request, INDEX)

    async def asset(self, request: Request) -> Response:
        name = request.params["name"]
        if name == INDEX or name not in MEDIA_TYPES:
            raise nothing_at(request)
        return self._response(request, name)

    def _response(self, request: Request, name: str) -> Response:
        asset = self._assets.get(name)
        if asset is None:
            asset = self._assets[name] = Asset.read(name)
        policy = _policy(request.header(b"host") or "")
        headers = (*_HEADERS, (b"content-security-policy", policy), (b"etag", asset.etag.encode()))
        if _matches(request.header(b"if-none-match"), asset.etag):
            return Response(b"", 304, headers, asset.media_type)
        return Response(asset.body, 200, headers, asset.media_type)


def _policy(host: str) -> bytes:
    """Return the policy of the page. Only `/assets/` holds scripts and styles: `'self'` would cover uploaded
    files too. The guard has compared the host with ours."""
    files = f"{host}/assets/" if _NAMEABLE.fullmatch(host.lower()) else "'self'"
    return (
        f"default-src 'none'; script-src {files}; style-src {files}; img-src {files} blob: data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ).encode("latin-1")


def _matches(known: str | None, etag: str) -> bool:
    """Return whether `If-None-Match` names this version. A proxy that compresses marks its tags as weak."""
    return known is not None and etag in (tag.strip().removeprefix("W/") for tag in known.split(","))
