"""Operations on the browsers of sessions."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from talaria.core.errors import Refused, ToolError
from talaria.gateway import Gateway
from talaria.operations.operation import CHAT, OperationCall, operation
from talaria.operations.sessions import SessionLookup, SessionName
from talaria.workspace.browser.cookies import MAX_BYTES, parse_cookies


class CookiesBody(msgspec.Struct, frozen=True, kw_only=True):
    x: SessionName
    cookies: Annotated[
        str, Meta(max_length=MAX_BYTES, description="Content of a cookies.txt, or cookies as JSON.")
    ] = ""


class AddedCookies(msgspec.Struct, frozen=True):
    """Cookies that were added to a session's browser, and the sites that they belong to."""

    session_id: str
    cookies: int
    sites: tuple[str, ...]


@operation(
    "browser.login",
    "POST /api/sessions/{x}/browser/login",
    CHAT,
    audit="browser.login",
    errors=("not_found", "no_browser"),
    example='{"cookies": "shop.example\\tTRUE\\t/\\tTRUE\\t0\\tsid\\t…"}',
    usage=("talaria browser login work --file cookies.txt",),
    max_body=2 * MAX_BYTES,
)
async def log_in(gateway: Gateway, call: OperationCall, wanted: CookiesBody) -> AddedCookies:
    """Add cookies from your own browser to a session's browser, so that it is logged in."""
    session = await SessionLookup(gateway).session(wanted.x, call)
    cookies = parse_cookies(wanted.cookies)
    try:
        async with gateway.workspaces.open(session.id, session.chat_key).browser.use() as (browser, _):
            await browser.add_cookies(cookies)
    except ToolError as error:
        raise Refused("no_browser", error.user_text, error.hint) from error
    sites = dict.fromkeys(str(cookie["domain"]).lstrip(".") for cookie in cookies)
    return AddedCookies(session.id, len(cookies), tuple(sites))


BROWSER_OPERATIONS = (log_in,)
