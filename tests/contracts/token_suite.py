"""The contract of `store.store.Tokens`. A test class gives `tokens` and `clock`."""

from __future__ import annotations

import asyncio

from talaria.core.access import AddToken, NamedToken, Role, TokenHash
from talaria.store.store import Tokens
from talaria.testing.clock import FakeClock

HASH, OTHER = TokenHash("hash of a token"), TokenHash("hash of another")


class TokenSuite:
    async def test_a_token_is_found_by_its_hash_until_it_is_revoked(
        self, tokens: Tokens, clock: FakeClock
    ) -> None:
        added = await tokens.add(AddToken("phone", Role.CHAT, HASH))
        assert added == NamedToken("phone", Role.CHAT, clock.now())
        assert await tokens.find(HASH) == added
        assert await tokens.find(OTHER) is None
        assert await tokens.revoke("phone") == added
        assert await tokens.find(HASH) is None
        assert await tokens.revoke("phone") is None
        assert await tokens.listing() == ()

    async def test_a_name_is_given_once_until_its_token_has_expired(
        self, tokens: Tokens, clock: FakeClock
    ) -> None:
        first = await tokens.add(AddToken("phone", Role.CHAT, HASH, 60))
        assert first == NamedToken("phone", Role.CHAT, clock.now(), clock.now() + 60)
        clock.advance(59)
        assert await tokens.add(AddToken("phone", Role.OPERATE, OTHER)) is None
        assert await tokens.find(HASH) == first, "and nothing has changed"
        clock.advance(1)
        assert await tokens.find(HASH) == first, "an expired token is found: its caller is told so"
        assert first.has_expired(clock.now())
        second = await tokens.add(AddToken("phone", Role.OPERATE, OTHER))
        assert second == NamedToken("phone", Role.OPERATE, clock.now())
        assert await tokens.find(HASH) is None

    async def test_of_two_that_want_a_name_one_gets_it(self, tokens: Tokens) -> None:
        orders = [AddToken("phone", Role.READ, TokenHash(f"hash {n}")) for n in range(5)]
        added = await asyncio.gather(*map(tokens.add, orders))
        assert sum(token is not None for token in added) == 1

    async def test_tokens_are_listed_oldest_first_with_their_last_use(
        self, tokens: Tokens, clock: FakeClock
    ) -> None:
        for name, role in (("b", Role.READ), ("a", Role.OPERATE)):
            await tokens.add(AddToken(name, role, TokenHash(f"hash of {name}")))
            clock.advance(1)
        await tokens.note_use("a")
        await tokens.note_use("nobody's")
        used = [(token.name, token.role, token.used_at) for token in await tokens.listing()]
        assert used == [("b", Role.READ, None), ("a", Role.OPERATE, clock.now())]
