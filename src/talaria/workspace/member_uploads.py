"""Uploads and files of chats in a cluster without a shared folder: they are where the chat is, in one hop.

A message may be accepted by a member that does not run its turn: a file that comes with it is put where the
chat's files are. An upload may be at another member than the message that names it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import quote, unquote

import msgspec

from talaria.cluster.following import PeerClient, PeerUnreachable
from talaria.core.clock import Clock
from talaria.core.cluster import Here, Member
from talaria.core.errors import NotFound, StoreError, ToolError
from talaria.core.ids import ChatKey, asking_chat
from talaria.core.messages import File, Part, Text
from talaria.core.slots import FairThreads
from talaria.core.tools import MAX_SENT_BYTES
from talaria.store.store import ClusterStore
from talaria.workspace.quota import FolderQuota
from talaria.workspace.uploads import (
    Upload,
    Uploads,
    UploadTooLarge,
    check_count,
    explained,
    is_upload_id,
    no_such_file,
)

FILES_PATH: Final = "/cluster/files"
NAME_HEADER: Final = "x-file-name"
CALLER: Final = "caller"  # the parameter with the caller whose upload it must be
_parts: msgspec.json.Decoder[list[Part]] = msgspec.json.Decoder(list[Part])
_kept: msgspec.json.Decoder[tuple[Text, File]] = msgspec.json.Decoder(tuple[Text, File])


@dataclass(slots=True, eq=False)
class ChatFileRoutes:
    """Where the files of chats are, and the calls that bring them there and back. `claim` notes that files of
    a chat are here, and raises `ToolError` if they are elsewhere."""

    _store: ClusterStore
    _peers: PeerClient
    _here: Here
    _clock: Clock
    claim: Callable[[ChatKey], Awaitable[None]]

    async def holder(self, key: ChatKey) -> Member | None:
        """Return the other member that has the chat's files, None if they are here or everywhere. Raises
        `StoreError`."""
        if self._here.has_shared_files:
            return None
        member = await self._store.member_of(asking_chat(key))
        return None if member is None or member.owner == self._here.owner else member

    async def find(self, key: ChatKey) -> Member | None:
        """Return what `holder` does. If the files are here, note it. Raises `StoreError`, and `ToolError` if
        nobody can reach them now."""
        if (member := await self.holder(key)) is None:
            await self.claim(key)
        return member

    async def put(self, member: Member, key: ChatKey, name: str, media_type: str, data: bytes) -> list[Part]:
        query = {"chat": key, "name": name, "type": media_type}
        return _parts.decode(await self._send(member, query, data))

    async def keep(
        self, member: Member, key: ChatKey, name: str, text: str, shown_bytes: int
    ) -> tuple[Text, File]:
        query = {"chat": key, "name": name, "shown": str(shown_bytes)}
        return _kept.decode(await self._send(member, query, text.encode(errors="replace")))

    async def _send(self, member: Member, query: dict[str, str], data: bytes) -> bytes:
        try:
            async with self._peers.call(
                member, "POST", FILES_PATH, "chat", params=query, data=data
            ) as response:
                return await response.read()
        except PeerUnreachable as error:
            if error.status == 413:
                raise UploadTooLarge(error.user_text, error.hint) from None
            raise StoreError(
                f"The file cannot be put where the chat's files are: {error.user_text}", error.hint
            ) from None

    async def read(self, key: ChatKey, path: str) -> bytes | None:
        """Return a file of a chat that another member has; None if this one does. Raises `ToolError`."""
        try:
            member = await self.holder(key)
            if member is None:
                return None
            query = {"chat": key, "path": path}
            async with self._peers.call(member, "GET", FILES_PATH, "operate", params=query) as response:
                data = bytearray()
                async for piece in response.pieces():
                    data += piece
                    if len(data) > MAX_SENT_BYTES:
                        break
        except (PeerUnreachable, StoreError) as error:
            raise ToolError(f"The file is on another machine: {error.user_text}", error.hint) from None
        return bytes(data)

    async def fetch(
        self, file_id: str, key: ChatKey | None = None, caller: str | None = None
    ) -> tuple[Upload, BinaryIO]:
        """Return a file that another member has, as a temporary file that the caller closes: the copy of a
        file that was sent in the chat `key`, or an upload of `caller`. Raises `NotFound` and `StoreError`."""
        if key is not None:
            holder = await self.holder(key)
            members = [] if holder is None else [holder]
        else:
            now = self._clock.now()
            others = [each for each in await self._store.members() if each.owner != self._here.owner]
            members = [each for each in others if each.url and each.is_alive(now)]
        for member in members:
            try:
                return await self._fetch_from(member, file_id, caller)
            except PeerUnreachable as error:
                if error.status != 404 and len(members) == 1:
                    raise StoreError(
                        f"The file is on another machine: {error.user_text}", error.hint
                    ) from None
        raise no_such_file(file_id)

    async def _fetch_from(self, member: Member, file_id: str, caller: str | None) -> tuple[Upload, BinaryIO]:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
        try:
            path = f"{FILES_PATH}/{quote(file_id, safe='')}"
            query = {} if caller is None else {CALLER: caller}
            async with self._peers.call(member, "GET", path, "operate", params=query) as response:
                async for piece in response.pieces():
                    file.write(piece)
                name = unquote(response.headers.get(NAME_HEADER, ""))
                upload = Upload(file_id, name, file.tell(), response.headers.get("content-type", ""))
        except BaseException:
            file.close()
            raise
        file.seek(0)
        return upload, file


class MemberUploads(Uploads):
    """The uploads of a member of a cluster. The methods of `Uploads` look at other members too; those of
    which the name ends in `here` do not."""

    def __init__(
        self,
        files: Path,
        folder_of: Callable[[ChatKey], Path],
        clock: Clock,
        threads: FairThreads | None = None,
        quota: FolderQuota | None = None,
        *,
        routes: ChatFileRoutes,
    ) -> None:
        super().__init__(files, folder_of, clock, threads, quota)
        self.routes = routes

    async def put(self, key: ChatKey, name: str, media_type: str, data: bytes) -> list[Part]:
        try:
            if (member := await self.routes.find(key)) is None:
                return await self.put_here(key, name, media_type, data)
            return await self.routes.put(member, key, name, media_type, data)
        except StoreError as error:
            raise ToolError(error.user_text, error.hint) from None

    async def put_here(self, key: ChatKey, name: str, media_type: str, data: bytes) -> list[Part]:
        return await super().put(key, name, media_type, data)

    async def keep_message(self, key: ChatKey, name: str, text: str, shown_bytes: int) -> tuple[Text, File]:
        with explained("The message is too long to be shown whole, and it"):
            member = await self.routes.find(key)
        if member is None:
            return await self.keep_here(key, name, text, shown_bytes)
        return await self.routes.keep(member, key, name, text, shown_bytes)

    async def keep_here(self, key: ChatKey, name: str, text: str, shown_bytes: int) -> tuple[Text, File]:
        return await super().keep_message(key, name, text, shown_bytes)

    async def open_file(self, upload_id: str, caller: str | None = None) -> tuple[Upload, BinaryIO]:
        try:
            return await self.open_here(upload_id, caller)
        except NotFound:
            if not is_upload_id(upload_id):  # another text could lead to another call, or to a sent file
                raise
            return await self.routes.fetch(upload_id, caller=caller)

    async def open_here(self, upload_id: str, caller: str | None = None) -> tuple[Upload, BinaryIO]:
        return await super().open_file(upload_id, caller)

    async def parts(self, key: ChatKey, ids: Sequence[str], caller: str | None = None) -> tuple[Part, ...]:
        check_count(ids)
        with explained("The file"):
            member = await self.routes.find(key)
        found: list[Part] = []
        for upload_id in dict.fromkeys(ids):
            if member is None:
                try:
                    found += await super().parts(key, (upload_id,), caller)
                    continue
                except NotFound:
                    pass
            upload, file = await self.open_file(upload_id, caller)
            with file:
                data = file.read()
            with explained(upload.name):
                if member is None:
                    found += await self.put_here(key, upload.name, upload.media_type, data)
                else:
                    found += await self.routes.put(member, key, upload.name, upload.media_type, data)
        return tuple(found)
