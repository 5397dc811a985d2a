"""Pairing over HTTP: the operator's side of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.gateway import Api
from talaria.access.authorizer import Actor, Authorized, Authorizer, ChatKind, Ingress, Stranger

ANN = Actor("telegram", "1001", ChatKind.PRIVATE, "1001", "Ann")
BOB = Actor("telegram", "1002", ChatKind.PRIVATE, "1002", "Bob")
NO_CODE = "K7QD-93MX-4TZA"


@pytest.fixture
def authorizer(api: Api) -> Authorizer:
    return Authorizer(api.gateway.store.pairings, {}, api.gateway.clock)


async def ask(authorizer: Authorizer, actor: Actor) -> str:
    text = await authorizer.greet(actor)
    assert text is not None
    return text.partition("talaria pair approve ")[2].split()[0]


async def test_approve_list_and_revoke(api: Api, authorizer: Authorizer) -> None:
    code = await ask(authorizer, ANN)
    await ask(authorizer, BOB)
    paired = await api.post("/api/pairings/approve", {"code": code.lower()})
    assert paired["person"] == {"channel": "telegram", "user": "1001", "name": "Ann"}
    assert paired["origin"] == "approved"
    assert isinstance(await authorizer.check(ANN, Ingress.MESSAGE), Authorized)
    listing = await api.get("/api/pairings")
    assert listing["paired"] == [paired]
    (waiting,) = listing["requests"]
    assert waiting["person"]["user"] == "1002"
    assert waiting["expires_at"] - waiting["asked_at"] == 3600
    assert code not in str(listing)
    assert await api.post("/api/pairings/revoke", {"channel": "telegram", "user": "1001"}) == paired
    assert isinstance(await authorizer.check(ANN, Ingress.MESSAGE), Stranger)


async def test_an_invitation_made_here_lets_its_first_bearer_in(api: Api, authorizer: Authorizer) -> None:
    invitation = await api.post("/api/pairings/invite", {"channel": "telegram"})
    assert set(invitation) == {"channel", "code", "expires_at"}
    await authorizer.greet(BOB, f"/start {invitation['code']}")
    assert isinstance(await authorizer.check(BOB, Ingress.MESSAGE), Authorized)


async def test_two_who_approve_one_code_at_once_pair_one(api: Api, authorizer: Authorizer) -> None:
    code = await ask(authorizer, ANN)

    async def approve() -> int:
        body = {"code": code}
        async with api.client.post(f"{api.url}/api/pairings/approve", json=body) as response:
            return response.status

    assert sorted(await asyncio.gather(*(approve() for _ in range(4)))) == [200, 404, 404, 404]
    assert len((await api.get("/api/pairings"))["paired"]) == 1


async def test_guessing_is_refused_after_five_codes_also_for_the_right_one(
    api: Api, authorizer: Authorizer
) -> None:
    code = await ask(authorizer, ANN)
    for _ in range(5):
        await api.post("/api/pairings/approve", {"code": NO_CODE}, 404)
    refused = await api.post("/api/pairings/approve", {"code": code}, 429)
    assert refused["error"]["type"] == "too_many_tries"
    assert "Try again after" in refused["error"]["hint"]
    assert not (await api.get("/api/pairings"))["paired"]


REFUSED: list[tuple[str, Any, int, str]] = [
    ("approve", {}, 400, "`code`"),
    ("approve", {"code": 1}, 400, "field `code`"),
    ("approve", {"code": "please"}, 400, "not a pairing code"),
    ("approve", {"code": "A" * 5000}, 413, "larger than"),
    ("approve", {"code": NO_CODE}, 404, "4 more tries"),
    ("revoke", {"channel": "telegram"}, 400, "`user`"),
    ("revoke", {"channel": "telegram", "user": 5}, 400, "field `user`"),
    ("revoke", {"channel": "telegram", "user": "5"}, 404, "Nobody is paired as 5 on telegram"),
    ("invite", {"channel": "telegraph"}, 400, "no channel 'telegraph'"),
]


@pytest.mark.parametrize(("verb", "body", "status", "words"), REFUSED)
async def test_a_refusal_says_why_and_what_to_do(
    api: Api, verb: str, body: Any, status: int, words: str
) -> None:
    error = (await api.post(f"/api/pairings/{verb}", body, status))["error"]
    assert words in error["message"]
    assert error["hint"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("POST", "/approve"), ("POST", "/revoke"), ("POST", "/invite")],
)
@pytest.mark.parametrize("token", ["", "Bearer wrong", "Basic a-token-for-tests"])
async def test_without_the_token_nothing_is_told_or_done(
    api: Api, method: str, path: str, token: str
) -> None:
    url = f"{api.url}/api/pairings{path}"
    body = {"code": NO_CODE, "channel": "telegram", "user": "1"}
    async with api.client.request(method, url, json=body, headers={"Authorization": token}) as response:
        assert response.status == 401
        assert set(await response.json()) == {"error"}
