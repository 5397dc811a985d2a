"""The part of a result that a model gets: the two ends of a long text, and a limited number of images and
files.

The whole of a long text is saved in the chat's folder, where the model can read it in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec import UNSET

from talaria.core import files
from talaria.core.errors import ToolError
from talaria.core.messages import File, Image, Part, Text
from talaria.core.units import format_size
from talaria.workspace.folder import MAX_WRITE_BYTES, FileKind, Folder, FolderPath
from talaria.workspace.pictures import MAX_PICTURE_BYTES, MAX_SIDE, image_bytes, picture_part

MAX_IMAGES = 8
MAX_FILES = 20
RESULTS = FolderPath(tuple(files.RESULTS.split("/")))
KEPT_RESULTS = 100
_MAX_FILE_CHARS = 5000
_LEAST_BYTES = 64
_NOTE_BYTES = 300


def encodable(text: str) -> str:
    """Return `text` as it can be stored and sent: half surrogate pairs, as in odd file names, become `?`."""
    return text.encode(errors="replace").decode()


def checked_parts(parts: Iterable[Part]) -> list[Part]:
    """Return the parts as they can be stored and sent. Blocks.

    At most `MAX_IMAGES` images, with `MAX_PICTURE_BYTES` together, and `MAX_FILES` files are kept. An image
    is kept only if every provider takes it: one that is refused would be refused with every later request of
    its session. A note takes the place of all that is left out.
    """
    kept: list[Part] = []
    images = files = left_out = 0
    room = MAX_PICTURE_BYTES
    for part in parts:
        match part:
            case Text(text=text):
                kept.append(Text(encodable(text)))
            case Image():
                data = (image_bytes(part) if images < MAX_IMAGES else None) or b""
                picture = picture_part(data) if len(data) <= room else None
                if picture is None:
                    left_out += 1
                else:
                    images, room = images + 1, room - len(data)
                    kept.append(Image(picture.url, part.detail))
            case File(name=name, path=path, media_type=media_type, digest=digest):
                if files == MAX_FILES or len(name + path + media_type + (digest or "")) > _MAX_FILE_CHARS:
                    left_out += 1
                else:
                    files += 1
                    texts = (encodable(name), encodable(path), encodable(media_type))
                    kept.append(File(*texts, part.size, digest=encodable(digest) if digest else UNSET))
    if left_out:
        kinds = f"PNG, JPEG, GIF or WebP, {format_size(MAX_PICTURE_BYTES)}, {MAX_SIDE} pixels on each side"
        limits = f"A result may have {MAX_IMAGES} images ({kinds}) and {MAX_FILES} files."
        kept.append(Text(f"[{left_out} of its images and files cannot be shown. {limits}]"))
    return kept


# -- long texts ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cut:
    """The two ends of a long text. `next_line` is the first line that is not whole in `head`; `lines` and
    `size` (in bytes) are those of the whole text."""

    head: str
    tail: str
    next_line: int
    lines: int
    size: int


def cut(text: str, max_bytes: int) -> Cut | None:
    """Return the head and the tail of `text`, together at most `max_bytes` of UTF-8; None if it fits.

    The text is cut at line ends if there is one not too far away, and never inside a character.
    """
    data = text.encode()
    if len(data) <= max_bytes:
        return None
    room = max(max_bytes, _LEAST_BYTES)
    tail_room = room // 4
    head = data[: room - tail_room]
    at = head.rfind(b"\n") + 1
    if at > len(head) // 2:
        head = head[:at]
    tail = data[-tail_room:]
    at = tail.find(b"\n") + 1
    if 0 < at < len(tail) // 2:
        tail = tail[at:]
    # `head` may end, and `tail` may begin, inside a character, which is then dropped.
    return Cut(
        head=head.decode(errors="ignore"),
        tail=tail.decode(errors="ignore"),
        next_line=head.count(b"\n") + 1,
        lines=data.count(b"\n") + (not data.endswith(b"\n")),
        size=len(data),
    )


def cap_result(text: str, max_bytes: int, save: Callable[[str], str] | None) -> str:
    """Return `text`, or if it is longer than `max_bytes` its two ends around a note that says where it is.

    `save` keeps the whole text and returns its path; it is None if the model has no tool to read it with. If
    it raises `ToolError`, as on a full disk, the middle of the text is lost. Blocks.
    """
    text = encodable(text)
    if len(text) <= max_bytes and len(text.encode()) <= max_bytes:
        return text
    path = ""
    if save is not None:
        with suppress(ToolError):
            path = save(text)
    ends = cut(text, max_bytes - _NOTE_BYTES - len(path.encode()))
    assert ends is not None
    whole = f"{format_size(ends.size)} in {ends.lines} {'line' if ends.lines == 1 else 'lines'}"
    if path:
        there = f"The whole result has {whole} and is in {path}"
        note = f'{there}: read_file("{path}", offset={ends.next_line}) goes on from here.'
    else:
        note = f"The whole result had {whole} and was not kept."
    gap = "" if ends.head.endswith("\n") or not ends.head else "\n"
    return f"{ends.head}{gap}[The middle was left out. {note}]\n{ends.tail}"


def save_result(folder: Folder, name: str, text: str, kept: int = KEPT_RESULTS) -> str:
    """Save `text` and return its path in the folder; only the newest `kept` results stay.

    Raises `ToolError` if it cannot be saved.
    """
    path = RESULTS / name
    folder.write(path, text.encode(errors="replace")[:MAX_WRITE_BYTES])
    prune_results(folder, kept)
    return str(path)


def prune_results(folder: Folder, kept: int = KEPT_RESULTS) -> None:
    """Remove all saved results but the newest. Raises `ToolError`."""
    items = [item for item in folder.scan(RESULTS, limit=10 * kept) if item.kind is FileKind.FILE]
    items.sort(key=lambda item: item.modified_at)
    for item in items[: max(len(items) - kept, 0)]:
        folder.remove(RESULTS / item.name)


def drop_old_results(files: Path, before: float) -> int:
    """Remove the results of all chats that were saved before then, and return how many. Other files of the
    chats stay."""
    count = 0
    for chat in sorted(files.iterdir()) if files.is_dir() else ():
        folder = Folder(chat)
        with suppress(ToolError):  # a chat without results, or one whose folder was replaced by a link
            for item in folder.scan(RESULTS, limit=10 * KEPT_RESULTS):
                if item.kind is FileKind.FILE and item.modified_at < before:
                    folder.remove(RESULTS / item.name)
                    count += 1
    return count
