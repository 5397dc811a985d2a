"""Search on the web: one port, and the providers that an operator can choose."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from talaria.core.errors import ToolError
from talaria.core.redaction import Redactor, Secret
from talaria.core.text import cut
from talaria.tools.settings import SearchSettings

MAX_RESULTS: Final = 8
_SECONDS = 20.0
_MAX_BYTES = 2 << 20
_MAX_TITLE, _MAX_EXCERPT, _MAX_LINK = 200, 500, 2000
_TAG = re.compile(r"<[^<>]{0,100}>")


@dataclass(frozen=True, slots=True)
class SearchHit:
    title: str
    url: str
    excerpt: str


@dataclass(frozen=True, slots=True)
class _SearchRequest:
    """A request in the words of a provider. `list_path` leads to the hits in its answer."""

    method: str
    path: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    body: Mapping[str, Any] | None
    list_path: tuple[str, ...]
    excerpt_key: str


class HttpSearch:
    """A provider that is asked over HTTP. The operator names its address, so it may be a private one."""

    def __init__(self, settings: SearchSettings, key: str) -> None:
        self._provider = settings.provider
        self._address = settings.address
        self._key = key
        in_address = [Secret("search.base_url", value) for value in self._address.secrets]
        self._redact = Redactor([Secret(settings.api_key_env or "search.api_key", key), *in_address])

    async def search(self, query: str) -> Sequence[SearchHit]:
        """Return the hits, best first. Raises `ToolError` with what went wrong and what to do."""
        request = self._request(query)
        status, body = await self._send(request)
        if status != 200:
            raise self._refusal(status, body)
        try:
            found: Any = json.loads(body)
            for name in request.list_path:
                found = found.get(name, {})
            hits = [_hit(item, request.excerpt_key) for item in found or ()]
        except (ValueError, AttributeError, TypeError, RecursionError):
            raise self._error("sent an answer that cannot be read", "Check search.base_url.") from None
        return [hit for hit in hits if hit is not None]

    def _request(self, query: str) -> _SearchRequest:
        match self._provider:
            case "searxng":
                asked = {"q": query, "format": "json"}
                return _SearchRequest("GET", "/search", {}, asked, None, ("results",), "content")
            case "brave":
                asked = {"q": query, "count": str(MAX_RESULTS), "text_decorations": "false"}
                headers = {"X-Subscription-Token": self._key}
                return _SearchRequest(
                    "GET", "/web/search", headers, asked, None, ("web", "results"), "description"
                )
            case _:
                body = {"query": query, "max_results": MAX_RESULTS}
                headers = {"Authorization": f"Bearer {self._key}"}
                return _SearchRequest("POST", "/search", headers, {}, body, ("results",), "content")

    async def _send(self, request: _SearchRequest) -> tuple[int, bytes]:
        import aiohttp  # noqa: PLC0415

        login = {"Authorization": self._address.authorization} if self._address.authorization else {}
        try:
            async with (
                asyncio.timeout(_SECONDS),
                aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
                session.request(
                    request.method,
                    self._address.target(request.path),
                    params=request.query,
                    json=request.body,
                    headers={"Accept": "application/json", **login, **request.headers},
                    allow_redirects=False,
                ) as response,
            ):
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > _MAX_BYTES:
                        raise self._error("sent more than 2 MiB", "Check search.base_url.")
                return response.status, bytes(body)
        except TimeoutError:
            raise self._error(f"did not answer within {_SECONDS:g} seconds", "Try again later.") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = self._redact(str(error))[:200]
            raise self._error(f"cannot be reached: {reason}", "Check search.base_url.") from None

    def _refusal(self, status: int, body: bytes) -> ToolError:
        key = f"The operator checks {self._provider}'s key (search.api_key_env)."
        if status == 429 or (self._provider == "tavily" and status in (432, 433)):
            return self._error("takes no more searches for now", "Wait a while, or continue without.")
        if self._provider == "searxng" and status == 403:
            hint = "The operator allows the format json: `search.formats` in SearXNG's settings.yml."
            return self._error("refuses to answer in JSON", hint)
        if status in (401, 403) or (self._provider == "brave" and status == 422 and b"TOKEN" in body):
            return self._error("refuses the key", key)
        said = " ".join(self._redact(body[:300].decode(errors="replace")).split())
        return self._error(f"answered {status}: {said}", "Try again later, or other words.")

    def _error(self, what: str, hint: str) -> ToolError:
        return ToolError(f"The search provider {self._provider} {what}.", hint)


def _hit(item: Mapping[str, Any], excerpt_key: str) -> SearchHit | None:
    url = str(item.get("url") or "")
    if not url.startswith(("http://", "https://")) or len(url) > _MAX_LINK:
        return None
    title, excerpt = _plain(item.get("title"), _MAX_TITLE), _plain(item.get(excerpt_key), _MAX_EXCERPT)
    return SearchHit(title, url, excerpt)


def _plain(value: object, limit: int) -> str:
    return cut(" ".join(html.unescape(_TAG.sub("", str(value or "")[: 4 * limit])).split()), limit)


def open_search(settings: SearchSettings, environ: Mapping[str, str]) -> HttpSearch | None:
    """Return the provider that the settings name; None if there is none, or if it lacks its key."""
    key = settings.api_key or environ.get(settings.api_key_env, "").strip()
    if not settings.provider or (settings.provider != "searxng" and not key):
        return None
    return HttpSearch(settings, key)
