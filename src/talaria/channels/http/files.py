"""`/api/files`: attachments, uploaded ahead of the message that names them."""

from __future__ import annotations

from urllib.parse import quote, unquote

from talaria.channels.http.answers import Answer, Reply, json_answer
from talaria.channels.http.calls import Call
from talaria.channels.http.errors import Refused
from talaria.channels.http.parts import HttpParts
from talaria.workspace.uploads import too_large


class FileRoutes:
    def __init__(self, parts: HttpParts) -> None:
        self._uploads = parts.uploads

    async def upload(self, call: Call) -> Reply:
        """The body is the file; its name comes as `?name=` or percent-encoded in `X-File-Name`."""
        media_type = call.header(b"content-type") or ""
        if media_type.lower().startswith("multipart/"):
            raise Refused(
                415,
                "unsupported_media_type",
                "A form was sent where the file itself is expected.",
                "Send the file as the body: curl --data-binary @photo.jpg '…/api/files?name=photo.jpg'.",
            )
        if call.length > self._uploads.max_bytes:
            raise too_large(self._uploads.max_bytes)
        name = call.query().get("name") or unquote(call.header(b"x-file-name") or "")
        return json_answer(await self._uploads.receive(name, media_type, call.pieces()), 201)

    async def show(self, call: Call) -> Reply:
        """To be saved, never to be shown: a page that someone uploaded must not run as one of ours."""
        upload, data = await self._uploads.open(call.path("id"))
        headers = (
            (b"content-disposition", f"attachment; filename*=UTF-8''{quote(upload.name, safe='')}".encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"content-security-policy", b"sandbox; default-src 'none'"),
        )
        return Answer(data, headers=headers, media_type=upload.media_type.encode())
