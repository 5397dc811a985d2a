"""Tokens of OAuth logins, for everything of the gateway that acts in a person's name at another service.

A login is interactive, and its caller keeps what it gave with `Store.oauth.save`. From then on `OAuthLogins`
returns a valid token. Of all gateways on a store one renews a token at a time: services that rotate refresh
tokens take each of them once, and revoke the login if it comes twice.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from urllib.parse import quote

import msgspec

from talaria.core.access import OAuthClient, OAuthGrant, OAuthTokens
from talaria.core.errors import TalariaError, ToolError
from talaria.core.redaction import Secret, SecretRegistry
from talaria.core.text import clean_line
from talaria.store.store import OAuthGrants

_EARLY_SECONDS = 60.0  # before its end a token is renewed
_CLAIM_SECONDS = 30.0  # within which it has been
_RENEWAL_SECONDS = 20.0  # for the service to answer
_LOOK_SECONDS = 0.25  # between two looks at what another gateway does
_MAX_ANSWER_BYTES = 64 << 10
_FINAL = frozenset({"invalid_grant", "invalid_client", "unauthorized_client"})


class LoginNeeded(TalariaError):
    """A person has to log in, for the first time or again."""

    type = "login_needed"


class _Answer(msgspec.Struct):
    """The answer of a token endpoint."""

    access_token: str = ""
    refresh_token: str = ""
    expires_in: float | None = None
    error: str = ""


class OAuthLogins:
    """The logins of a gateway."""

    def __init__(self, grants: OAuthGrants, now: Callable[[], float], secrets: SecretRegistry) -> None:
        """`now` is the store's time. Tokens are added to `secrets`."""
        self._grants = grants
        self._now = now
        self._secrets = secrets

    async def token(self, name: str, hint: str, *, refused: str = "") -> str:
        """Return a valid access token of a login. `refused` is one that the service does not take any more,
        and `hint` says how to log in.

        Raises `LoginNeeded`, and `ToolError` if the service cannot renew it now.
        """
        for _ in range(round(_CLAIM_SECONDS / _LOOK_SECONDS) + 1):
            grant = await self._grants.find(name)
            if grant is None:
                raise LoginNeeded("Nobody has logged in.", hint)
            if grant.problem:
                raise LoginNeeded(f"The login is over: {grant.problem}.", hint)
            if grant.access != refused and not self._is_ending(grant):
                self._secrets.add_recent(Secret(name, grant.access))
                return grant.access
            if not grant.refresh:
                raise LoginNeeded("The login has expired, and the service does not renew it.", hint)
            claimed = await self._grants.claim(name, grant.access, _CLAIM_SECONDS)
            if claimed is not None:
                await self._renew(claimed)
            else:  # another task or gateway renews it
                await asyncio.sleep(_LOOK_SECONDS)
        raise ToolError("The login cannot be renewed now: another gateway has not finished that.")

    def _is_ending(self, grant: OAuthGrant) -> bool:
        return grant.expires_at is not None and grant.expires_at - self._now() < _EARLY_SECONDS

    async def _renew(self, grant: OAuthGrant) -> None:
        """Renew the tokens of a grant that was claimed. What the service gave is written even if the caller
        is cancelled meanwhile: the service may refuse the old refresh token from then on."""
        renewal = asyncio.ensure_future(self._exchange(grant))
        try:
            await asyncio.shield(renewal)
        except asyncio.CancelledError:
            await asyncio.wait((renewal,))
            raise

    async def _exchange(self, grant: OAuthGrant) -> None:
        try:
            tokens = await request_tokens(
                grant.client, {"grant_type": "refresh_token", "refresh_token": grant.refresh}
            )
        except LoginNeeded as error:
            await self._grants.give_up(grant, clean_line(error.user_text, 200))
        except TalariaError:
            await self._grants.give_up(grant, "")
            raise
        else:
            self._secrets.add_recent(Secret(grant.name, tokens.refresh))
            await self._grants.renew(grant, tokens)


async def request_tokens(client: OAuthClient, form: dict[str, str]) -> OAuthTokens:
    """Ask a service's token endpoint. Raises `LoginNeeded` if it refuses for good, else `ToolError`."""
    import aiohttp  # noqa: PLC0415 - an idle gateway has not loaded the HTTP client

    form = {
        **form,
        "client_id": client.client_id,
        **({"resource": client.resource} if client.resource else {}),
    }
    headers = {"Accept": "application/json"}
    if client.sends_basic:
        pair = f"{quote(client.client_id, safe='')}:{quote(client.secret, safe='')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    elif client.secret:
        form["client_secret"] = client.secret
    try:
        async with (
            asyncio.timeout(_RENEWAL_SECONDS),
            aiohttp.ClientSession(trust_env=False) as session,
            session.post(client.token_url, data=form, headers=headers, allow_redirects=False) as response,
        ):
            said = await response.content.read(_MAX_ANSWER_BYTES)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ToolError(f"The login cannot be renewed now: {type(error).__name__}.") from error
    try:
        answer = msgspec.json.decode(said, type=_Answer)
    except msgspec.DecodeError:
        answer = _Answer()
    if answer.error in _FINAL:
        raise LoginNeeded(f"the service says {clean_line(answer.error, 60)}")
    if response.status // 100 != 2 or not answer.access_token:
        raise ToolError(f"The login cannot be renewed now: status {response.status}.")
    return OAuthTokens(answer.access_token, answer.refresh_token, answer.expires_in)
