"""A proxy before PostgreSQL that loses connections at chosen points."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from threading import Thread
from urllib.parse import urlsplit


class Cut(Enum):
    """What happens to the next bytes that a client sends."""

    BEFORE = auto()  # they are lost, and the connection with them
    AFTER = auto()  # they arrive, and the answer is lost
    LATE = auto()  # the connection is lost, and they arrive when `release` is called
    POOLER = auto()  # they arrive, and the client gets an error as from a pooler that lost the server


_PROCESS, _OTHER_PROCESS = b"K\0\0\0\x0c\0", b"K\0\0\0\x0c\x01"  # the message with its number
_FIELDS = b"SFATAL\0VFATAL\0C58000\0Merror receiving data from server\0\0"
_LOST = b"E" + (len(_FIELDS) + 4).to_bytes(4) + _FIELDS + b"Z\0\0\0\5I"  # as of pgcat, which serves on


class CuttingProxy:
    """`cut` is for the next bytes of any client. While `is_gone`, new connections are refused. If it
    `is_pooler`, clients get other numbers for the server's processes, as poolers give them. While it
    `is_frozen`, clients can connect, and their statements get no answer."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: set[socket.socket] = set()
        self._held: list[tuple[bytes, socket.socket]] = []
        self._threads = [Thread(target=self._accept, daemon=True)]
        self.port = int(self._listener.getsockname()[1])
        self.cut: Cut | None = None
        self.is_gone = False
        self.is_pooler = False
        self.is_frozen = False
        self.refused = 0
        self._threads[0].start()

    def lose(self) -> None:
        """Cut all connections, and refuse new ones from now on."""
        self.is_gone = True
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Let held bytes arrive, and wait until the server has answered them and left."""
        for data, server in self._held:
            server.sendall(data)
            server.shutdown(socket.SHUT_WR)
            with suppress(OSError):
                while server.recv(1 << 16):
                    pass
            server.close()
        self._held.clear()

    def close(self) -> None:
        self.lose()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()
        for _, server in self._held:
            server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.is_gone:
                    self.refused += 1
                    client.close()
                    continue
                thread = Thread(target=self._serve, args=(client,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target)
        except OSError:  # the server itself is gone
            client.close()
            return
        both = {client, server}
        self._sockets |= both
        is_held = False
        with suppress(OSError):
            is_held = self._pass_on(client, server)
        self._sockets -= both
        client.close()
        if not is_held:
            server.close()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> bool:
        """Return True if the bytes of a client are held for its server."""
        while True:
            ready, _, _ = select.select([client, server], [], [])
            if server in ready:
                data = server.recv(1 << 16)
                if not data:
                    return False
                client.sendall(data.replace(_PROCESS, _OTHER_PROCESS) if self.is_pooler else data)
            if client not in ready:
                continue
            data = client.recv(1 << 16)
            if self.is_frozen and data[:1] in (b"P", b"Q"):
                continue
            cut, self.cut = self.cut, None
            if not data or cut is Cut.BEFORE:
                return False
            if cut is Cut.LATE:
                self._held.append((data, server))
                return True
            server.sendall(data)
            if cut in (Cut.AFTER, Cut.POOLER):
                server.recv(1 << 16)
                if cut is Cut.POOLER:
                    client.sendall(_LOST)
                return False


@contextmanager
def cutting_proxy(url: str) -> Iterator[tuple[CuttingProxy, str]]:
    """Run a proxy before the server of this URL. Gives it and the URL through it."""
    port = urlsplit(url).port
    assert port is not None
    proxy = CuttingProxy(port)
    try:
        yield proxy, url.replace(f":{port}/", f":{proxy.port}/")
    finally:
        proxy.close()
