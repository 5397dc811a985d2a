"""Contents of files by their digest, each once, in a few large files: to make a file for each is slow.

A pack is a sequence of digest, length and content. A kill can only cut the last content of a pack off; what
is behind the last whole one is ignored, and written over. Every method blocks.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
from collections.abc import Container
from pathlib import Path

from talaria.core.whole_files import replace_file
from talaria.workspace.places import make_private

_FILE_MODE = 0o600
_HEAD = struct.Struct("<32sQ")
_PACK_BYTES = 64 << 20  # from here on another pack is begun


class Blobs:
    """The contents in one folder. Its owner sees to it that only one thread uses it at a time, and calls
    `close` when it has written."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._places: dict[bytes, tuple[str, int, int]] | None = None  # pack, offset and length by digest
        self._ends: dict[str, int] = {}
        self._pack = ""
        self._writer: int | None = None

    def put(self, data: bytes) -> bytes:
        """Keep the content and return its digest. Raises `OSError`."""
        digest = hashlib.sha256(data).digest()
        places = self._index()
        if digest not in places:
            writer = self._open_writer()
            offset = self._ends[self._pack]
            _write_all(writer, offset, _HEAD.pack(digest, len(data)) + data)
            places[digest] = self._pack, offset + _HEAD.size, len(data)
            self._ends[self._pack] = offset + _HEAD.size + len(data)
        return digest

    def has(self, digest: bytes) -> bool:
        return digest in self._index()

    def get(self, digest: bytes) -> bytes | None:
        """Return the content; None if it is gone or damaged."""
        if (place := self._index().get(digest)) is None:
            return None
        pack, offset, length = place
        try:
            with open(self._root / pack, "rb") as file:  # noqa: PTH123 - as everywhere here
                file.seek(offset)
                data = file.read(length)
        except OSError:
            return None
        return data if hashlib.sha256(data).digest() == digest else None

    def close(self) -> None:
        """Close the pack that is written, if one is."""
        if self._writer is not None:
            os.close(self._writer)
            self._writer = None

    def keep_only(self, wanted: Container[bytes]) -> int:
        """Remove all other contents, as far as that pays, and return the bytes that are left. A pack that is
        less than half needed is written anew."""
        self.close()
        self._places = None
        places = self._index()
        left = 0
        for pack, size in list(self._ends.items()):
            live = [digest for digest, place in places.items() if place[0] == pack and digest in wanted]
            needed = sum(places[digest][2] + _HEAD.size for digest in live)
            if needed * 2 >= size and live:
                left += size
                continue
            contents = [(digest, data) for digest in live if (data := self.get(digest)) is not None]
            if contents:
                packed = b"".join(_HEAD.pack(digest, len(data)) + data for digest, data in contents)
                replace_file(self._root / _new_name(), packed, is_durable=False)
                left += needed
            (self._root / pack).unlink(missing_ok=True)
        self._places = None
        return left

    def _open_writer(self) -> int:
        if self._writer is not None and self._ends[self._pack] < _PACK_BYTES:
            return self._writer
        self.close()
        room = [pack for pack, end in self._ends.items() if end < _PACK_BYTES]
        self._pack = room[0] if room else _new_name()
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._writer = os.open(self._root / self._pack, flags, _FILE_MODE)
        self._ends.setdefault(self._pack, 0)
        return self._writer

    def _index(self) -> dict[bytes, tuple[str, int, int]]:
        if self._places is None:
            make_private(self._root)
            self._places, self._ends = {}, {}
            for name in sorted(os.listdir(self._root)):  # noqa: PTH208 - names only
                if name.startswith("."):  # written in part
                    (self._root / name).unlink(missing_ok=True)
                else:
                    self._ends[name] = self._read_heads(name, self._places)
        return self._places

    def _read_heads(self, pack: str, places: dict[bytes, tuple[str, int, int]]) -> int:
        """Add the places of a pack's contents, and return where the last whole one ends."""
        end = 0
        with open(self._root / pack, "rb") as file:  # noqa: PTH123
            size = os.fstat(file.fileno()).st_size
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                digest, length = _HEAD.unpack(head)
                if end + _HEAD.size + length > size:
                    break
                places[digest] = pack, end + _HEAD.size, length
                end += _HEAD.size + length
                file.seek(end)
        return end


def _new_name() -> str:
    return f"pack-{secrets.token_hex(8)}"


def _write_all(descriptor: int, offset: int, data: bytes) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, memoryview(data)[written:], offset + written)
