"""A message with a key is hashed, so that the same key with other content is noticed."""

from __future__ import annotations

import hashlib
import time

import msgspec

from talaria.core.messages import Image, Text
from talaria.turns import intake


async def test_the_loop_does_not_hash_pictures() -> None:
    parts = (Text("look"), *[Image("data:image/png;base64," + "A" * (5 << 20))] * 8)
    began = time.thread_time()
    data = msgspec.json.encode((parts, None))
    encoded = time.thread_time()
    digest = hashlib.sha256(data).hexdigest()
    hashed = time.thread_time()
    assert await intake._digest(parts, None) == digest
    assert time.thread_time() - hashed < (encoded - began) * 2 + (hashed - encoded) / 2
