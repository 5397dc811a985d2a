"""Operations on who may use the gateway: pairing people of chat platforms, and tokens of programs."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from talaria.access.callers import Credential
from talaria.access.pairing import Invitation
from talaria.access.tokens import FreshToken, TokenAdmin
from talaria.core.access import Paired, PairingList, Role
from talaria.core.errors import Refused
from talaria.core.redaction import Secret
from talaria.core.tokens import NamedToken
from talaria.gateway import Records
from talaria.operations.operation import OPERATE, Nothing, OperationCall, argument, operation


class ApproveBody(msgspec.Struct, frozen=True):
    code: Annotated[str, argument("The code that the person was given.", "CODE…")]


class RevokeBody(msgspec.Struct, frozen=True):
    channel: str
    user: str


class InviteBody(msgspec.Struct, frozen=True):
    channel: Annotated[str, argument("The chat platform.", "CHANNEL")]


class AddTokenBody(msgspec.Struct, frozen=True):
    name: Annotated[str, argument("A name of your choice.", "NAME")]
    role: Annotated[Role, Meta(description="Its rights.")]
    seconds: Annotated[float, Meta(description="How long it is valid. Default: for ever.")] | None = None


class RevokeTokenBody(msgspec.Struct, frozen=True):
    name: Annotated[str, argument("The name of a token.", "NAME")]


class TokenList(msgspec.Struct, frozen=True):
    tokens: tuple[NamedToken, ...]


@operation("pair.list", "GET /api/pairings", OPERATE, usage=("talaria pair list",))
async def list_pairings(records: Records, call: OperationCall, wanted: Nothing) -> PairingList:
    """List the people who are paired, and those who wait for it."""
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
    """Let in the person who was given this code."""
    paired = await records.pairing.approve(wanted.code)
    call.about = f"{paired.person.channel}:{paired.person.user_id}"
    return paired


@operation("pair.revoke", "POST /api/pairings/revoke", OPERATE, audit="pair.revoke", errors=("not_found",))
async def revoke_pairing(records: Records, call: OperationCall, wanted: RevokeBody) -> Paired:
    """End a pairing."""
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
    """Make a code that lets in the first person who sends it, without approval."""
    call.about = wanted.channel
    return await records.pairing.invite(wanted.channel)


@operation("token.list", "GET /api/tokens", OPERATE, usage=("talaria token list",))
async def list_tokens(records: Records, call: OperationCall, wanted: Nothing) -> TokenList:
    """List the tokens, without their secrets. The time of their last use is exact to the hour."""
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
    """Make a token, which is shown once. Only its hash is kept."""
    # A login cannot make one: the token would outlive the login. A named token cannot make one that
    # operates: it would outlive a revocation.
    if call.caller.credential is Credential.LOGIN:
        raise Refused(
            "token_needed",
            "A login from a browser cannot make a token.",
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
    """End a token, from its next call on."""
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


ACCESS_OPERATIONS: Final = (
    list_pairings,
    approve_pairing,
    revoke_pairing,
    invite_person,
    list_tokens,
    add_token,
    revoke_token,
)
