"""The transcript of a warm agent: each message encoded once, kept as bytes."""

from __future__ import annotations

from collections.abc import Sequence

from talaria.core.messages import Message
from talaria.core.ports import WireFormat


class Transcript:
    """Encoded messages in order."""

    __slots__ = ("_chunks", "_wire", "size")

    def __init__(self, wire: WireFormat) -> None:
        self._wire = wire
        self._chunks: list[bytes] = []
        self.size = 0

    @property
    def chunks(self) -> Sequence[bytes]:
        return self._chunks

    def append(self, message: Message) -> None:
        chunk = self._wire.encode(message)
        self._chunks.append(chunk)
        self.size += len(chunk)

    def clear(self) -> None:
        self._chunks.clear()
        self.size = 0
