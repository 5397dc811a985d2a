"""A message with a key is hashed, so that the same key with other content is noticed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec

from talaria.core.messages import Image, Text
from talaria.turns import intake


class CountingThreads(ThreadPoolExecutor):
    calls = 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        self.calls += 1
        return super().submit(function, *args, **more)


async def test_pictures_are_hashed_in_a_thread_and_short_texts_on_the_loop() -> None:
    threads = CountingThreads(1)
    asyncio.get_running_loop().set_default_executor(threads)
    parts = (Text("look"), Image("data:image/png;base64," + "A" * (5 << 20)))
    for given, calls in (((Text("look"),), 0), (parts, 1)):
        assert (
            await intake._digest(given, None)
            == hashlib.sha256(msgspec.json.encode((given, None))).hexdigest()
        )
        assert threads.calls == calls
