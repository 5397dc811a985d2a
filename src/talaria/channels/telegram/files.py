"""Files that people send: fetched within limits into the chat's folder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from talaria.channels.telegram.client import BotApi, BotApiError, TooLarge
from talaria.channels.telegram.parse import Attachment, Heard
from talaria.channels.telegram.wire import RemoteFile
from talaria.core.errors import ToolError
from talaria.core.ids import ChatKey
from talaria.core.messages import File, Part, Text
from talaria.core.units import format_size
from talaria.workspace.uploads import INBOX, put_file

_log = logging.getLogger("talaria.telegram")

MAX_DOWNLOAD = 20 << 20  # Telegram hands no more out to bots
_AT_ONCE = 3


class FileFetcher:
    """`folder_of` is where a chat's files are."""

    def __init__(self, api: BotApi, folder_of: Callable[[ChatKey], Path]) -> None:
        self._api = api
        self._folder_of = folder_of
        self._turnstile = asyncio.Semaphore(_AT_ONCE)  # files are held whole, so only a few of them

    async def parts(self, key: ChatKey, heard: Iterable[Heard]) -> tuple[Part, ...]:
        """All files of the messages. One that cannot be had is a line of text that says so."""
        found: list[Part] = []
        for message in heard:
            for file in message.files:
                found += await self._fetch(key, message.message_id, file)
        return tuple(found)

    async def _fetch(self, key: ChatKey, message_id: int, file: Attachment) -> list[Part]:
        if (file.size or 0) > MAX_DOWNLOAD:
            return [_missing(file, f"it has {format_size(file.size or 0)}, and Telegram gives bots 20 MB")]
        try:
            async with self._turnstile:
                found = await self._api.call("getFile", RemoteFile, file_id=file.file_id)
                data = await self._api.download(found.file_path, MAX_DOWNLOAD)
                # The name is the same each time the update comes, so a second fetch replaces the first.
                path = f"{INBOX}/{message_id}-{file.name}"
                part = File(file.name, path, file.media_type, len(data))
                return await asyncio.to_thread(put_file, self._folder_of(key), part, data)
        except TooLarge:
            return [_missing(file, "it is larger than 20 MB")]
        except BotApiError as error:
            _log.warning("a file could not be fetched: %s", error.user_text)
            return [_missing(file, "Telegram did not hand it out")]
        except ToolError as error:
            _log.warning("a file could not be written: %s", error.user_text)
            return [_missing(file, "it could not be written here")]


def _missing(file: Attachment, why: str) -> Text:
    return Text(f"[The file {file.name} is not here: {why}.]")
