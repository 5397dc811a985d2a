"""Cookies of another browser, in the files that browsers and their extensions export. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from talaria.core.errors import BadRequest

MAX_BYTES = 1 << 20
MAX_COOKIES = 3000
_FIELDS = 7  # of a line: domain, subdomains, path, secure, expires, name, value
_HTTP_ONLY = "#HttpOnly_"
_SAME_SITE = {"lax": "Lax", "strict": "Strict", "none": "None", "no_restriction": "None"}


class _Exported(msgspec.Struct):
    """A cookie as extensions write it to JSON."""

    name: str
    value: str
    domain: str
    path: str = "/"
    secure: bool = False
    httpOnly: bool = False  # noqa: N815 - the name in these files
    expirationDate: float | None = None  # noqa: N815
    expires: float | None = None
    sameSite: str | None = None  # noqa: N815


def parse_cookies(text: str) -> list[dict[str, Any]]:
    """Return the cookies as Chromium takes them. `text` is a cookies.txt, or JSON as extensions export it.

    Raises `BadRequest`.
    """
    if text.lstrip().startswith(("[", "{")):
        cookies = [*map(_from_json, _decode(text))]
    else:
        cookies = [*_from_lines(text)]
    if not cookies:
        raise BadRequest(
            "The file has no cookies.",
            "Export them as cookies.txt (Netscape format) or as JSON, with an extension of your browser.",
        )
    if len(cookies) > MAX_COOKIES:
        raise BadRequest(
            f"The file has {len(cookies)} cookies.", f"Export at most {MAX_COOKIES}: one site's."
        )
    return cookies


def _decode(text: str) -> list[_Exported]:
    try:
        data = msgspec.json.decode(text)
        return msgspec.convert(
            data["cookies"] if isinstance(data, dict) else data, list[_Exported], strict=False
        )
    except (msgspec.MsgspecError, KeyError, RecursionError) as error:
        hint = "Expected a list of objects with name, value and domain."
        raise BadRequest(f"The cookies are not as extensions export them: {error}.", hint) from None


def _from_json(cookie: _Exported) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": cookie.name,
        "value": cookie.value,
        "domain": cookie.domain,
        "path": cookie.path,
        "secure": cookie.secure,
        "httpOnly": cookie.httpOnly,
    }
    expires = cookie.expirationDate or cookie.expires
    if expires and expires > 0:
        made["expires"] = expires
    if same_site := _SAME_SITE.get((cookie.sameSite or "").lower()):
        made["sameSite"] = same_site
    return made


def _from_lines(text: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        is_http_only = line.startswith(_HTTP_ONLY)
        line = line.removeprefix(_HTTP_ONLY)  # noqa: PLW2901 - the rest of it
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split("\t")
        if len(fields) != _FIELDS or not fields[4].strip().lstrip("-").isdigit():
            raise BadRequest(
                f"Line {number} is not a line of a cookies.txt: it has {len(fields)} fields.",
                "Export the file again. It has seven fields in each line, with tabs between them.",
            )
        domain, _, path, secure, expires, name, value = fields
        made: dict[str, Any] = {"name": name, "value": value, "domain": domain, "path": path}
        made |= {"secure": secure == "TRUE", "httpOnly": is_http_only}
        if int(expires) > 0:
            made["expires"] = int(expires)
        yield made
