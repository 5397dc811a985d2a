"""The parts of a result that a model gets: texts, and a limited number of images and files."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET

from talaria.core.messages import File, Image, Part, Text
from talaria.core.units import format_size
from talaria.workspace.pictures import MAX_PICTURE_BYTES, MAX_SIDE, image_bytes, picture_part

MAX_IMAGES = 8
MAX_FILES = 20
_MAX_FILE_CHARS = 5000


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
