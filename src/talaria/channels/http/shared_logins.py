"""Logins of browsers in a cluster: a login that one gateway made or ended counts at all of them.

All gateways have the same token of the API, from which logins are derived. The code of a link is known to the
gateway that made it, and the proxy before the gateways may bring it to another one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from talaria.access.logins import BrowserLogin, Logins, digest_of_code, is_code
from talaria.cluster.following import PeerClient, PeerUnreachable
from talaria.cluster.membership import Membership
from talaria.core.cluster import Wake
from talaria.core.errors import StoreError
from talaria.core.tasks import sleep_until_woken
from talaria.gateway import Gateway
from talaria.store.store import Store

ENDED_LOGINS: Final = "logins.ended"  # the store's cursor that keeps them
LOGIN_PATH: Final = "/cluster/login"
_LOOK_SECONDS: Final = 10.0
_log = logging.getLogger("talaria.cluster")


class MemberLogin(msgspec.Struct, frozen=True):
    """The two secrets of a login that another member made."""

    cookie: str
    secret: str


def share_logins(gateway: Gateway, logins: Logins) -> SharedLogins | None:
    """Return the logins of the gateway's cluster; None if the gateway is alone."""
    if gateway.peers is None or gateway.cluster is None:
        return None
    return SharedLogins(logins, gateway.store, gateway.peers, gateway.cluster)


class SharedLogins:
    def __init__(self, logins: Logins, store: Store, peers: PeerClient, own: Membership) -> None:
        self._logins = logins
        self._store = store
        self._peers = peers
        self._own = own
        self._asking = asyncio.Lock()  # strangers send codes too
        self._woken = asyncio.Event()
        own.on_wake(Wake.MEMBERS, self._woken.set)

    async def redeem(self, code: str) -> BrowserLogin | None:
        """Use up a code that another member made; None if there is none. Raises `StoreError`."""
        if not is_code(code):
            return None
        async with self._asking:
            now = self._store.clock.now()
            for member in await self._store.cluster.members():
                if member.owner == self._own.owner or not member.url or not member.is_alive(now):
                    continue
                try:
                    # The code itself would let whoever has a row in the table log in first.
                    body = msgspec.json.encode({"digest": digest_of_code(code).hex()})
                    async with self._peers.call(member, "POST", LOGIN_PATH, "operate", data=body):
                        return self._logins.new_login()
                except PeerUnreachable:
                    continue
        return None

    async def run(self) -> None:
        """Learn which logins were ended elsewhere, until cancelled."""
        while True:
            self._woken.clear()
            try:
                await self.learn()
            except StoreError as error:
                _log.debug("ended logins were not read: %s", error)
            await sleep_until_woken(self._store.clock, _LOOK_SECONDS, self._woken)

    async def end(self, cookie: str) -> None:
        """End the login of a cookie that is known here. Raises `StoreError`."""
        self._logins.end(cookie)
        await self.learn()
        self._own.wake(Wake.MEMBERS)

    async def learn(self) -> None:
        """Read the ended logins, and write those that are missing there: two members may have written at
        once. Raises `StoreError`."""
        kept = await self._store.cursor(ENDED_LOGINS) or ""
        self._logins.restore(kept)
        if self._logins.ended - set(kept.splitlines()):
            await self._store.set_cursor(ENDED_LOGINS, "\n".join(sorted(self._logins.ended)))
