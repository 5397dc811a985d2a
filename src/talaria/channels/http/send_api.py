"""`POST /api/send`: a message to a chat, outside of its turns."""

from __future__ import annotations

import msgspec

from talaria.channels.http.request import Request
from talaria.channels.http.response import Response, json_response
from talaria.channels.http.settings import HttpSettings
from talaria.core.errors import BadRequest, ToolError
from talaria.core.ids import TurnId
from talaria.core.messages import File
from talaria.core.sending import ChatMessage
from talaria.gateway import Gateway


class SendBody(msgspec.Struct, forbid_unknown_fields=True):
    """`chat` is a chat's key, or the name or the id of a session. `files` are ids of uploads."""

    chat: str
    text: str = ""
    files: list[str] = []


class SentView(msgspec.Struct, frozen=True):
    id: TurnId


class SendApi:
    def __init__(self, gateway: Gateway, settings: HttpSettings) -> None:
        self._gateway = gateway
        self._max_body = settings.max_body

    async def send(self, request: Request) -> Response:
        """Answer 202 once the message is on disk. With the same `Idempotency-Key` it is the same message."""
        key, body = request.idempotency_key(), await request.json(SendBody, self._max_body)
        sender = self._gateway.sender
        chat = await sender.find_chat(body.chat)
        request.call.about = chat
        uploads, uploader = self._gateway.uploads, request.caller.uploader
        parts = await uploads.parts(chat, body.files, uploader) if body.files else ()
        files = tuple(part.path for part in parts if isinstance(part, File))
        try:
            sent = await sender.send(ChatMessage(chat, body.text, request.caller.sender, files, key))
        except ToolError as error:  # a file that must not be sent
            raise BadRequest(error.user_text, error.hint) from error
        return json_response(SentView(sent.turn.id), 202)
