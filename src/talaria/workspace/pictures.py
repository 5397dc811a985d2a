"""Which files are pictures that models take: by their first bytes, never by their name.

A picture that a provider refuses would be refused with every later request of its session. So a model is
shown only what all providers take: by kind, by bytes (5 MiB once written as base64) and by pixels.
"""

from __future__ import annotations

import base64
import re
import struct

import msgspec

from talaria.core.messages import Image

MAX_PICTURE_BYTES = 5 * (1 << 20) // 4 * 3
MAX_SIDE = 8000
_SOI, _SOS = 0xD8, 0xDA
_MAX_SEGMENTS = 4096  # and bytes of padding
_DATA_URL = re.compile(r"data:image/[\w.+-]+;base64,", re.IGNORECASE)
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


class Picture(msgspec.Struct, frozen=True):
    media_type: str
    width: int
    height: int


def look_at(data: bytes) -> Picture | None:
    """Return what the first bytes of a file say about the picture in it; None if they are not those of a PNG,
    GIF, WebP or JPEG."""
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
            return Picture("image/png", *struct.unpack(">II", data[16:24]))
        if data.startswith((b"GIF87a", b"GIF89a")):
            return Picture("image/gif", *struct.unpack("<HH", data[6:10]))
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return _webp(data)
        if data.startswith(b"\xff\xd8\xff"):
            return _jpeg(data)
    except struct.error:
        pass
    return None


def image_bytes(image: Image) -> bytes | None:
    """Return the bytes of an image that is a `data:` URL; None for any other, and for one that is too long to
    be shown."""
    head = _DATA_URL.match(image.url)
    if head is None or len(image.url) > 2 * MAX_PICTURE_BYTES:
        return None
    try:
        return base64.b64decode(image.url[head.end() :], validate=True)
    except ValueError:
        return None


def picture_part(data: bytes) -> Image | None:
    """Return the picture as models are shown it; None if `data` is no picture or one that is too large."""
    if len(data) > MAX_PICTURE_BYTES or (picture := look_at(data)) is None:
        return None
    if not (0 < picture.width <= MAX_SIDE and 0 < picture.height <= MAX_SIDE):
        return None
    return Image(f"data:{picture.media_type};base64,{base64.b64encode(data).decode()}")


def _webp(data: bytes) -> Picture | None:
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    elif kind == b"VP8L":
        (bits,) = struct.unpack("<I", data[21:25])
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 ":
        width, height = (side & 0x3FFF for side in struct.unpack("<HH", data[26:30]))
    else:
        return None
    return Picture("image/webp", width, height)


def _jpeg(data: bytes) -> Picture | None:
    # The size is in a frame segment, which may stand behind large ones.
    at = 2
    for _ in range(_MAX_SEGMENTS):
        if at + 9 >= len(data) or data[at] != 0xFF:
            break
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
        elif marker in _FRAMES:
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return Picture("image/jpeg", width, height)
        elif marker in (_SOS, _SOI):
            return None
        else:
            at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
    return None
