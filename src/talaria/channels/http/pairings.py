"""`/api/pairings`: what the operator does about people who come in by chat platforms."""

from __future__ import annotations

from typing import Final

import msgspec

from talaria.access.pairing import PairingAdmin
from talaria.channels.http.answers import Reply, json_answer
from talaria.channels.http.calls import Call
from talaria.channels.http.parts import HttpParts

_LARGEST: Final = 4096


class _Approval(msgspec.Struct):
    code: str


class _Revocation(msgspec.Struct):
    channel: str
    user: str


class _Invited(msgspec.Struct):
    channel: str


_APPROVAL = msgspec.json.Decoder(_Approval)
_REVOCATION = msgspec.json.Decoder(_Revocation)
_INVITED = msgspec.json.Decoder(_Invited)


class PairingRoutes:
    def __init__(self, parts: HttpParts) -> None:
        self._desk = PairingAdmin(parts.pairings)

    async def list(self, call: Call) -> Reply:
        return json_answer(await self._desk.listing())

    async def approve(self, call: Call) -> Reply:
        body = await call.json(_APPROVAL, _LARGEST)
        return json_answer(await self._desk.approve(body.code))

    async def revoke(self, call: Call) -> Reply:
        body = await call.json(_REVOCATION, _LARGEST)
        return json_answer(await self._desk.revoke(body.channel, body.user))

    async def invite(self, call: Call) -> Reply:
        body = await call.json(_INVITED, _LARGEST)
        return json_answer(await self._desk.invite(body.channel))
