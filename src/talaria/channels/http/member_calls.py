"""Calls by other members of the cluster: who may make them, and the signatures on their answers."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Sequence

from talaria.access.callers import ApiCaller, Credential
from talaria.channels.http.request import HttpError, Message, Request, Send
from talaria.cluster.passed_events import ROLE_HEADER
from talaria.cluster.signing import (
    MAC_HEADER,
    SIGNED_FROM,
    AnswerSigner,
    BadSignature,
    CallVerifier,
    ClusterKey,
)
from talaria.core.access import Role
from talaria.core.cluster import Member
from talaria.core.errors import BadRequest
from talaria.core.ids import OwnerId
from talaria.core.turns import Sender


class MemberCalls:
    """Finds the caller of a call by another gateway.

    A gateway of an older version sends the cluster token itself. That is accepted while a gateway that cannot
    sign its calls is alive, and its answers are not signed.
    """

    def __init__(
        self,
        token: str,
        own: OwnerId,
        now: Callable[[], float],
        members: Callable[[], Awaitable[Sequence[Member]]],
    ) -> None:
        self._token = token.encode()
        self._key = ClusterKey(token)
        self._verifier = CallVerifier(self._key, own, now)
        self._now = now
        self._members = members

    async def find(self, request: Request, authorization: bytes) -> ApiCaller:
        """Return the caller for whom the gateway calls. From now on the request's body is compared with its
        signature, and its answer is signed. Raises `HttpError` (401) and `BadRequest`."""
        given = request.header(ROLE_HEADER.encode()) or ""
        query: bytes = request.scope["query_string"]
        target = request.scope["raw_path"] + (b"?" + query if query else b"")
        try:
            if authorization[:7].lower() == b"bearer ":
                await self._check_older(authorization[7:].strip())
            else:
                credential, path = authorization.decode("latin-1"), target.decode("latin-1")
                call = self._verifier.verify(credential, request.method, path, given)
                request.signed_digest = bytes.fromhex(call.digest)
                request.send = _signing(request.send, AnswerSigner(self._key, call.nonce))
        except BadSignature as error:
            raise HttpError(
                "unauthorized",
                f"Only gateways of the same cluster may call this, and {error}.",
                "Give all gateways the same token, in the variable that cluster.token_env names.",
                ((b"www-authenticate", b"Bearer"),),
            ) from None
        try:
            role = Role(given)
        except ValueError:
            roles = ", ".join(Role)
            text = "The role of the caller for whom the gateway calls is missing, or is none."
            raise BadRequest(text, f"Send it in the header {ROLE_HEADER}: {roles}.") from None
        return ApiCaller(Credential.MEMBER, "", role, Sender("member", "Member"))

    async def _check_older(self, given: bytes) -> None:
        if not hmac.compare_digest(given, self._token):
            raise BadSignature("the token is not theirs")
        living = [member for member in await self._members() if member.is_alive(self._now())]
        if not any(member.schema < SIGNED_FROM for member in living):
            raise BadSignature("no gateway of an older version, which would send the token, is alive")


def _signing(send: Send, signer: AnswerSigner) -> Send:
    """Return `send` for an answer whose head and pieces are signed."""
    has_body = True

    async def send_signed(message: Message) -> None:
        nonlocal has_body
        if message["type"] == "http.response.start":
            has_body = message["status"] not in (204, 304)
            headers = [header for header in message["headers"] if header[0] != b"content-length"]
            texts = [
                (name.decode("latin-1"), value.decode("utf-8", "surrogateescape")) for name, value in headers
            ]
            mac = signer.head(message["status"], texts)
            message = {**message, "headers": [*headers, (MAC_HEADER.encode(), mac.encode())]}
        elif message["type"] == "http.response.body" and has_body:
            is_last = not message.get("more_body", False)
            message = {**message, "body": signer.piece(bytes(message.get("body", b"")), is_last=is_last)}
        await send(message)

    return send_signed
