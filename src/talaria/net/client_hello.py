"""The begin of a TLS connection: the name of the host that a client asks for."""

from __future__ import annotations

from talaria.net.addresses import AddressRefused, parse_host

_MAX_HELLO = 16 << 10
_MAX_RECORDS = 16  # all records are read again with each piece that comes
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME = 22, 1, 0


class HelloReader:
    """Collects the first message of a client. `data` has all bytes so far, `name` the host that it names.

    Reading ends when the message is complete, or cannot be one.
    """

    def __init__(self) -> None:
        self.data = b""
        self.name = ""
        self.is_complete = False
        self.is_tls = False

    def feed(self, data: bytes) -> None:
        self.data += data
        message = self._message()
        if message is not None:
            self.is_complete = True
            try:
                self.name = _find_name(message)
                self.is_tls = True
            except (IndexError, ValueError):
                self.is_tls = False

    @property
    def begins_as_tls(self) -> bool:
        """Whether the first byte is that of a TLS handshake."""
        return self.data[:1] == bytes((_HANDSHAKE,))

    def names(self, host: str) -> bool:
        """Whether this is the begin of TLS to `host`, a name or an address as `parse_host` returns it. For an
        address a client sends no name."""
        if not self.is_complete or not self.is_tls:
            return False
        try:
            return str(parse_host(self.name)) == host if self.name else not isinstance(parse_host(host), str)
        except AddressRefused:
            return False

    def _message(self) -> bytes | None:
        """Return the message out of its records, empty if it is none of TLS; None if more is to come."""
        message, at, records = b"", 0, 0
        while at + 5 <= len(self.data):
            records += 1
            size = int.from_bytes(self.data[at + 3 : at + 5])
            if self.data[at] != _HANDSHAKE or self.data[at + 1] != 3 or not 0 < size <= _MAX_HELLO:
                return b""
            if records > _MAX_RECORDS:
                return b""
            message += self.data[at + 5 : at + 5 + size]
            at += 5 + size
            if len(message) >= 4:
                whole = 4 + int.from_bytes(message[1:4])
                if message[0] != _CLIENT_HELLO or whole > _MAX_HELLO:
                    return b""
                if len(message) >= whole:
                    return message[:whole]
        is_other = bool(self.data) and self.data[0] != _HANDSHAKE
        return b"" if is_other or len(self.data) > 2 * _MAX_HELLO else None


def _find_name(message: bytes) -> str:
    """Return the name in a complete message, empty if it has none. Raises `ValueError` or `IndexError`."""
    at = 4 + 2 + 32
    at += 1 + message[at]  # the session
    at += 2 + _number(message, at)  # ciphers
    at += 1 + message[at]  # compressions
    if at == len(message):
        return ""
    end = at + 2 + _number(message, at)
    at += 2
    if end != len(message):
        raise ValueError("wrong length")
    name = ""
    while at < end:
        kind, size = _number(message, at), _number(message, at + 2)
        body = message[at + 4 : at + 4 + size]
        if len(body) != size:
            raise ValueError("wrong length")
        at += 4 + size
        if kind == _SERVER_NAME:
            length = _number(body, 3)
            if body[2] != 0 or _number(body, 0) != length + 3 or len(body) != length + 5:
                raise ValueError("not one name")
            if name:
                raise ValueError("two names")
            name = body[5:].decode("ascii")
    return name


def _number(data: bytes, at: int) -> int:
    if at + 2 > len(data):
        raise ValueError("too short")
    return data[at] << 8 | data[at + 1]
