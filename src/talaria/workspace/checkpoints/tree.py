"""A folder's tree at one moment, and the differences between two of them.

A tree maps the path of each item to its `ItemState`. Paths are relative; names that are not UTF-8 have
surrogates in them, as `os.fsdecode` makes them. Everything here is pure.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import secrets
import struct
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import msgspec

from talaria.core.whole_files import replace_file
from talaria.workspace.places import make_private

# -- contents of files by their digest, each once, in a few large files -----------------------------------
# A pack is a sequence of digest, length and content. A kill can only cut the last content of a pack off;
# what is behind the last whole one is ignored, and written over. Every method blocks.


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


# -- a folder's tree at one moment, and the differences between two of them -------------------------------


class ItemKind(StrEnum):
    """`OPAQUE` items have no copy: their mark says why. A folder that was not listed has a mark too."""

    FILE = "f"
    LINK = "l"
    FOLDER = "d"
    OPAQUE = "o"


class Gap(StrEnum):
    """The reason for which an item, or what is in a folder, has no copy."""

    EXCLUDED = "excluded"
    SIZE = "size"
    BYTES = "bytes"
    COUNT = "count"
    TIME = "time"
    HARD_LINK = "hard link"
    SPECIAL = "special"
    UNREADABLE = "unreadable"
    ROOM = "no room"


class ItemState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An item as it is at one moment.

    `mark` is the digest of a file's content, the target of a link, the `Gap` of an opaque item or of a folder
    that was not listed, and empty for a folder that was. Links and opaque items have no mode that counts.
    """

    kind: ItemKind
    mode: int
    size: int
    modified_ns: int
    changed_ns: int
    inode: int
    mark: bytes = b""

    @property
    def is_listed(self) -> bool:
        return self.kind is ItemKind.FOLDER and not self.mark

    @property
    def gap(self) -> Gap | None:
        """The reason for which there is no copy; None if there is one."""
        if self.kind is ItemKind.OPAQUE or (self.kind is ItemKind.FOLDER and self.mark):
            return Gap(self.mark.decode())
        return None

    def has_stat_of(self, other: ItemState) -> bool:
        """Return whether the kernel says the same of both, so that neither content nor mode has changed."""
        return (
            self.inode == other.inode
            and self.changed_ns == other.changed_ns
            and self.modified_ns == other.modified_ns
            and self.size == other.size
            and self.mode == other.mode
        )


def is_same(one: ItemState | None, other: ItemState | None) -> bool:
    """Return whether two states of a path are the same for a person. None means that nothing is there."""
    if one is None or other is None:
        return one is other
    if one.kind is not other.kind:
        return {one.kind, other.kind} == {ItemKind.FILE, ItemKind.OPAQUE} and one.has_stat_of(other)
    match one.kind:
        case ItemKind.FILE:
            return one.mark == other.mark and one.mode == other.mode
        case ItemKind.LINK:
            return one.mark == other.mark
        case ItemKind.FOLDER:
            return one.mode == other.mode
        case ItemKind.OPAQUE:
            return one.has_stat_of(other)


@dataclass(frozen=True, slots=True)
class Tree:
    """The items of a folder. `taken_at_ns` is when its reading began; `is_root_listed` is False if even the
    folder itself could not be listed."""

    items: dict[str, ItemState] = field(default_factory=dict)
    taken_at_ns: int = 0
    is_root_listed: bool = True

    def knows(self, path: str) -> bool:
        """Return whether the tree tells if there is something under this path."""
        if path in self.items:
            return True
        parent = posixpath.dirname(path)
        if not parent:
            return self.is_root_listed
        above = self.items.get(parent)
        if above is None:
            return self.knows(parent)
        return above.kind is not ItemKind.FOLDER or above.is_listed

    def gaps(self) -> Iterable[tuple[str, Gap]]:
        """Yield the items without a copy and why they have none."""
        if not self.is_root_listed:
            yield ".", Gap.COUNT
        for path, state in self.items.items():
            if (gap := state.gap) is not None:
                yield path, gap


class FileChange(msgspec.Struct, frozen=True, array_like=True):
    """A path before and after the calls of a turn; None means that nothing was there."""

    before: ItemState | None
    after: ItemState | None


def find_changes(before: Tree, after: Tree) -> dict[str, FileChange]:
    """Return the paths that are different, as far as both trees know them."""
    changes: dict[str, FileChange] = {}
    for path, old in before.items.items():
        new = after.items.get(path)
        if new is not old and not is_same(old, new) and after.knows(path):
            changes[path] = FileChange(old, new)
    for path, new in after.items.items():
        if path not in before.items and before.knows(path):
            changes[path] = FileChange(None, new)
    return changes


def merge_changes(earlier: dict[str, FileChange], later: dict[str, FileChange]) -> dict[str, FileChange]:
    """Return the changes of a turn that made first the `earlier` and then the `later` ones.

    A path that someone else changed in between keeps that person's state as the one to go back to.
    """
    merged = dict(earlier)
    for path, change in later.items():
        known = merged.pop(path, None)
        before = change.before
        if known is not None and is_same(known.after, change.before):
            before = known.before
        if not is_same(before, change.after):
            merged[path] = FileChange(before, change.after)
    return merged


class _StoredTree(msgspec.Struct, array_like=True):
    taken_at_ns: int
    is_root_listed: bool
    items: dict[bytes, ItemState]


_DECODER = msgspec.msgpack.Decoder(_StoredTree)


def encode_tree(tree: Tree) -> bytes:
    items = {os.fsencode(path): state for path, state in tree.items.items()}
    return msgspec.msgpack.encode(_StoredTree(tree.taken_at_ns, tree.is_root_listed, items))


def decode_tree(data: bytes) -> Tree:
    """Raises `msgspec.MsgspecError`."""
    stored = _DECODER.decode(data)
    items = {os.fsdecode(path): state for path, state in stored.items.items()}
    return Tree(items, stored.taken_at_ns, stored.is_root_listed)
