"""The smallest picture of each format that models accept."""

from __future__ import annotations

import struct
import zlib


def png(width: int = 1, height: int = 1) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(b"\0\0\0\0")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def jpeg(width: int = 1, height: int = 1, comment: bytes = b"") -> bytes:
    about = b"\xff\xfe" + struct.pack(">H", len(comment) + 2) + comment
    frame = b"\xff\xc0\x00\x0b\x08" + struct.pack(">HH", height, width) + b"\x01\x01\x11\x00"
    return b"\xff\xd8" + about + frame + b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00\x00\xff\xd9"


def gif(width: int = 1, height: int = 1) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\x00\x00\x00;"


def webp(width: int = 1, height: int = 1) -> bytes:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBPVP8X" + struct.pack("<I", 10) + b"\0\0\0\0" + sides
    return b"RIFF" + struct.pack("<I", len(body)) + body


def lossless_webp(width: int = 1, height: int = 1) -> bytes:
    sides = struct.pack("<I", (width - 1) | (height - 1) << 14)
    return b"RIFF" + struct.pack("<I", 17) + b"WEBPVP8L" + struct.pack("<I", 5) + b"\x2f" + sides


def lossy_webp(width: int = 1, height: int = 1) -> bytes:
    frame = b"\x00\x00\x00\x9d\x01\x2a" + struct.pack("<HH", width, height)
    return b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8 " + struct.pack("<I", 10) + frame
