"""Files that were uploaded and wait for the message that brings them.

They lie beside the chats' folders under names that no chat has. A message gets its own copy of each, in its
chat's folder, so an upload can be forgotten after a day whatever became of it.
"""

from __future__ import annotations

import asyncio
import mimetypes
import os
import re
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import BadRequest, NotFound, StoreError, TalariaError, ToolError
from talaria.core.ids import ChatKey
from talaria.core.messages import File, Part
from talaria.core.units import format_size
from talaria.workspace.folder import Folder, printable
from talaria.workspace.pictures import look_at, picture_part

INBOX = "inbox"
FOLDER = ".uploads"
KEPT_SECONDS = 86_400.0
MAX_WAITING_BYTES = 1 << 30
MAX_FILES = 10
_NAME_BYTES = 120
_HEAD_BYTES = 256 << 10
_ID = re.compile(r"file_[0-9a-f]{32}")
_MEDIA_TYPE = re.compile(r"[\w.+-]{1,64}/[\w.+-]{1,64}")
_UNFIT = re.compile(r"[/\\:\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_UNKNOWN = "application/octet-stream"
_NO_WORD = frozenset({"", _UNKNOWN, "application/x-www-form-urlencoded"})  # what clients say by default


class Upload(msgspec.Struct, frozen=True):
    id: str
    name: str
    size: int
    media_type: str


class _Note(msgspec.Struct, frozen=True):
    """What is written beside the bytes, last of all."""

    upload: Upload
    at: float


class TooLarge(TalariaError):
    """More than one file may have, or more than may wait."""

    type = "too_large"


_read_note = msgspec.json.Decoder(_Note).decode


class Uploads:
    """In `files`, for chats whose folders `folder_of` knows."""

    def __init__(self, files: Path, folder_of: Callable[[ChatKey], Path], clock: Clock) -> None:
        self._folder = files / FOLDER
        self._folder_of = folder_of
        self._clock = clock

    async def receive(
        self, name: str, media_type: str, pieces: AsyncIterator[bytes], max_bytes: int
    ) -> Upload:
        """Write the pieces as they come. Raises `BadRequest`, `TooLarge`, and what `pieces` raises; nothing
        is left then."""
        upload_id = f"file_{secrets.token_hex(16)}"
        path = await asyncio.to_thread(self._begin, upload_id)
        try:
            size, head = await self._write(path, pieces, max_bytes)
            name = clean_name(name)
            upload = Upload(upload_id, name, size, _media_type(name, media_type, head))
            note = msgspec.json.encode(_Note(upload, self._clock.now()))
            await asyncio.to_thread(self._note(upload_id).write_bytes, note)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise StoreError(f"The file cannot be kept: {error.strerror}.", "Is the disk full?") from error
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return upload

    async def _write(self, path: Path, pieces: AsyncIterator[bytes], max_bytes: int) -> tuple[int, bytes]:
        """Return how much it was, and how it begins."""
        size, head = 0, b""
        with path.open("wb") as file:
            async for piece in pieces:
                size += len(piece)
                if size > max_bytes:
                    raise too_large(max_bytes)
                head += piece[: _HEAD_BYTES - len(head)]
                await asyncio.to_thread(file.write, piece)
        if not size:
            raise BadRequest("The file is empty.", "Send its bytes as the body of the request.")
        return size, head

    async def open(self, upload_id: str) -> tuple[Upload, bytes]:
        """Raises `NotFound`."""
        return await asyncio.to_thread(self._read, upload_id)

    async def parts(self, key: ChatKey, ids: Sequence[str]) -> tuple[Part, ...]:
        """The files as parts of a message to that chat, each copied into its folder. The same ids give the
        same parts. Raises `NotFound` and `BadRequest`."""
        if len(ids) > MAX_FILES:
            raise BadRequest(f"{len(ids)} files are too many for one message.", f"Send up to {MAX_FILES}.")
        found: list[Part] = []
        for upload_id in dict.fromkeys(ids):
            found += await asyncio.to_thread(self._copy, key, upload_id)
        return tuple(found)

    def forget(self) -> int:
        """Remove what has waited for a day; how many. Blocks."""
        before, count = self._clock.now() - KEPT_SECONDS, 0
        for path in sorted(self._folder.iterdir()) if self._folder.is_dir() else ():
            note = path.with_suffix(".json")
            if path == note:
                continue
            with suppress(FileNotFoundError):
                # Without a note it was cut off by the end of a process.
                at = _read_note(note.read_bytes()).at if note.exists() else path.stat().st_mtime
                if at < before:
                    note.unlink(missing_ok=True)
                    path.unlink()
                    count += 1
        return count

    def _note(self, upload_id: str) -> Path:
        return self._folder / f"{upload_id}.json"

    def _begin(self, upload_id: str) -> Path:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        waiting = sum(entry.stat().st_size for entry in os.scandir(self._folder))
        if waiting > MAX_WAITING_BYTES:
            raise TooLarge(
                f"{format_size(waiting)} of uploads wait for a message already.",
                "Send messages that name them; those that nobody names are forgotten after a day.",
            )
        return self._folder / upload_id

    def _read(self, upload_id: str) -> tuple[Upload, bytes]:
        if _ID.fullmatch(upload_id):
            with suppress(OSError, msgspec.MsgspecError):
                note = _read_note(self._note(upload_id).read_bytes())
                return note.upload, (self._folder / upload_id).read_bytes()
        raise NotFound(
            f"There is no file {printable(upload_id[:80])}.",
            "Upload it with POST /api/files; uploads are kept for 24 hours.",
        )

    def _copy(self, key: ChatKey, upload_id: str) -> list[Part]:
        upload, data = self._read(upload_id)
        file = File(upload.name, f"{INBOX}/{upload_id[-8:]}-{upload.name}", upload.media_type, upload.size)
        try:
            return put_file(self._folder_of(key), file, data)
        except ToolError as error:
            text = f"{upload.name} cannot be put into the chat's folder: {error.user_text}"
            raise StoreError(text, "Look at the disk and at the folder's owner.") from error


def put_file(chat: Path, file: File, data: bytes) -> list[Part]:
    """Writes it into a chat's folder. The parts of a message that brings it: pictures twice, also as what
    models see. Raises `ToolError`. Blocks."""
    folder = Folder(chat)
    inside = folder.resolve(file.path)
    folder.write(inside, data, len(data))
    picture = picture_part(data)
    return [msgspec.structs.replace(file, path=str(inside)), *([picture] if picture else [])]


def too_large(max_bytes: int) -> TooLarge:
    return TooLarge(
        f"The file is larger than {format_size(max_bytes)}.",
        "Send a smaller one, or raise http.max_file in config.toml.",
    )


def clean_name(name: str) -> str:
    """A file's own name, without folders and whatever else could mislead."""
    last = re.split(r"[/\\]", name)[-1]
    clean = _UNFIT.sub("_", last).strip().lstrip(".")
    return clean.encode()[-_NAME_BYTES:].decode(errors="ignore") or "file"


def _media_type(name: str, told: str, head: bytes) -> str:
    """The bytes know best, then whoever sent them, then the name."""
    if (picture := look_at(head)) is not None:
        return picture.media_type
    told = told.partition(";")[0].strip().lower()
    if told not in _NO_WORD and _MEDIA_TYPE.fullmatch(told):
        return told
    return mimetypes.guess_type(name)[0] or _UNKNOWN
