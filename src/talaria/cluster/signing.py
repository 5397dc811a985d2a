"""Signatures on calls between the gateways of a cluster, and on their answers.

The cluster token is the key and is never sent. A call carries an HMAC-SHA256 over the member that is called,
the time by the database's clock, a nonce, method, path and query, role, and the digest of the body. An answer
carries one over the call's nonce, its status and headers. Each piece of its body carries one over the nonce
and the number of the piece. docs/adr/0042-signed-cluster-calls.md says what this prevents, and what it does
not.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import struct
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from talaria.core.events import Event
from talaria.core.ids import OwnerId
from talaria.core.turns import TurnState

if TYPE_CHECKING:
    import aiohttp


# -- events of turns as members pass them on to each other: lines of JSON over HTTP -----------------------
# A stream begins with a head, which a new head replaces. An empty line keeps a silent stream alive. The
# last line of a whole stream is an end: the reader finds the turn's row in the store, so a long reply is
# not sent.


LINES: Final = b"application/x-ndjson"
KEEP_ALIVE: Final = b"\n"
MOST_BYTES: Final = 16 << 20  # of one line
ROLE_HEADER: Final = "x-talaria-role"  # the role of the caller for whom a member calls


class StreamHead(msgspec.Struct, frozen=True, tag="head"):
    """The turn beside its events. Numbers of events count within one `stream`. `model`
    (provider/name) is empty until it is known."""

    stream: str
    state: TurnState
    model: str = ""


class PassedEvent(msgspec.Struct, frozen=True, tag="event"):
    number: int
    event: msgspec.Raw

    def decode(self) -> Event | None:
        """Return the event, or None for a kind that this version does not know."""
        try:
            return _events.decode(self.event)
        except msgspec.ValidationError:
            return None


class StreamEnd(msgspec.Struct, frozen=True, tag="end"):
    """The turn is over. Its row has the result."""


StreamLine = StreamHead | PassedEvent | StreamEnd
_encode = msgspec.json.Encoder().encode
_lines: msgspec.json.Decoder[StreamLine] = msgspec.json.Decoder(StreamLine)
_events: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode_line(line: StreamHead | StreamEnd) -> bytes:
    return _encode(line) + b"\n"


def encode_event(number: int, event: Event) -> bytes:
    return b'{"type":"event","number":%d,"event":%b}\n' % (number, _encode(event))


class BrokenStream(ValueError):
    """The bytes are no stream of events."""


async def read_lines(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the whole lines of a stream, without empty ones. Raises `BrokenStream` for one that is longer
    than `MOST_BYTES`."""
    rest = bytearray()
    async for piece in pieces:
        start = len(rest)
        rest += piece
        if (end := rest.rfind(b"\n", start)) >= 0:
            lines = bytes(rest[:end])
            del rest[: end + 1]
            for line in lines.split(b"\n"):
                if line:
                    yield line
        if len(rest) > MOST_BYTES:
            raise BrokenStream(f"a line has more than {MOST_BYTES} bytes")


def decode_line(line: bytes) -> StreamLine:
    """Raises `BrokenStream`."""
    try:
        return _lines.decode(line)
    except msgspec.MsgspecError as error:
        raise BrokenStream(str(error)) from None


# -- signatures on calls between the gateways of a cluster, and on their answers --------------------------


SIGNED_FROM: Final = 24  # the schema of the first version that signs its calls
WINDOW_SECONDS: Final = 30.0  # by which the time of a call may differ from the database's
MAC_HEADER: Final = "x-talaria-mac"
_SCHEME: Final = "Talaria-HMAC-SHA256"
_CREDENTIAL = re.compile(
    _SCHEME + r" time=([0-9]{1,12}\.[0-9]{3}),nonce=([0-9a-f]{32}),body=([0-9a-f]{64}),mac=([0-9a-f]{64})"
)
_PIECE: Final = struct.Struct(">?I")  # whether it is the last one, and its length
_MAC_BYTES: Final = 32
_BODILESS: Final = (204, 304)


class BadSignature(ValueError):
    """A call that is not from a gateway of this cluster, or not for this one, or not for now."""


class ClusterKey:
    """The keys that are derived from the cluster token: one for calls, one for answers."""

    def __init__(self, token: str) -> None:
        self._calls = hmac.digest(token.encode(), b"talaria cluster call 1", "sha256")
        self._answers = hmac.digest(token.encode(), b"talaria cluster answer 1", "sha256")

    def mac_of_call(self, call: SignedCall) -> bytes:
        return _mac(self._calls, *(text.encode() for text in msgspec.structs.astuple(call)))

    def mac_of_answer(self, *fields: bytes) -> bytes:
        return _mac(self._answers, *fields)


class SignedCall(msgspec.Struct, frozen=True):
    """The parts of a call that its signature covers. `target` is path and query as sent, `digest` the SHA-256
    of the body."""

    recipient: str
    time: str
    nonce: str
    method: str
    target: str
    role: str
    digest: str

    @classmethod
    def new(
        cls, recipient: OwnerId, now: float, method: str, target: str, *, role: str, body: bytes
    ) -> SignedCall:
        digest = hashlib.sha256(body).hexdigest()
        return cls(recipient, f"{now:.3f}", secrets.token_hex(16), method, target, role, digest)

    def credential(self, key: ClusterKey) -> str:
        """Return the value of the header Authorization."""
        mac = key.mac_of_call(self).hex()
        return f"{_SCHEME} time={self.time},nonce={self.nonce},body={self.digest},mac={mac}"


class CallVerifier:
    """Verifies calls to this member. A call is accepted once.

    Nonces are kept while the time of their calls is accepted. Only nonces of calls with a right signature are
    kept, so nobody else can fill the memory. A restart forgets them, but the restarted member has another id.
    """

    def __init__(self, key: ClusterKey, recipient: OwnerId, now: Callable[[], float]) -> None:
        """`now` is the database's time."""
        self._key = key
        self._recipient = recipient
        self._now = now
        self._nonces: OrderedDict[str, float] = OrderedDict()

    def verify(self, credential: str, method: str, target: str, role: str) -> SignedCall:
        """Return the call. The caller compares the body with its digest. Raises `BadSignature`."""
        found = _CREDENTIAL.fullmatch(credential)
        if found is None:
            raise BadSignature("the call is not signed")
        call = SignedCall(self._recipient, found[1], found[2], method, target, role, found[3])
        if not hmac.compare_digest(self._key.mac_of_call(call), bytes.fromhex(found[4])):
            raise BadSignature("the call was signed with another token, or for another gateway")
        now = self._now()
        if abs(float(call.time) - now) > WINDOW_SECONDS:
            raise BadSignature(f"the call was signed {now - float(call.time):.0f} seconds ago")
        while self._nonces and next(iter(self._nonces.values())) < now - 2 * WINDOW_SECONDS:
            self._nonces.popitem(last=False)
        if call.nonce in self._nonces:
            raise BadSignature("the call was received before")
        self._nonces[call.nonce] = now
        return call


class AnswerSigner:
    """Signs the answer to one call."""

    def __init__(self, key: ClusterKey, nonce: str) -> None:
        self._key = key
        self._nonce = nonce.encode()
        self._number = 0

    def head(self, status: int, headers: Iterable[tuple[str, str]]) -> str:
        """Return the value of `MAC_HEADER` for a status and these headers."""
        return _mac_of_head(self._key, self._nonce, status, headers).hex()

    def piece(self, data: bytes, *, is_last: bool) -> bytes:
        """Return the next piece of the body as it is sent."""
        head = _PIECE.pack(is_last, len(data))
        mac = _mac_of_piece(self._key, self._nonce, self._number, head, data)
        self._number += 1
        return head + data + mac


class PeerAnswer:
    """The answer of a member. Nothing of its body is returned before its signature was compared."""

    def __init__(self, response: aiohttp.ClientResponse, key: ClusterKey, nonce: str) -> None:
        self.status = response.status
        self.headers = response.headers
        self._content = response.content
        self._key = key
        self._nonce = nonce.encode()

    @property
    def is_signed(self) -> bool:
        mac = _mac_of_head(self._key, self._nonce, self.status, self.headers.items())
        return hmac.compare_digest(mac.hex().encode(), self.headers.get(MAC_HEADER, "").encode())

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the body. Raises `BrokenStream` for a wrong signature, and `EOFError` if the body is cut."""
        number, is_last = 0, self.status in _BODILESS
        while not is_last:
            head = await self._content.readexactly(_PIECE.size)
            is_last, size = _PIECE.unpack(head)
            if size > MOST_BYTES:
                raise BrokenStream(f"a piece has more than {MOST_BYTES} bytes")
            data = await self._content.readexactly(size)
            mac = await self._content.readexactly(_MAC_BYTES)
            if not hmac.compare_digest(mac, _mac_of_piece(self._key, self._nonce, number, head, data)):
                raise BrokenStream("a piece has a wrong signature")
            number += 1
            if data:
                yield data

    async def read(self, max_bytes: int = MOST_BYTES) -> bytes:
        """Return the whole body. Raises what `pieces` raises, and `BrokenStream` for a longer one."""
        body = bytearray()
        async for piece in self.pieces():
            body += piece
            if len(body) > max_bytes:
                raise BrokenStream(f"the answer has more than {max_bytes} bytes")
        return bytes(body)


def _mac(key: bytes, *fields: bytes) -> bytes:
    """Each field is preceded by its length, so that no two lists of fields have the same bytes."""
    return hmac.digest(
        key, b"".join(part for each in fields for part in (b"%d:" % len(each), each)), "sha256"
    )


def _mac_of_head(key: ClusterKey, nonce: bytes, status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """The headers that are covered are those that a caller reads: the type of the body, and ours."""
    named = sorted(
        f"{name.lower()}: {value}"
        for name, value in headers
        if name.lower() == "content-type"
        or (name.lower().startswith("x-talaria-") and name.lower() != MAC_HEADER)
    )
    texts = (text.encode("utf-8", "surrogateescape") for text in named)
    return key.mac_of_answer(b"head", nonce, b"%d" % status, *texts)


def _mac_of_piece(key: ClusterKey, nonce: bytes, number: int, head: bytes, data: bytes) -> bytes:
    return key.mac_of_answer(b"piece", nonce, b"%d" % number, head, data)
