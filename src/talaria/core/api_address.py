"""The address of an API, with its credentials taken apart."""

from __future__ import annotations

import re
from base64 import b64encode
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

HIDDEN = "…"
_BOT_TOKEN = re.compile(r"/bot([0-9]+:[A-Za-z0-9_-]{10,})(?=/|$)")
_PASSWORD = re.compile(r"([\w+.-]+://[^:@/?#\s]*):([^/?#\s]*)@")
_SHOWN = re.compile("version", re.IGNORECASE)  # the parameters of a query that are no secret


def hide_passwords(text: str) -> str:
    """Return the text with PASSWORD in place of the passwords of addresses in it."""
    return _PASSWORD.sub(r"\1:PASSWORD@", text)


def password_of(text: str) -> str:
    """Return the password of a URL as it is written there; an empty text for any other text.

    `urlsplit` cannot read every PostgreSQL URL: some Pythons refuse a list of hosts with an IPv6 address.
    """
    found = _PASSWORD.match(text.strip())
    return found[2] if found else ""


class ApiAddress(str):
    """An address as it may be shown: without user and password, without the values of the query, and without
    the token of a bot in its path.

    It is a text, so it can be printed, logged, stored and compared like one. `target` and `authorization`
    have the credentials and are for requests only. Two addresses are equal only if their credentials are.
    """

    whole: str
    """The address as it was written, for config.toml only."""
    secrets: frozenset[str]
    """The credentials in it, for the redactor."""
    authorization: str | None
    """The header for user and password; None without them."""
    _base: str
    _query: str

    def __new__(cls, url: str) -> ApiAddress:
        if isinstance(url, ApiAddress):
            return url
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = SplitResult("", "", "", "", "")
        userinfo, at, host = parts.netloc.rpartition("@")
        path = _BOT_TOKEN.sub("", parts.path)
        query = [name_and_value.partition("=") for name_and_value in parts.query.split("&") if name_and_value]
        if at or query or parts.fragment or path != parts.path:
            shown = "&".join(
                f"{name}{sign}{value if _SHOWN.search(name) else HIDDEN if value else ''}"
                for name, sign, value in query
            )
            clean = parts._replace(netloc=host, path=path, query=shown, fragment="").geturl()
        else:
            clean = url
        self = super().__new__(cls, clean)
        self.whole = url
        self._base = parts._replace(netloc=host, path=path.rstrip("/"), query="", fragment="").geturl() or url
        self._query = parts.query
        user, _, password = userinfo.partition(":")
        pair = f"{unquote(user)}:{unquote(password)}".encode()
        self.authorization = f"Basic {b64encode(pair).decode()}" if at else None
        values = [value for name, value in parse_qsl(parts.query) if not _SHOWN.search(name)]
        found = {password or user, unquote(password or user), *values, *_BOT_TOKEN.findall(parts.path)}
        self.secrets = frozenset(found - {""})
        return self

    def target(self, path: str) -> str:
        """Return the address of `path` below this one, with the query and without user and password."""
        return f"{self._base}{path}{'?' if self._query else ''}{self._query}"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ApiAddress):
            return self.whole == other.whole
        return str.__eq__(self, other) if isinstance(other, str) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__
