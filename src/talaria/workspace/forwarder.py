"""A program of its own: keeps the network namespace of a session, and leads out of it to the gateway's proxy.

    python -I -S -c TEXT LOCK READY PORT SOCKET PORT SOCKET

It listens on loopback and connects each client to a Unix socket, which it looks up anew for each connection:
the gateway may have been started again meanwhile. It ends when nobody holds a lock on the file LOCK any more,
neither a command in the namespace nor the gateway. READY is told when it listens. It imports nothing of the
package, and little else, because it lives as long as the session uses it.
"""

from __future__ import annotations

import _socket
import errno
import fcntl
import os
import select
import sys

_PIECE = 64 << 10
_MOST = 128  # connections at a time; others wait in the kernel
_TICK = 1.0  # seconds between looks at the lock
_LOOPBACK = "127.0.0.1"
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT
_NOTHING = -1  # no mask
_AWAY = b"Talaria's gateway does not run at the moment, so nothing can be reached.\n"
_REFUSAL = (
    b"HTTP/1.1 503 Talaria is not running\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_AWAY), _AWAY)
)


class End:
    """A side of a connection. `waiting` are bytes for it that it has not taken yet; `is_read` says that it
    has sent all it will send."""

    __slots__ = ("is_read", "is_shut", "mask", "peer", "sock", "waiting")

    def __init__(self, sock: _socket.socket) -> None:
        self.sock = sock
        self.peer = self
        self.waiting = b""
        self.is_read = False
        self.is_shut = False
        self.mask = 0


class Forwarder:
    def __init__(self, lock: int, doors: dict[int, str]) -> None:
        self._lock = lock
        self._poll = select.epoll()
        self._ends: dict[int, End] = {}
        self._listeners: dict[int, tuple[_socket.socket, str]] = {}
        self._is_full = False
        for port, path in doors.items():
            sock = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
            sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
            sock.bind((_LOOPBACK, port))
            sock.listen(_MOST)
            sock.setblocking(False)
            self._listeners[sock.fileno()] = (sock, path)
            self._poll.register(sock.fileno(), _READ)

    def run(self) -> None:
        """Forward until nobody uses the namespace."""
        while True:
            events = self._poll.poll(_TICK)
            if not events and self._is_unused():
                return
            for fd, what in events:
                if fd in self._listeners:
                    self._accept(*self._listeners[fd])
                elif fd in self._ends:
                    self._move(self._ends[fd], what)

    def _is_unused(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _accept(self, listener: _socket.socket, path: str) -> None:
        try:
            fd, _ = listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return
        client = _socket.socket(fileno=fd)
        client.setblocking(False)
        host = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        host.setblocking(False)
        try:
            host.connect(path)
        except OSError:
            host.close()
            try:
                client.send(_REFUSAL)
                client.shutdown(_socket.SHUT_WR)
            except OSError:
                pass
            client.close()
            return
        one, other = End(client), End(host)
        one.peer, other.peer = other, one
        for end in (one, other):
            self._ends[end.sock.fileno()] = end
            end.mask = _READ
            self._poll.register(end.sock.fileno(), _READ)
        self._pause()

    def _pause(self) -> None:
        """Take no more clients while there are too many."""
        is_full = len(self._ends) >= 2 * _MOST
        if is_full != self._is_full:
            self._is_full = is_full
            for fd in self._listeners:
                self._poll.modify(fd, 0 if is_full else _READ)

    def _move(self, end: End, what: int) -> None:
        try:
            if what & _WRITE or end.waiting:
                self._flush(end)
            if what & ~_WRITE and not end.is_read and not end.peer.waiting:
                self._read(end)
            is_over = end.is_read and end.peer.is_read and not end.waiting and not end.peer.waiting
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR):
                return
            is_over = True
        if is_over or what & select.EPOLLERR:
            self._close(end)
            return
        for each in (end, end.peer):
            mask = (_WRITE if each.waiting else 0) | (0 if each.is_read or each.peer.waiting else _READ)
            self._watch(each, _NOTHING if not mask and each.peer.waiting else mask)
        if end.is_read and what & select.EPOLLHUP and not end.peer.waiting:
            self._close(end)

    def _watch(self, end: End, mask: int) -> None:
        """Hear of these events of a side. The end of a connection is heard of with any mask, and again and
        again, so a side that has to wait for the other one is not asked at all."""
        if mask == end.mask:
            return
        if mask == _NOTHING:
            self._poll.unregister(end.sock.fileno())
        elif end.mask == _NOTHING:
            self._poll.register(end.sock.fileno(), mask)
        else:
            self._poll.modify(end.sock.fileno(), mask)
        end.mask = mask

    def _read(self, end: End) -> None:
        data = end.sock.recv(_PIECE)
        end.is_read = not data
        end.peer.waiting = data
        self._flush(end.peer)

    def _flush(self, end: End) -> None:
        if end.waiting:
            try:
                end.waiting = end.waiting[end.sock.send(end.waiting) :]
            except BlockingIOError:
                return
        if end.peer.is_read and not end.waiting and not end.is_shut:
            end.is_shut = True
            end.sock.shutdown(_socket.SHUT_WR)

    def _close(self, end: End) -> None:
        for each in (end, end.peer):
            if self._ends.pop(each.sock.fileno(), None) is not None:
                self._watch(each, _NOTHING)
            each.sock.close()
        self._pause()


def main(lock: str, ready: str, *doors: str) -> None:
    pairs = dict(zip(map(int, doors[::2]), doors[1::2], strict=True))
    forwarder = Forwarder(int(lock), pairs)
    os.write(int(ready), b"ready")
    os.close(int(ready))
    forwarder.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
