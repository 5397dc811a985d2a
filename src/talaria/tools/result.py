"""What a model gets of a result: of a long text its two ends, and of other parts as many as are allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from talaria.core.errors import ToolError
from talaria.core.messages import File, Image, Part, Text
from talaria.core.units import format_size
from talaria.workspace.pictures import MAX_PICTURE_BYTES, MAX_SIDE, image_bytes, picture_part

MAX_IMAGES = 8
MAX_FILES = 20
_MAX_FILE_CHARS = 5000
_TAIL_SHARE = 4
_LEAST_BYTES = 64


@dataclass(frozen=True, slots=True)
class Cut:
    """The ends of a long text. `next_line` is the first line that is not whole in `head`, `lines` how many
    there are, `size` how many bytes."""

    head: str
    tail: str
    next_line: int
    lines: int
    size: int


def cut(text: str, max_bytes: int) -> Cut | None:
    """The head and the tail of `text`, together at most `max_bytes` of UTF-8; None when it fits.

    Cuts stand at line ends where there is one not too far away, and never inside a character.
    """
    data = text.encode()
    if len(data) <= max_bytes:
        return None
    room = max(max_bytes, _LEAST_BYTES)
    tail_room = room // _TAIL_SHARE
    head = data[: room - tail_room]
    at = head.rfind(b"\n") + 1
    if at > len(head) // 2:
        head = head[:at]
    tail = data[-tail_room:]
    at = tail.find(b"\n") + 1
    if 0 < at < len(tail) // 2:
        tail = tail[at:]
    # `head` may end, and `tail` may begin, inside a character: what is left of it is dropped.
    return Cut(
        head=head.decode(errors="ignore"),
        tail=tail.decode(errors="ignore"),
        next_line=head.count(b"\n") + 1,
        lines=data.count(b"\n") + (not data.endswith(b"\n")),
        size=len(data),
    )


def cap_result(text: str, max_bytes: int, save: Callable[[str], str] | None) -> str:
    """`text`, or when it is longer than `max_bytes` its ends around a note that says where all of it is.

    `save` keeps the whole text and answers with its path; None when the model could not read it anyway.
    """
    if len(text.encode()) <= max_bytes:
        return text
    path = _saved(text, save)
    note_room = 300 + len(path.encode())
    ends = cut(text, max_bytes - note_room)
    assert ends is not None
    return f"{_ended(ends.head)}{_note(ends, path)}\n{ends.tail}"


def _saved(text: str, save: Callable[[str], str] | None) -> str:
    if save is None:
        return ""
    try:
        return save(text)
    except ToolError:
        return ""  # a full disk costs the middle of this result, not the result


def _note(ends: Cut, path: str) -> str:
    size = f"{format_size(ends.size)} in {ends.lines} {'line' if ends.lines == 1 else 'lines'}"
    if not path:
        return f"[The middle was left out. The whole result had {size} and was not kept.]"
    return (
        f"[The middle was left out. The whole result has {size} and is in {path}: "
        f'read_file("{path}", offset={ends.next_line}) goes on from here.]'
    )


def _ended(text: str) -> str:
    return text if text.endswith("\n") or not text else text + "\n"


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
                data = image_bytes(part) or b""
                picture = picture_part(data) if images < MAX_IMAGES and len(data) <= room else None
                if picture is None:
                    left_out += 1
                else:
                    images, room = images + 1, room - len(data)
                    kept.append(Image(picture.url, part.detail))
            case File(name=name, path=path, media_type=media_type):
                if files == MAX_FILES or len(name + path + media_type) > _MAX_FILE_CHARS:
                    left_out += 1
                else:
                    files += 1
                    kept.append(File(encodable(name), encodable(path), encodable(media_type), part.size))
    if left_out:
        images_are = f"up to {format_size(MAX_PICTURE_BYTES)} and {MAX_SIDE} pixels on each side"
        kept.append(
            Text(
                f"[{left_out} of its images and files cannot be shown. A result may have {MAX_IMAGES} images "
                f"(PNG, JPEG, GIF or WebP, {images_are}) and {MAX_FILES} files.]"
            )
        )
    return kept
