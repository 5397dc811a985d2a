"""`/` and `/assets/`: the files of the web pages. They need no login, since they hold no data."""

from __future__ import annotations

import gzip
import hashlib
import re
from functools import cached_property
from importlib.resources import files
from typing import Final

from talaria.channels.http.errors import nothing_at
from talaria.channels.http.request import RawHeaders, Request
from talaria.channels.http.response import Response
from talaria.core.program import program_name

INDEX: Final = "index.html"
HTML: Final = ".html"
VENDORED: Final = ("preact.js", "temml.js")  # sent as they are: a test compares their hashes
MEDIA_TYPES: Final = {
    HTML: b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
}
_CODE: Final = (".js", ".css")
# The page loads these when they are needed; the first one belongs to a page of its own.
_LATER: Final = (
    "calls.js", "colours.js", "completion.js", "delegates.js", "dialogs.js", "exporting.js", "files.js",
    "inbox.js", "inspector.js", "jobs.js", "math.js", "memory.js", "palette.js", "picker.js", "search.js",
    "sent.js", "setup.js", "temml.js",
)  # fmt: skip
# Comments and indentation. Lines keep their numbers. A comment behind code has no quotes, so none is a text.
_UNREAD: Final = re.compile(
    rb"^[ \t]*(?://[^\n]*|/\*(?:[^*]|\*(?!/))*\*/[ \t]*$)|^[ \t]+|(?<=[;{},()\]>:]) +// [^\n\"'`]*$",
    re.MULTILINE,
)
# Hosts that a policy can name with a path: names, and the one address that browsers compare.
_NAMEABLE: Final = re.compile(r"(?:127\.0\.0\.1|[a-z0-9.-]*[a-z][a-z0-9.-]*)(?::\d+)?")
_HEADERS: Final[RawHeaders] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"vary", b"accept-encoding"),
)
_CHECKED: Final = (b"cache-control", b"no-cache")  # a browser asks by tag, so an update counts at once
_KEPT: Final = (b"cache-control", b"public, max-age=31536000, immutable")


class Asset:
    """A file as it is sent. It is compressed when a browser first asks for it."""

    def __init__(self, name: str, body: bytes) -> None:
        self.body = body
        self.media_type = MEDIA_TYPES[name[name.rindex(".") :]]
        self.etag = f'"{hashlib.sha256(body).hexdigest()}"'

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.body, 9, mtime=0)


class Assets:
    """All files of the pages. `tree` is a hash over them. A file in the folder of that name never changes, so
    browsers keep it; the pages name these files by it."""

    def __init__(self, base_path: str = "") -> None:
        """`base_path` is `http.base_path`. Scripts read it from their own addresses."""
        self._base_path = base_path
        folder = files(__package__) / "assets"
        read = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        names = sorted(read)
        whole = hashlib.sha256(b"".join(name.encode() + b"\0" + read[name] for name in names))
        self.tree = whole.hexdigest()[:16]
        self.modules = [name for name in names if name.endswith(".js") and name not in _LATER]
        self.by_name = {name: Asset(name, self._as_sent(name, read[name])) for name in names}

    def _as_sent(self, name: str, body: bytes) -> bytes:
        """Return a page with the addresses of the other files, and with the program as a person types it.
        Scripts read it from the attribute. Return scripts and styles without what only people read."""
        if name.endswith(_CODE) and name not in VENDORED:
            return _UNREAD.sub(lambda found: b"\n" * found[0].count(b"\n"), body)
        if not name.endswith(HTML):
            return body
        program = program_name().encode()
        body = body.replace(b'data-program="talaria"', b'data-program="' + program + b'"')
        body = body.replace(b"<code>talaria ", b"<code>" + program + b" ")
        base = self._base_path
        place = f"{base}/assets/{self.tree}/"
        body = body.replace(b'href="/assets/calls.html"', b'href="%b/assets/calls.html"' % base.encode())
        body = body.replace(b'href="/"', b'href="%b/"' % base.encode())
        body = re.sub(rb'(src|href)="/assets/(?![\w.]+\.html")', rb'\1="' + place.encode(), body)
        if name == INDEX:
            loaded = "".join(f'<link rel="modulepreload" href="{place}{each}">\n  ' for each in self.modules)
            body = body.replace(b"<script ", loaded.encode() + b"<script ", 1)
        return body


class PageFiles:
    def __init__(self, base_path: str = "") -> None:
        self._base_path = base_path

    @cached_property
    def _assets(self) -> Assets:
        return Assets(self._base_path)

    async def index(self, request: Request) -> Response:
        return self._response(request, INDEX, _CHECKED)

    async def asset(self, request: Request) -> Response:
        """A file by its name alone, which a browser checks each time."""
        return self._response(request, self._known(request), _CHECKED)

    async def kept_asset(self, request: Request) -> Response:
        """A file of this version. One of another version is not found, so a page never mixes versions."""
        if request.params["tree"] != self._assets.tree:
            raise nothing_at(request)
        return self._response(request, self._known(request), _KEPT)

    def _known(self, request: Request) -> str:
        name = request.params["name"]
        if name == INDEX or name not in self._assets.by_name:
            raise nothing_at(request)
        return name

    def _response(self, request: Request, name: str, caching: tuple[bytes, bytes]) -> Response:
        asset = self._assets.by_name[name]
        policy = (b"content-security-policy", _policy(request.header(b"host") or "", self._base_path))
        headers = (*_HEADERS, caching, policy, (b"etag", asset.etag.encode()))
        if _matches(request.header(b"if-none-match"), asset.etag):
            return Response(b"", 304, headers, asset.media_type)
        if "gzip" in (request.header(b"accept-encoding") or ""):
            headers = (*headers, (b"content-encoding", b"gzip"))
            return Response(asset.compressed, 200, headers, asset.media_type)
        return Response(asset.body, 200, headers, asset.media_type)


def _policy(host: str, base_path: str) -> bytes:
    """Return the policy of the page. Only `/assets/` holds scripts and styles: `'self'` would cover uploaded
    files too. The guard has compared the host with ours."""
    files = f"{host}{base_path}/assets/" if _NAMEABLE.fullmatch(host.lower()) else "'self'"
    return (
        f"default-src 'none'; script-src {files}; style-src {files}; img-src {files} blob: data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ).encode("latin-1")


def _matches(known: str | None, etag: str) -> bool:
    """Return whether `If-None-Match` names this version. A proxy that compresses marks its tags as weak."""
    return known is not None and etag in (tag.strip().removeprefix("W/") for tag in known.split(","))
