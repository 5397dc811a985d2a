"""The contract of `store.store.OAuthGrants`. A test class gives `grants` and `clock`."""

from __future__ import annotations

import asyncio

from talaria.core.access import OAuthClient, OAuthGrant, OAuthTokens
from talaria.store.store import OAuthGrants
from talaria.testing.clock import FakeClock

CLIENT = OAuthClient("https://as.example/token", "id", "secret", resource="https://mcp.example/")


class OAuthSuite:
    async def test_a_login_is_kept_until_it_is_forgotten(self, grants: OAuthGrants, clock: FakeClock) -> None:
        assert await grants.find("mcp:one") is None
        await grants.save("mcp:one", CLIENT, OAuthTokens("a1", "r1", 60))
        kept = OAuthGrant("mcp:one", CLIENT, "a1", "r1", clock.now() + 60)
        assert await grants.find("mcp:one") == kept
        await grants.forget("mcp:one")
        assert await grants.find("mcp:one") is None

    async def test_of_many_one_renews_and_a_lost_right_writes_nothing(
        self, grants: OAuthGrants, clock: FakeClock
    ) -> None:
        await grants.save("mcp:one", CLIENT, OAuthTokens("a1", "r1", 60))
        claims = await asyncio.gather(*(grants.claim("mcp:one", "a1", 30) for _ in range(5)))
        (first,) = filter(None, claims)
        clock.advance(30)
        second = await grants.claim("mcp:one", "a1", 30)
        assert second is not None
        assert second.fence > first.fence
        assert not await grants.renew(first, OAuthTokens("late", "late"))
        assert await grants.renew(second, OAuthTokens("a2", "", 90))
        found = await grants.find("mcp:one")
        assert found is not None
        assert (found.access, found.refresh, found.expires_at) == ("a2", "r1", clock.now() + 90)
        assert await grants.claim("mcp:one", "a1", 30) is None, "it was renewed already"

    async def test_a_login_that_is_over_is_renewed_by_a_login_only(self, grants: OAuthGrants) -> None:
        await grants.save("mcp:one", CLIENT, OAuthTokens("a1", "r1"))
        claimed = await grants.claim("mcp:one", "a1", 30)
        assert claimed is not None
        await grants.give_up(claimed, "revoked")
        assert await grants.claim("mcp:one", "a1", 30) is None
        await grants.save("mcp:one", CLIENT, OAuthTokens("a2", "r2"))
        assert not await grants.renew(claimed, OAuthTokens("stale"))
        found = await grants.find("mcp:one")
        assert found is not None
        assert (found.access, found.problem) == ("a2", "")

    async def test_a_late_renewal_of_a_forgotten_login_writes_nothing(self, grants: OAuthGrants) -> None:
        await grants.save("mcp:one", CLIENT, OAuthTokens("a1", "r1"))
        late = await grants.claim("mcp:one", "a1", 30)
        assert late is not None
        await grants.forget("mcp:one")
        await grants.save("mcp:one", CLIENT, OAuthTokens("b1", "s1"))
        renewing = await grants.claim("mcp:one", "b1", 30)
        assert renewing is not None
        assert renewing.fence == late.fence
        assert not await grants.renew(late, OAuthTokens("a2", "r2"))
        await grants.give_up(late, "revoked")
        found = await grants.find("mcp:one")
        assert found is not None
        assert (found.access, found.problem) == ("b1", "")
