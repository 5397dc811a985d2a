"""`SessionTrust` of a session that a test describes."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from talaria.tools.tool import SessionTrust


@dataclass(slots=True)
class FakeTrust(SessionTrust):
    """`may_open` are the addresses that need no approval, `grants` the digests that a person granted.
    `sources` are those of `taint_folder`."""

    is_tainted_now: bool = False
    addresses: Container[str] = ()
    grants: Container[str] = ()
    sources: list[str] = field(default_factory=list)

    async def is_tainted(self) -> bool:
        return self.is_tainted_now

    async def may_open(self, url: str, call_id: str) -> bool:
        return url in self.addresses

    async def is_granted(self, digest: str) -> bool:
        return digest in self.grants

    async def is_folder_tainted(self) -> bool:
        return bool(self.sources)

    async def taint_folder(self, source: str) -> None:
        self.sources.append(source)
