"""The table of all connections of the HTTP server: how many there may be, and what they may hold.

A client is a *stranger* until a request on its connection has passed the guard. Anybody can open connections,
so a stranger's connection is the first that makes room for another, and nothing waits for a stranger long.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from typing import TYPE_CHECKING, Final

from talaria.core.errors import Overloaded
from talaria.core.limits import Limits

if TYPE_CHECKING:
    from talaria.channels.http.protocol import ClientConnection

_log = logging.getLogger("talaria.http")
_FEW: Final = 8  # connections of one address that may use the last twentieth of the room
_SWEEP_SECONDS: Final = 1.0
_TELL_SECONDS: Final = 60.0
_MAX_TOLD: Final = 1000  # addresses that are counted for one line in the log


class _Address:
    """The connections of one address. Strangers are in order, the oldest first."""

    def __init__(self) -> None:
        self.count = 0
        self.strangers: dict[ClientConnection, None] = {}
        self.known: set[ClientConnection] = set()

    def oldest(self, *, with_idle: bool) -> ClientConnection | None:
        if self.strangers:
            return next(iter(self.strangers))
        if not with_idle:
            return None
        idle = [(connection.idle_since, id(connection), connection) for connection in self.known]
        return min((each for each in idle if each[0]), default=(0.0, 0, None))[2]


class ClientConnections:
    """All connections of a server. `room` is the number for which the system has descriptors.

    Over a limit the connection of the stranger that came first is closed, then the one that has been idle
    for the longest time. A new connection is refused only if all others are in use.
    """

    def __init__(self, limits: Limits, room: int = sys.maxsize) -> None:
        self.limits = limits
        self._room = room
        self._open: set[ClientConnection] = set()
        self._addresses: dict[str, _Address] = {}
        self._readers: dict[
            ClientConnection, None
        ] = {}  # have a large response; the longest without progress first
        self._held_bytes = 0
        self._noted: dict[str, Counter[str]] = {}
        self._told_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        limits.watch("connections", lambda: len(self._open))
        limits.watch("connections_per_address", self._most_of_an_address)
        limits.watch("client_memory", lambda: self._held_bytes)

    @property
    def most(self) -> int:
        """How many connections there may be."""
        return min(self.limits.now.connections, self._room)

    def _most_of_an_address(self) -> int:
        return max((address.count for address in self._addresses.values()), default=0)

    # -- coming and going -----------------------------------------------------------------------------------

    def admit(self, connection: ClientConnection) -> str | None:
        """Let a connection in, closing another if need be. Return a hint if the connection is refused."""
        address = self._addresses.get(connection.address) or _Address()
        now, key = self.limits.now, ""
        if address.count >= now.connections_per_address:
            key = "connections_per_address"
            victim = address.oldest(with_idle=True)
        elif len(self._open) >= (self.most if address.count < _FEW else self.most - self.most // 20):
            key = "connections"
            victim = self._find_victim()
        if key:
            hint = self.limits.refuse(key)
            self.note(f"came over limits.{key}", connection.address)
            if victim is None:
                return hint
            victim.cut()
        self._open.add(connection)
        address.count += 1
        address.strangers[connection] = None
        self._addresses[connection.address] = address
        return None

    def _find_victim(self) -> ClientConnection | None:
        """Return a connection of the address that has the most of them."""
        for with_idle in (False, True):
            found: _Address | None = None
            for address in self._addresses.values():
                if (found is None or address.count > found.count) and address.oldest(with_idle=with_idle):
                    found = address
            if found is not None:
                return found.oldest(with_idle=with_idle)
        return None

    def remove(self, connection: ClientConnection) -> None:
        """The connection is closed or about to be. No effect on one that is not in the table."""
        if connection not in self._open:
            return
        self._open.remove(connection)
        self.release(connection, connection.held_bytes)
        address = self._addresses[connection.address]
        address.count -= 1
        address.strangers.pop(connection, None)
        address.known.discard(connection)
        if not address.count:
            del self._addresses[connection.address]

    def note_trusted(self, connection: ClientConnection) -> None:
        """The client is no stranger any more."""
        if connection in self._open:
            address = self._addresses[connection.address]
            address.strangers.pop(connection, None)
            address.known.add(connection)

    # -- memory ---------------------------------------------------------------------------------------------

    def hold_body(self, connection: ClientConnection, size: int) -> None:
        """Count bytes of a request's body until `release`. Raises `Overloaded` if there is no room for them,
        even without the clients that do not read."""
        self._hold(connection, size)
        if self._held_bytes > self.limits.now.client_memory:
            self._cut_readers(connection)
        if self._held_bytes > self.limits.now.client_memory:
            hint = self.limits.refuse("client_memory")
            raise Overloaded("Too many large requests are being handled.", hint, retry_after=5.0)

    def hold_response(self, connection: ClientConnection, size: int) -> None:
        """Count bytes of a response until `release`. The clients that read least may be cut to make room,
        at last this one."""
        self._hold(connection, size)
        self._readers[connection] = None
        if self._held_bytes > self.limits.now.client_memory:
            self._cut_readers(connection)

    def note_read(self, connection: ClientConnection) -> None:
        """The client has read a piece of a large response."""
        if connection in self._readers:
            self._readers[connection] = self._readers.pop(connection)

    def release(self, connection: ClientConnection, size: int) -> None:
        """Count no longer so many of the bytes that are held for a client, or all that are left."""
        size = min(size, connection.held_bytes)
        self._held_bytes -= size
        connection.held_bytes -= size
        if not connection.held_bytes:
            self._readers.pop(connection, None)

    def _hold(self, connection: ClientConnection, size: int) -> None:
        if connection in self._open:
            connection.held_bytes += size
            self._held_bytes += size

    def _cut_readers(self, last: ClientConnection) -> None:
        for reader in [*(reader for reader in self._readers if reader is not last), last]:
            if self._held_bytes <= self.limits.now.client_memory:
                return
            if reader in self._readers:
                self.limits.refuse("client_memory")
                self.note("did not read their response", reader.address)
                reader.cut()

    # -- time -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Look at all connections from now on, about once a second."""
        loop = asyncio.get_running_loop()
        now = self.limits.now
        shortest = min(now.request_head, now.slow_reader).total_seconds()
        self._timer = loop.call_later(min(_SWEEP_SECONDS, max(0.02, shortest / 4)), self._sweep)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._tell()

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in list(self._open):
            connection.check(now)
        if now - self._told_at >= _TELL_SECONDS:
            self._tell()
        self.start()

    # -- the log --------------------------------------------------------------------------------------------

    def note(self, what: str, address: str) -> None:
        """Count a bad connection. The log gets one line a minute for all of them."""
        counts = self._noted.setdefault(what, Counter())
        counts[address if address in counts or len(counts) < _MAX_TOLD else "others"] += 1

    def _tell(self) -> None:
        if not self._noted:
            return
        self._told_at = asyncio.get_running_loop().time()
        for what, counts in self._noted.items():
            address, most = counts.most_common(1)[0]
            _log.warning("%d connections %s (%d of them from %s)", counts.total(), what, most, address)
        self._noted.clear()
