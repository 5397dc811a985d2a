"""Operations on access: pair people on chat platforms, and manage tokens for programs."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from talaria.access.authorizer import Invitation
from talaria.access.callers import Credential
from talaria.access.credentials import FreshToken, TokenAdmin
from talaria.core.access import NamedToken, OAuthClient, OAuthTokens, Paired, PairingList, Role
from talaria.core.errors import Refused
from talaria.core.redaction import Secret
from talaria.gateway import Records
from talaria.operations.operation import OPERATE, Nothing, OperationCall, argument, operation


class ApproveBody(msgspec.Struct, frozen=True):
    code: Annotated[str, argument("Pairing code that the person received.", "CODE…")]


class RevokeBody(msgspec.Struct, frozen=True):
    channel: Annotated[str, Meta(description="Chat platform.")]
    user: Annotated[str, Meta(description="The person's id on the platform.")]


class InviteBody(msgspec.Struct, frozen=True):
    channel: Annotated[str, argument("Chat platform.", "CHANNEL")]


class AddTokenBody(msgspec.Struct, frozen=True):
    name: Annotated[str, argument("Name for the token.", "NAME")]
    role: Annotated[Role, Meta(description="Role of the token: read, chat or operate.")]
    seconds: Annotated[float | None, Meta(description="Lifetime in seconds. Default: no expiry.")] = None


class RevokeTokenBody(msgspec.Struct, frozen=True):
    name: Annotated[str, argument("Name of the token to revoke.", "NAME")]


class GrantBody(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=2000, description="Name of the login.")]
    client: Annotated[OAuthClient | None, Meta(description="How its tokens are renewed.")] = None
    tokens: Annotated[OAuthTokens | None, Meta(description="Its tokens. If null, forget them.")] = None


class SavedLogin(msgspec.Struct, frozen=True):
    name: str


class TokenList(msgspec.Struct, frozen=True):
    tokens: tuple[NamedToken, ...]


@operation("pair.list", "GET /api/pairings", OPERATE, usage=("talaria pair list",))
async def list_pairings(records: Records, call: OperationCall, wanted: Nothing) -> PairingList:
    """List paired people and open pairing requests."""
    return await records.pairing.listing()


@operation(
    "pair.approve",
    "POST /api/pairings/approve",
    OPERATE,
    audit="pair.approve",
    errors=("not_found", "too_many_tries"),
    usage=("talaria pair approve K7QD-93MX-4TZA",),
)
async def approve_pairing(records: Records, call: OperationCall, wanted: ApproveBody) -> Paired:
    """Approve the person who received this pairing code."""
    paired = await records.pairing.approve(wanted.code)
    call.about = f"{paired.person.channel}:{paired.person.user_id}"
    return paired


@operation("pair.revoke", "POST /api/pairings/revoke", OPERATE, audit="pair.revoke", errors=("not_found",))
async def revoke_pairing(records: Records, call: OperationCall, wanted: RevokeBody) -> Paired:
    """Revoke a person's access."""
    call.about = f"{wanted.channel}:{wanted.user}"
    return await records.pairing.revoke(wanted.channel, wanted.user)


@operation(
    "pair.invite",
    "POST /api/pairings/invite",
    OPERATE,
    audit="pair.invite",
    usage=("talaria pair invite CHANNEL",),
)
async def invite_person(records: Records, call: OperationCall, wanted: InviteBody) -> Invitation:
    """Create an invitation code. The first person who sends it is paired without approval."""
    call.about = wanted.channel
    return await records.pairing.invite(wanted.channel)


@operation("token.list", "GET /api/tokens", OPERATE, usage=("talaria token list",))
async def list_tokens(records: Records, call: OperationCall, wanted: Nothing) -> TokenList:
    """List tokens without their secrets. The time of last use is accurate to the hour."""
    return TokenList(await TokenAdmin(records.store.tokens).tokens())


@operation(
    "token.add",
    "POST /api/tokens",
    OPERATE,
    audit="token.add",
    status=201,
    errors=("token_needed",),
    is_secret=True,
    usage=("talaria token add phone --role chat --expires 30d",),
)
async def add_token(records: Records, call: OperationCall, wanted: AddTokenBody) -> FreshToken:
    """Create a token. Its secret is shown once; the gateway stores only a hash."""
    # A login cannot create a token, because the token would outlive the login. A named token cannot create
    # one with the role `operate`, because that one would outlive a revocation.
    if call.caller.credential is Credential.LOGIN:
        raise Refused(
            "token_needed",
            "A browser login cannot create tokens.",
            "Run `talaria token add NAME --role ROLE` on the gateway's machine.",
        )
    call.about = f"{wanted.name} ({wanted.role})"
    _check_may_grant(call, wanted.role)
    fresh = await TokenAdmin(records.store.tokens).add_token(wanted.name, wanted.role, wanted.seconds)
    records.hide(Secret(f"token {wanted.name}", fresh.secret))
    return fresh


@operation(
    "token.revoke",
    "POST /api/tokens/revoke",
    OPERATE,
    audit="token.revoke",
    errors=("not_found", "token_needed"),
    usage=("talaria token revoke phone",),
)
async def revoke_token(records: Records, call: OperationCall, wanted: RevokeTokenBody) -> NamedToken:
    """Revoke a token. Its next call is refused."""
    call.about = wanted.name
    admin = TokenAdmin(records.store.tokens)
    if wanted.name != call.caller.name:
        for token in await admin.tokens():
            if token.name == wanted.name:
                _check_may_grant(call, token.role)
    return await admin.revoke_token(wanted.name)


def _check_may_grant(call: OperationCall, role: Role) -> None:
    """Raise `Refused` if the caller may not create or revoke a token with this role."""
    if role is Role.OPERATE and call.caller.credential not in (Credential.HOME, Credential.LOGIN):
        raise Refused(
            "token_needed",
            "Only the home's own token can create or revoke a token with the role operate.",
            "Run `talaria token` on the gateway's machine.",
        )


@operation("oauth.save", "POST /api/oauth", OPERATE, audit="oauth.save", max_body=64 << 10)
async def save_login(records: Records, call: OperationCall, wanted: GrantBody) -> SavedLogin:
    """Keep the tokens of an OAuth login, or forget them. The gateway renews them."""
    client, tokens = wanted.client, wanted.tokens
    if client is None or tokens is None:
        await records.store.oauth.forget(wanted.name)
    else:
        for token in (tokens.access, tokens.refresh, client.secret):
            records.hide(Secret(wanted.name, token))
        await records.store.oauth.save(wanted.name, client, tokens)
    return SavedLogin(wanted.name)


ACCESS_OPERATIONS: Final = (
    list_pairings,
    approve_pairing,
    revoke_pairing,
    invite_person,
    list_tokens,
    add_token,
    revoke_token,
    save_login,
)
