"""Requests to the proxy: a strict reader of their head, and of a body that is sent in chunks.

The head that goes on to the host is written anew from the parts that were understood, so the proxy and the
host cannot read it differently. A connection carries one request.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import httptools

from talaria.net.addresses import AddressRefused, parse_host

_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([\x21-\x7e]{1,16384}) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
_URL = re.compile(r"http://([^/?#@\\]+)([/?][^#\\]*)?", re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?")
_MAX_HEADERS = 200
# Headers between two neighbours; and those that the proxy writes itself.
_DROPPED = {
    b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate", b"te",
    b"trailer", b"upgrade", b"http2-settings", b"host",
}  # fmt: skip


class BadProxyRequest(Exception):
    """A request that the proxy does not take. The text says why."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """A request to reach a host. `host` is as `parse_host` returns it.

    A tunnel has no head. Any other request goes on with `head`, and a body of `length` bytes, or one in
    chunks if that is None.
    """

    host: str
    port: int
    is_tunnel: bool
    head: bytes = b""
    length: int | None = 0


def read_request(head: bytes) -> ProxyRequest:
    """Read a head that ends with an empty line. Raises `BadProxyRequest`, and `AddressRefused` for a host."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    found = _LINE.fullmatch(first)
    if found is None:
        raise BadProxyRequest("This is a proxy for HTTP/1.1, and the request's first line is none of it.")
    method, target, minor = found[1], found[2].decode(), found[3]
    headers = _read_headers(lines)
    if method == b"CONNECT":
        host, port = _read_authority(target, None)
        if any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in headers):
            raise BadProxyRequest("A CONNECT has no body.")
        return ProxyRequest(host, port, is_tunnel=True)
    url = _URL.fullmatch(target)
    if url is None:
        text = "This is a proxy: a request names a whole http:// URL. For any other scheme it takes CONNECT."
        raise BadProxyRequest(text)
    host, port = _read_authority(url[1], 80)
    path = url[2] or "/"
    path = path if path.startswith("/") else f"/{path}"
    length = _read_length(headers, minor)
    dropped = _dropped(headers)
    kept = [b"%s: %s" % header for header in headers if header[0].lower() not in dropped]
    name = f"[{host}]" if ":" in host else host
    written = [
        b"%s %s HTTP/1.%s" % (method, path.encode(), minor),
        f"Host: {name}{'' if port == 80 else f':{port}'}".encode(),
        *kept,
        b"Connection: close",
    ]
    return ProxyRequest(host, port, False, b"\r\n".join(written) + b"\r\n\r\n", length)


def _read_headers(lines: list[bytes]) -> list[tuple[bytes, bytes]]:
    if len(lines) > _MAX_HEADERS:
        raise BadProxyRequest(f"A request has at most {_MAX_HEADERS} headers.", 431)
    headers = []
    for line in lines:
        found = _HEADER.fullmatch(line)
        if found is None:
            raise BadProxyRequest("A header of the request is malformed.")
        headers.append((found[1], found[2]))
    return headers


def _dropped(headers: list[tuple[bytes, bytes]]) -> set[bytes]:
    """Return the names of headers that do not go on. `Connection` may name more, but not the framing's."""
    named = {
        word.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for word in value.split(b",")
    }
    return _DROPPED | named - {b"content-length", b"transfer-encoding"}


def _read_length(headers: list[tuple[bytes, bytes]], minor: bytes) -> int | None:
    """Return the length of the body; None for chunks. Two ways to read it are an error."""
    lengths = [value for name, value in headers if name.lower() == b"content-length"]
    codings = [value.lower() for name, value in headers if name.lower() == b"transfer-encoding"]
    if len(lengths) + len(codings) > 1:
        raise BadProxyRequest("The request tells the length of its body more than once.")
    if codings:
        if codings != [b"chunked"] or minor != b"1":
            raise BadProxyRequest(
                "A body is sent as it is, or chunked by HTTP/1.1, and in no other way.", 501
            )
        return None
    if lengths and not re.fullmatch(rb"[0-9]{1,15}", lengths[0]):
        raise BadProxyRequest("The length of the body is not a number.")
    return int(lengths[0]) if lengths else 0


def _read_authority(text: str, usual_port: int | None) -> tuple[str, int]:
    found = _AUTHORITY.fullmatch(text)
    if found is None or (found[2] is None and usual_port is None):
        raise BadProxyRequest("The request names no host and port.")
    port = int(found[2]) if found[2] is not None else usual_port or 0
    if not 0 < port < 65536:
        raise BadProxyRequest("A port is a number from 1 to 65535.")
    return str(parse_host(found[1])), port


class ChunkedBody:
    """Reads a body in chunks, and writes it anew. Bytes behind its end are dropped."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        self._written: list[bytes] = []
        self._is_complete = False

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that go on. Raises `BadProxyRequest`."""
        self._written = []
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._is_complete:
                raise BadProxyRequest("The chunks of the body are malformed.") from error
        return b"".join(self._written)

    @property
    def is_complete(self) -> bool:
        return self._is_complete

    def on_body(self, body: bytes) -> None:
        if not self._is_complete and body:
            self._written.append(b"%x\r\n%s\r\n" % (len(body), body))

    def on_message_complete(self) -> None:
        if not self._is_complete:
            self._is_complete = True
            self._written.append(b"0\r\n\r\n")


def read_response_head(head: bytes) -> tuple[int, bytes]:
    """Return the status of a response and its head without headers for neighbours. Raises `ValueError`."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    found = re.fullmatch(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?", first)
    if found is None:
        raise ValueError("not a response of HTTP")
    hop = (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"upgrade")
    kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in hop]
    status = int(found[1])
    closing = [] if status < 200 else [b"Connection: close"]
    return status, b"\r\n".join([first, *kept, *closing]) + b"\r\n\r\n"


# -- the begin of a TLS connection: the name of the host that a client asks for ---------------------------


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
