"""Uploaded files that wait for the message that brings them.

Uploads are kept beside the chats' folders, under a name that no chat has. A message gets its own copy of each
upload, so an upload can be removed after a day in any case. The copy is in the chat's folder, under the name
that the user gave it: there the agent's tools look for it. If another file has that name, the copy gets a
number: `report-2.pdf`.
"""

from __future__ import annotations

import asyncio
import codecs
import mimetypes
import os
import re
import secrets
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar, TypeVarTuple

import msgspec

from talaria.core import files
from talaria.core.clock import Clock
from talaria.core.errors import BadRequest, NotFound, StoreError, TalariaError, ToolError
from talaria.core.files import MESSAGES, SentFile
from talaria.core.ids import ChatKey, TurnId
from talaria.core.messages import File, Part, Text
from talaria.core.slots import FairThreads
from talaria.core.text import DIRECTION_MARKS, EMBEDDINGS, NOT_IN_LINES, plain_name, printable
from talaria.core.tools import MAX_SENT_BYTES
from talaria.core.units import format_size
from talaria.core.whole_files import replace_file
from talaria.workspace.folder import Folder, FolderPath
from talaria.workspace.quota import FolderFull, FolderQuota
from talaria.workspace.reading import look_at, picture_part
from talaria.workspace.rights import make_folder
from talaria.workspace.spill import begin_text

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

FOLDER = ".uploads"
KEPT_SECONDS = 86_400.0
MAX_WAITING_BYTES = 1 << 30
MAX_FILES = 10
_SMALL_TEXT = 4_000  # bytes of a file whose text a message brings with it
_BEGINNING = 2_000  # bytes that a message brings of a larger text file
_NAME_BYTES = 120
_MOST_NUMBERS = 1000  # of files with one name
_HEAD_BYTES = 256 << 10
_ID = re.compile(r"file_[0-9a-f]{32}")
_MEDIA_TYPE = re.compile(r"[\w.+-]{1,64}/[\w.+-]{1,64}")
_UNFIT = re.compile(rf"[/\\:{NOT_IN_LINES}{DIRECTION_MARKS}{EMBEDDINGS}]+")
_UNKNOWN = "application/octet-stream"
_DEFAULTS = frozenset({"", _UNKNOWN, "application/x-www-form-urlencoded"})  # clients send these unasked


class Upload(msgspec.Struct, frozen=True):
    id: str
    name: str
    size: int
    media_type: str


class _Note(msgspec.Struct, frozen=True):
    """The file beside the bytes, which is written last. `places` are the paths of its copies, by chat.
    `caller` uploaded it; an upload of an earlier release has none and is for operators only."""

    upload: Upload
    at: float
    caller: str = ""
    places: dict[ChatKey, str] = {}


class UploadTooLarge(TalariaError):
    """A file has too many bytes, or all waiting uploads together have."""

    type = "too_large"


_read_note = msgspec.json.Decoder(_Note).decode


class Uploads:
    """The uploads in `files`. `folder_of` returns the folder of a chat.

    The argument `caller` names a caller that gets its own uploads only. For None, such as operators, every
    upload exists.
    """

    def __init__(
        self,
        files: Path,
        folder_of: Callable[[ChatKey], Path],
        clock: Clock,
        threads: FairThreads | None = None,
        quota: FolderQuota | None = None,
    ) -> None:
        """`threads` run what blocks, and `quota` counts what is put into the folders of chats."""
        self._folder = files / FOLDER
        self._folder_of = folder_of
        self._clock = clock
        self._threads = threads or FairThreads("talaria-upload", lambda: 4)
        self._quota = quota or FolderQuota()
        self._placing = threading.Lock()  # two files at once may have one name

    async def receive(
        self, name: str, media_type: str, pieces: AsyncIterator[bytes], max_bytes: int, caller: str = ""
    ) -> Upload:
        """Write the pieces as they come.

        Raises `BadRequest`, `UploadTooLarge`, `StoreError`, and what `pieces` raises. After an error or a
        cancellation nothing is left.
        """
        upload_id = f"file_{secrets.token_hex(16)}"
        received = _Received(self._folder / upload_id, self._note(upload_id))
        try:
            await self._in_thread(self._begin)
            size, head = await self._write(received, pieces, max_bytes)
            name = clean_name(name)
            upload = Upload(upload_id, name, size, find_media_type(name, media_type, head))
            note = msgspec.json.encode(_Note(upload, self._clock.now(), caller))
            await self._in_thread(received.finish, note)
        except BaseException as error:
            received.is_dropped = True
            with suppress(RuntimeError):  # the threads are closed
                await asyncio.shield(self._in_thread(received.drop))
            if isinstance(error, OSError):
                reason = f"The file cannot be kept: {error.strerror}."
                raise StoreError(reason, "Is the disk full?") from error
            raise
        return upload

    async def _write(
        self, received: _Received, pieces: AsyncIterator[bytes], max_bytes: int
    ) -> tuple[int, bytes]:
        """Return the size and the first bytes."""
        size, head = 0, b""
        async for piece in pieces:
            size += len(piece)
            if size > max_bytes:
                raise too_large(max_bytes)
            head += piece[: _HEAD_BYTES - len(head)]
            await self._in_thread(received.write, piece)
        if not size:
            raise BadRequest("The file is empty.", "Send its bytes as the body of the request.")
        await self._in_thread(received.close)
        return size, head

    async def put(self, key: ChatKey, name: str, media_type: str, data: bytes) -> list[Part]:
        """Write a file into a chat's folder and return the parts of a message that brings it: the file, and
        if it is a picture also the image for models that see. A file that is there already, with the same
        name and content, is used. Raises `ToolError`; `FolderFull` if the folder has no room."""
        return await self._in_thread(self._put, key, File(clean_name(name), "", media_type, len(data)), data)

    async def keep_message(self, key: ChatKey, name: str, text: str, shown_bytes: int) -> tuple[Text, File]:
        """Keep a message that is too long to be shown whole, under this name. Return what a model gets of it.
        Raises `UploadTooLarge` if the folder has no room, and `StoreError`."""
        return await self._in_thread(self._keep_message, key, name, text, shown_bytes)

    async def open(self, upload_id: str) -> tuple[Upload, bytes]:
        """Return an upload and its bytes. Raises `NotFound`."""
        return await self._in_thread(self._read, upload_id)

    async def open_file(self, upload_id: str, caller: str | None = None) -> tuple[Upload, BinaryIO]:
        """Return an upload and its file, which the caller closes. Raises `NotFound`."""
        return await self._in_thread(self._open, upload_id, caller)

    async def parts(self, key: ChatKey, ids: Sequence[str], caller: str | None = None) -> tuple[Part, ...]:
        """Return the files as parts of a message to that chat, each copied into the chat's folder. The same
        ids give the same parts. Raises `NotFound`, `BadRequest`, `StoreError`, and `UploadTooLarge` if the
        folder has no room."""
        check_count(ids)
        found: list[Part] = []
        for upload_id in dict.fromkeys(ids):
            found += await self._in_thread(self._copy, key, upload_id, caller)
        return tuple(found)

    def forget(self) -> int:
        """Remove the uploads that have waited for a day, and return how many. Blocks."""
        before, count = self._clock.now() - KEPT_SECONDS, 0
        for path in sorted(self._folder.iterdir()) if self._folder.is_dir() else ():
            note = path.with_suffix(".json")
            if path == note and path.with_suffix("").exists():
                continue  # it goes with its upload
            with suppress(FileNotFoundError):
                if _kept_since(path, note) < before:
                    note.unlink(missing_ok=True)
                    path.unlink(missing_ok=True)
                    count += 1
        return count

    async def _in_thread(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        return await self._threads.run(self, function, *args)

    def _chat(self, key: ChatKey) -> Folder:
        return Folder(self._folder_of(key), self._quota)

    def _put(self, key: ChatKey, file: File, data: bytes) -> list[Part]:
        with self._placing:
            path = place_file(self._chat(key), file.name, data)
        return _parts(file, path, data)

    def _keep_message(self, key: ChatKey, name: str, text: str, shown_bytes: int) -> tuple[Text, File]:
        with explained("The message is too long to be shown whole, and it"):
            return keep_message(self._chat(key), name, text, shown_bytes)

    def _note(self, upload_id: str) -> Path:
        return self._folder / f"{upload_id}.json"

    def _begin(self) -> None:
        """Make the folder. Raises `UploadTooLarge` if too much waits already."""
        if not self._folder.is_dir():
            self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):
                make_folder(str(self._folder))
        waiting = 0
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # removed since it was listed
                    waiting += entry.stat().st_size
        if waiting > MAX_WAITING_BYTES:
            raise UploadTooLarge(
                f"{format_size(waiting)} of uploads wait for a message already.",
                "Send messages that name them. An upload that no message names is removed after a day.",
            )

    def _read(self, upload_id: str, caller: str | None = None) -> tuple[Upload, bytes]:
        upload, file = self._open(upload_id, caller)
        with file:
            return upload, file.read()

    def _open(self, upload_id: str, caller: str | None) -> tuple[Upload, BinaryIO]:
        note = self._find(upload_id)
        if caller not in (None, note.caller):
            raise no_such_file(upload_id)
        with suppress(OSError):
            return note.upload, (self._folder / upload_id).open("rb")
        raise no_such_file(upload_id)

    def _find(self, upload_id: str) -> _Note:
        if is_upload_id(upload_id):
            with suppress(OSError, msgspec.MsgspecError):
                return _read_note(self._note(upload_id).read_bytes())
        raise no_such_file(upload_id)

    def _copy(self, key: ChatKey, upload_id: str, caller: str | None) -> list[Part]:
        """Return the parts of an upload for a chat. A message that is sent again gets the same ones, even if
        the agent has changed its copy meanwhile."""
        upload, data = self._read(upload_id, caller)
        file, folder = File(upload.name, "", upload.media_type, upload.size), self._chat(key)
        with explained(upload.name), self._placing:
            note = self._find(upload_id)
            place = note.places.get(key)
            if place is None or not folder.exists(folder.resolve(place)):
                place = place_file(folder, upload.name, data)
                self._rewrite(
                    upload_id, _Note(note.upload, note.at, note.caller, {**note.places, key: place})
                )
        return _parts(file, place, data)

    def _rewrite(self, upload_id: str, note: _Note) -> None:
        """Replace the note. If that fails, a message that is sent again finds its file by the content."""
        with suppress(OSError):
            replace_file(self._note(upload_id), msgspec.json.encode(note), is_durable=False)


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn an error of the chat's folder into one for the sender of a message. `what` begins a sentence."""
    try:
        yield
    except FolderFull as error:
        raise UploadTooLarge(error.user_text, error.hint) from error
    except ToolError as error:
        text = f"{what} cannot be put into the chat's folder: {error.user_text}"
        raise StoreError(text, "Look at the disk and at the folder's owner.") from error


class _Received:
    """The file of an upload that is being received. Its methods block. Made by the first `write`."""

    def __init__(self, path: Path, note: Path) -> None:
        self._path = path
        self._note = note
        self._file: BinaryIO | None = None
        self.is_dropped = False

    def write(self, piece: bytes) -> None:
        if self._file is None:
            self._file = _open_private(self._path)
        self._file.write(piece)
        if self.is_dropped:  # while this waited for the disk
            self.drop()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def finish(self, note: bytes) -> None:
        """Write the note, by which the upload is known from now on."""
        with _open_private(self._note) as file:
            file.write(note)
        if self.is_dropped:  # as above
            self.drop()

    def drop(self) -> None:
        """Remove the file and its note, if they are there."""
        with suppress(OSError):
            self.close()
        for path in (self._note, self._path):
            path.unlink(missing_ok=True)


def _open_private(path: Path) -> BinaryIO:
    """Open a new file that belongs to this user alone, whatever the umask says."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "wb")


def _kept_since(path: Path, note: Path) -> float:
    """Return when an upload was noted. The end of a process may leave a file without a note, or with a part
    of one: then the time of the file counts. Raises `FileNotFoundError`."""
    with suppress(OSError, msgspec.MsgspecError):
        return _read_note(note.read_bytes()).at
    return path.stat().st_mtime


def place_file(folder: Folder, name: str, data: bytes) -> str:
    """Write a file into a chat's folder under its name, or with a number if another file has the name. Return
    its path. Raises `ToolError`. Blocks."""
    stem, dot, suffix = name.rpartition(".")
    if not stem:
        stem, dot, suffix = name, "", ""
    for number in range(1, _MOST_NUMBERS):
        path = folder.resolve(name if number == 1 else f"{stem}-{number}{dot}{suffix}")
        if not folder.exists(path):
            folder.write(path, data, len(data))
            return str(path)
        if folder.has(path, data):
            return str(path)
    path = folder.resolve(f"{stem}-{secrets.token_hex(8)}{dot}{suffix}")
    folder.write(path, data, len(data))
    return str(path)


def _parts(file: File, path: str, data: bytes) -> list[Part]:
    picture = picture_part(data)
    file = msgspec.structs.replace(file, path=path)
    if (text := _read_text(data)) and len(data) > _SMALL_TEXT:
        beginning, rest = begin_text(data, _BEGINNING)
        file = msgspec.structs.replace(file, beginning=beginning, rest=rest)
    elif text:
        file = msgspec.structs.replace(file, text=text)
    return [file, *([picture] if picture else [])]


def _read_text(data: bytes) -> str:
    """Return the text of a text file, or of a large one the first part; an empty string for other files."""
    head = data[: 2 * _SMALL_TEXT]
    if b"\0" in head:
        return ""
    try:
        # The last character of a part may be incomplete.
        return codecs.getincrementaldecoder("utf-8-sig")().decode(head, final=len(head) == len(data))
    except UnicodeDecodeError:
        return ""


def check_count(ids: Sequence[str]) -> None:
    """Raise `BadRequest` for more files than a message may bring."""
    if len(ids) > MAX_FILES:
        raise BadRequest(f"{len(ids)} files are too many for one message.", f"Send up to {MAX_FILES}.")


def is_upload_id(text: str) -> bool:
    """Return whether a text, which anybody may have written, has the form of the id of an upload."""
    return _ID.fullmatch(text) is not None


def no_such_file(file_id: str) -> NotFound:
    return NotFound(
        f"There is no file {printable(file_id[:80])}.",
        "Upload it with POST /api/files; uploads are kept for 24 hours.",
    )


def too_large(max_bytes: int) -> UploadTooLarge:
    return UploadTooLarge(
        f"The file is larger than {format_size(max_bytes)}.",
        "Send a smaller one, or raise http.max_file in config.toml.",
    )


def clean_name(name: str) -> str:
    """Return the name of a file without folders, control characters and leading dots; never empty.

    A leading `~` goes too, since the tools take such a path for a home folder, and a leading `-`, since
    programs take such a name for an option.
    """
    last = re.split(r"[/\\]", name)[-1]
    clean = _UNFIT.sub("_", last).strip()
    return clean.encode()[-_NAME_BYTES:].decode(errors="ignore").lstrip(".~- ") or "file"


def find_media_type(name: str, told: str, head: bytes) -> str:
    """Return the media type by the first bytes, else as the sender told it, else by the name."""
    if (picture := look_at(head)) is not None:
        return picture.media_type
    told = told.partition(";")[0].strip().lower()
    if told not in _DEFAULTS and _MEDIA_TYPE.fullmatch(told):
        return told
    return mimetypes.guess_type(name)[0] or _UNKNOWN


# -- texts that are too long to be shown whole


def keep_message(folder: Folder, name: str, text: str, shown_bytes: int) -> tuple[Text, File]:
    """Write a long message into the chat's folder, and return what a model gets of it. Raises `ToolError`;
    `FolderFull` if the folder has no room. Blocks."""
    data = text.encode(errors="replace")
    path = folder.resolve(f"{MESSAGES}/{name}.txt")
    folder.write(path, data, len(data))
    beginning, rest = begin_text(data, shown_bytes)
    return Text(beginning), File("message.txt", str(path), "text/plain", len(data), rest=rest)


# -- copies of the files that turns send: a person gets a file as it was when it was sent -----------------
# Every function blocks.


class CopyChanged(ToolError):
    """The copy of a sent file is not what was sent."""


SENT = FolderPath(tuple(files.SENT.split("/")))
KEPT_COPIES = 100


def read_sent(folder_of: Callable[[ChatKey], Path], key: ChatKey, path: str) -> bytes:
    """Read a file that goes out with a reply; never a file that a link leads to. Raises `ToolError`, also for
    the copy of a sent file that was changed."""
    folder = Folder(folder_of(key))
    data = folder.read(folder.resolve(path), MAX_SENT_BYTES)
    if not files.is_unchanged(path, data):
        raise CopyChanged(
            f"The file {path.rpartition('/')[2]} was changed after it was sent, so it is not delivered.",
            "Ask for the file again.",
        )
    return data


def keep_copy(
    folder: Folder,
    path: FolderPath,
    call: tuple[TurnId, str],
    kept: int = KEPT_COPIES,
    check: Callable[[bytes], None] = lambda data: None,
) -> tuple[SentFile, str]:
    """Copy a file to the place from which people get it, and return it with the digest of its content. The
    newest `kept` copies of the chat stay. `check` raises if the content must not be sent.

    A call that is run again replaces its copy. Raises `ToolError`; `FolderFull` if the folder has no room.
    """
    data = folder.read(path, MAX_SENT_BYTES)
    check(data)
    return keep_content(folder, path.name, data, call, kept)


def keep_content(
    folder: Folder, name: str, data: bytes, call: tuple[TurnId, str], kept: int = KEPT_COPIES
) -> tuple[SentFile, str]:
    """Do the same for a content that is no file of the chat."""
    digest = files.content_digest(data)
    file_id = files.sent_file_id(*call, digest)
    sent = SentFile(file_id, plain_name(name), find_media_type(name, "", data), len(data))
    folder.write(folder.resolve(sent.copy_path), data, MAX_SENT_BYTES)
    # Ids begin with the time of their turn, and end with the digest.
    copies = [item.name for item in folder.scan(SENT, limit=10 * kept)]
    new = sent.copy_path.split("/")[-2]
    replaced = [name for name in copies if name != new and name.startswith(new.removesuffix(digest))]
    for old in (*replaced, *copies[: max(len(copies) - kept, 0)]):
        _remove(folder, SENT / old)
    return sent, digest


def open_copy(folder_of: Callable[[ChatKey], Path], key: ChatKey, file: SentFile) -> BinaryIO:
    """Return the content of a sent file as a temporary file, which the caller closes: commands can write to
    the copy itself at any time. Raises `ToolError`, also if the copy was changed."""
    data = read_sent(folder_of, key, file.copy_path)
    content = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    content.write(data)
    content.seek(0)
    return content


def drop_old_copies(chats: Path, before: float) -> int:
    """Remove the copies of all chats that were made before then, and return how many."""
    count = 0
    for chat in sorted(chats.iterdir()) if chats.is_dir() else ():
        folder = Folder(chat)
        with suppress(ToolError):  # a chat that sent nothing, or one whose folder was replaced by a link
            for copy in folder.scan(SENT, limit=10 * KEPT_COPIES):
                items = folder.scan(SENT / copy.name, limit=1)
                if all(item.modified_at < before for item in items):
                    _remove(folder, SENT / copy.name)
                    count += len(items)
    return count


def remove_private(root: Path, path: str) -> None:
    """Remove a file that the gateway keeps in the chat's folder `root`, if it is there, and the folder of a
    copy with it. Raises `ToolError`."""
    folder = Folder(root)
    inside = folder.resolve(path)
    if not inside.is_private or not root.is_dir():
        return
    if inside.parts[:2] == SENT.parts:
        _remove(folder, inside.parent)
    else:
        with suppress(ToolError):
            folder.remove(inside)


def _remove(folder: Folder, copy: FolderPath) -> None:
    with suppress(ToolError):
        for item in folder.scan(copy, limit=10):
            folder.remove(copy / item.name)
        folder.remove_folder(copy)
