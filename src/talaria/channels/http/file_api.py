"""`/api/files`: files for messages to come, and files that turns sent."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO, Final
from urllib.parse import quote, unquote

from talaria.channels.http.part import HttpSettings
from talaria.channels.http.request import HttpError, Request, quoted
from talaria.channels.http.response import FileResponse, Response, json_response
from talaria.core.errors import NotFound, ToolError
from talaria.core.files import turn_of_file
from talaria.core.ids import ChatKey
from talaria.gateway import Gateway
from talaria.workspace.member_uploads import MemberUploads
from talaria.workspace.uploads import CopyChanged, Upload, no_such_file, open_copy, too_large

_INERT_TYPES: Final = frozenset(
    {
        "application/json",
        "application/octet-stream",
        "application/pdf",
        "application/zip",
        "image/gif",
        "image/jpeg",
        "image/png",
        "image/webp",
        "text/csv",
        "text/markdown",
        "text/plain",
    }
)  # what a browser that does not guess takes for neither a page, a script nor a style
_NOT_PLAIN: Final = re.compile(r'[^ -~]|["\\/]')
_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


class FileApi:
    def __init__(self, gateway: Gateway, settings: HttpSettings) -> None:
        self._gateway = gateway
        self._max_bytes = settings.max_file

    async def upload(self, request: Request) -> Response:
        """The body is the file; its name is `?name=`, or percent-encoded in `X-File-Name`."""
        media_type = request.header(b"content-type") or ""
        if media_type.lower().startswith("multipart/"):
            raise HttpError(
                "unsupported_media_type",
                "A form was sent where the file itself is expected.",
                "Send the file as the body: curl --data-binary @photo.jpg '…/api/files?name=photo.jpg'.",
            )
        if (encoding := request.header(b"content-encoding") or "identity").lower() != "identity":
            raise HttpError(
                "unsupported_media_type",
                f"A file is kept as it comes, and this one came with Content-Encoding {quoted(encoding)}.",
                "Send the file without Content-Encoding.",
            )
        if request.content_length > self._max_bytes:
            raise too_large(self._max_bytes)
        name = request.query().get("name") or unquote(request.header(b"x-file-name") or "")
        upload = await self._gateway.uploads.receive(
            name, media_type, request.chunks(), self._max_bytes, str(request.caller)
        )
        return json_response(upload, 201)

    async def show(self, request: Request) -> FileResponse:
        """The browser saves the file and never shows or runs it: a page or script that was uploaded or sent
        must not become one of ours. Types that a browser could run are not told."""
        file_id = request.params["id"]
        upload, file = await open_file(self._gateway, file_id, request.call.sees, request.caller.uploader)
        tag = f'"{file_id}"'
        headers = (
            (b"content-disposition", _disposition(upload.name)),
            (b"x-content-type-options", b"nosniff"),
            (b"content-security-policy", b"sandbox; default-src 'none'"),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"cache-control", b"private, no-cache"),
            (b"accept-ranges", b"bytes"),
            (b"etag", tag.encode()),
        )
        is_inert = upload.media_type in _INERT_TYPES
        media_type = (upload.media_type if is_inert else "application/octet-stream").encode()
        wanted = request.header(b"range") or ""
        if (request.header(b"if-range") or tag) != tag:
            wanted = ""
        try:
            part = find_range(wanted, upload.size)
        except ValueError:
            file.close()
            size = b"bytes */%d" % upload.size
            raise HttpError(
                "no_such_range",
                f"The file has {upload.size} bytes, so it has no part {wanted[:80]}.",
                "Ask for a part that begins within the file.",
                ((b"content-range", size),),
            ) from None
        return FileResponse(file, headers, media_type, part=part)


async def open_file(
    gateway: Gateway,
    file_id: str,
    sees: Callable[[ChatKey], bool],
    uploader: str | None,
    *,
    is_passed_on: bool = False,
) -> tuple[Upload, BinaryIO]:
    """Open an upload, or the copy of a file that a turn sent.

    Raises `NotFound`, also for a file of a chat that the caller may not see, and for an upload of another
    caller than `uploader`. Unless the call was passed on by another member of the cluster, files that other
    members have are fetched.
    """
    uploads = gateway.uploads
    routes = uploads.routes if isinstance(uploads, MemberUploads) else None
    turn_id = turn_of_file(file_id)
    if turn_id is None:
        if is_passed_on and isinstance(uploads, MemberUploads):
            return await uploads.open_here(file_id, uploader)
        return await uploads.open_file(file_id, uploader)
    record = await gateway.store.turn_record(turn_id)
    if record is None or not sees(record.turn.chat_key):
        raise no_such_file(file_id)
    sent = next((each for each in record.turn.files if each.id == file_id), None)
    if sent is None:
        raise no_such_file(file_id)
    try:
        file = await asyncio.to_thread(open_copy, gateway.chat_folder, record.turn.chat_key, sent)
    except CopyChanged as error:
        raise NotFound(error.user_text, error.hint) from None
    except ToolError:
        if routes is not None and not is_passed_on:
            with suppress(NotFound):
                return await routes.fetch(file_id, record.turn.chat_key)
        raise NotFound(
            f"The file {sent.name} was sent, and its copy is gone.",
            "Copies are kept as long as [retention] ledger says, the last hundred of a chat.",
        ) from None
    return Upload(sent.id, sent.name, sent.size, sent.type), file


def _disposition(name: str) -> bytes:
    """Return the header that names the saved file. Clients such as curl read only `filename`, in ASCII; the
    others prefer `filename*`, which has the whole name."""
    plain = _NOT_PLAIN.sub("_", name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}".encode()


def find_range(wanted: str, size: int) -> tuple[int, int] | None:
    """Return the first byte and the length that a `Range` header asks for; None for the whole file.

    A header that is malformed or asks for several parts is ignored. Raises ValueError for a part that is not
    in the file.
    """
    match = _RANGE.fullmatch(wanted.strip())
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        length = min(int(match[2]), size)
        start = size - length
    else:
        start = int(match[1])
        if match[2] and int(match[2]) < start:
            return None
        length = min(int(match[2]) + 1 if match[2] else size, size) - start
    if length <= 0:
        raise ValueError(wanted)
    return start, length
