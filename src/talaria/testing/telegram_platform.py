"""Telegram without HTTP: users, chats, messages and updates, and the rules that the Bot API enforces."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from talaria.testing.telegram_text import (
    ParseError,
    TextEntity,
    found_entities,
    found_links,
    parse,
    utf16_length,
)

Json = dict[str, Any]
Files = Mapping[str, tuple[str, bytes]]  # file name and content, by form field

BOT_ID = 4200
BOT_NAME = "talaria_bot"
MAX_TEXT, MAX_CAPTION, MAX_DATA, MAX_DOWNLOAD = 4096, 1024, 64, 20 << 20
_ANONYMOUS_ADMIN = 1087968824
_UNMODIFIED = (
    "message is not modified: specified new message content and reply markup are exactly the same "
    "as a current content and reply markup of the message"
)
_HIDDEN_BY_DEFAULT = frozenset({"chat_member", "message_reaction", "message_reaction_count"})


class TelegramRefusal(Exception):
    """A call is answered with `ok: false`."""

    def __init__(self, code: int, description: str, **parameters: int) -> None:
        super().__init__(description)
        self.code = code
        self.description = description
        self.parameters = parameters


def bad_request(description: str) -> TelegramRefusal:
    return TelegramRefusal(400, f"Bad Request: {description}")


@dataclass(slots=True)
class ShownMessage:
    """A message as the users of a chat see it now."""

    id: int
    text: str
    by_bot: bool
    edits: int = 0
    buttons: tuple[tuple[str, str], ...] = ()
    file: bytes | None = None
    file_name: str = ""
    entities: tuple[TextEntity, ...] = ()
    thread: int | None = None
    reply_to: int | None = None
    raw: Json = field(default_factory=dict)

    @property
    def links(self) -> list[str]:
        """The addresses that users can click."""
        return found_links(self.text, self.entities)


@dataclass(slots=True)
class PlatformChat:
    id: int
    kind: str
    title: str = ""
    is_forum: bool = False
    is_blocked: bool = False
    moved_to: int | None = None
    messages: dict[int, ShownMessage] = field(default_factory=dict)
    actions: list[str] = field(default_factory=list)
    last_id: int = 0

    def json(self) -> Json:
        fields: Json = {"id": self.id, "type": self.kind}
        fields |= {"title": self.title} if self.title else {}
        return fields | ({"is_forum": True} if self.is_forum else {})

    @property
    def replies(self) -> list[str]:
        """The texts of the bot's messages, oldest first."""
        return [shown.text for shown in self.messages.values() if shown.by_bot]


@dataclass(frozen=True, slots=True)
class TelegramUser:
    """A person on Telegram. Each method does what a client app would do."""

    platform: TelegramPlatform
    id: int
    first_name: str = "Ada"
    username: str = ""

    def json(self) -> Json:
        fields: Json = {"id": self.id, "is_bot": False, "first_name": self.first_name}
        return fields | ({"username": self.username} if self.username else {})

    def says(self, text: str, chat: PlatformChat | None = None, **more: Any) -> Json:
        entities = msgspec.to_builtins(found_entities(text))
        body = {"text": text} | ({"entities": entities} if entities else {})
        return self.platform.arrive(self, chat, body | more)

    def edits(self, message: Json, text: str) -> Json:
        edited = message | {"text": text, "edit_date": int(time.time()) + 1}
        self.platform.push("edited_message", edited)
        return edited

    def presses(self, shown: ShownMessage, label: str, chat: PlatformChat | None = None) -> str:
        data = dict(shown.buttons)[label]
        query_id = f"query-{len(self.platform.queries) + 1}"
        self.platform.queries[query_id] = None
        place = chat or self.platform.private(self)
        message = {"message_id": shown.id, "date": 1, "chat": place.json(), "text": shown.text}
        query = {"id": query_id, "from": self.json(), "message": message | shown.raw, "data": data}
        self.platform.push("callback_query", query | {"chat_instance": "1"})
        return query_id

    def sends(
        self, kind: str, data: bytes, chat: PlatformChat | None = None, *, name: str = "", **more: Any
    ) -> Json:
        """Send a photo, document or voice message. `more` are fields such as `caption`."""
        file = self.platform.keep(data, name)
        fields: Json = {"file_id": file, "file_unique_id": f"u{file}", "file_size": len(data)}
        match kind:
            case "photo":
                small = fields | {"file_id": self.platform.keep(b"small", ""), "width": 90, "height": 90}
                body: Json = {"photo": [small, fields | {"width": 800, "height": 600}]}
            case "voice":
                body = {"voice": fields | {"duration": 3, "mime_type": "audio/ogg"}}
            case _:
                body = {kind: fields | {"file_name": name, "mime_type": more.pop("mime_type", "text/plain")}}
        return self.platform.arrive(self, chat, body | more)

    def forwards(self, text: str, chat: PlatformChat | None = None) -> Json:
        origin = {"type": "hidden_user", "sender_user_name": "Someone", "date": 1}
        return self.says(text, chat, forward_origin=origin)

    def joins(self, chat: PlatformChat) -> Json:
        return self.platform.arrive(self, chat, {"new_chat_members": [self.json()]})


class TelegramPlatform:
    """The platform of one bot. `queue` holds the updates that the bot has not confirmed."""

    def __init__(self) -> None:
        self.chats: dict[int, PlatformChat] = {}
        self.queries: dict[str, str | None] = {}
        self.files: dict[str, tuple[str, bytes]] = {}
        self.commands: list[Json] = []
        self.queue: deque[Json] = deque()
        self.repeated: list[Json] = []  # delivered again, regardless of the offset
        self.previews: list[str] = []  # links that Telegram fetched to show a preview
        self.is_shuffled = False
        self.allowed: frozenset[str] | None = None
        self.on_update: Callable[[], None] = lambda: None
        self._last_update = 1000
        self._methods: dict[str, Callable[[Json], Any]] = {
            "getme": lambda params: self.me(),
            "sendmessage": lambda params: self._post(params, "text", MAX_TEXT, {}),
            "editmessagetext": self._edit,
            "sendchataction": self._act,
            "getfile": self._get_file,
            "answercallbackquery": self._answer_query,
            "setmycommands": self._set_commands,
        }

    # -- users and chats ------------------------------------------------------------------------------------

    def me(self) -> Json:
        return {"id": BOT_ID, "is_bot": True, "first_name": "Talaria", "username": BOT_NAME}

    def person(self, id: int, first_name: str = "Ada", username: str = "") -> TelegramUser:
        return TelegramUser(self, id, first_name, username)

    def private(self, person: TelegramUser) -> PlatformChat:
        return self.chats.setdefault(person.id, PlatformChat(person.id, "private"))

    def group(
        self, id: int, title: str = "Group", *, kind: str = "supergroup", is_forum: bool = False
    ) -> PlatformChat:
        return self.chats.setdefault(id, PlatformChat(id, kind, title, is_forum))

    # -- updates --------------------------------------------------------------------------------------------

    def push(self, kind: str, body: Json) -> Json:
        self._last_update += 1
        update = {"update_id": self._last_update, kind: body}
        is_wanted = kind not in _HIDDEN_BY_DEFAULT if self.allowed is None else kind in self.allowed
        if is_wanted:
            self.queue.append(update)
            self.on_update()
        return update

    def arrive(
        self, sender: TelegramUser | None, chat: PlatformChat | None, body: Json, kind: str = "message"
    ) -> Json:
        """Add a message to a chat, by default the sender's private chat, and push its update."""
        place = chat or self.private(sender)  # type: ignore[arg-type]
        place.last_id += 1
        message: Json = {"message_id": place.last_id, "date": int(time.time()), "chat": place.json()}
        message |= {"from": sender.json()} if sender else {}
        message |= body
        text = str(body.get("text", body.get("caption", "")))
        place.messages[place.last_id] = ShownMessage(place.last_id, text, by_bot=False, raw=message)
        self.push(kind, message)
        return message

    def posts_in_channel(self, chat: PlatformChat, text: str) -> Json:
        return self.arrive(None, chat, {"text": text, "sender_chat": chat.json()}, "channel_post")

    def anonymous_admin_says(self, chat: PlatformChat, text: str) -> Json:
        admin = TelegramUser(self, _ANONYMOUS_ADMIN, "Group", "GroupAnonymousBot")
        return admin.says(text, chat, sender_chat=chat.json())

    def migrate(self, chat: PlatformChat, new_id: int) -> PlatformChat:
        """Turn a group into a supergroup. Both get a service message, and the old id is refused."""
        new = self.group(new_id, chat.title)
        self.arrive(None, chat, {"migrate_to_chat_id": new_id})
        self.arrive(None, new, {"migrate_from_chat_id": chat.id})
        chat.moved_to = new_id
        return new

    def keep(self, data: bytes, name: str) -> str:
        file_id = f"file{len(self.files) + 1}"
        self.files[file_id] = (name or f"{file_id}.bin", data)
        return file_id

    def confirm(self, offset: int) -> None:
        while self.queue and self.queue[0]["update_id"] < offset:
            self.queue.popleft()

    def batch(self, limit: int) -> list[Json]:
        batch = self.repeated + list(self.queue)[:limit]
        self.repeated = []
        return batch[::-1] if self.is_shuffled else batch

    # -- calls of the bot -----------------------------------------------------------------------------------

    def call(self, method: str, params: Json, files: Files) -> Any:
        """Carry out a call of the bot. `method` is in lower case. Raises `TelegramRefusal`."""
        kind = method.removeprefix("send")
        if kind in ("photo", "document", "voice"):
            return self._send_file(kind, params, files)
        run = self._methods.get(method)
        if run is None:
            raise TelegramRefusal(404, "Not Found: method not found")
        return run(params)

    def _send_file(self, kind: str, params: Json, files: Files) -> Json:
        given = files.get(kind)
        if given is None:
            raise bad_request(f"there is no {kind} in the request")
        if not given[1]:
            raise bad_request("file must be non-empty")
        file_id = self.keep(given[1], given[0])
        fields = {"file_id": file_id, "file_size": len(given[1])}
        body = {kind: [fields] if kind == "photo" else fields | {"file_name": given[0]}}
        answer = self._post(params, "caption", MAX_CAPTION, body)
        shown = self.chats[answer["chat"]["id"]].messages[answer["message_id"]]
        shown.file, shown.file_name = given[1], given[0]
        return answer

    def _post(self, params: Json, key: str, limit: int, body: Json) -> Json:
        chat = self._writable(params)
        text, entities = self._text(params, key, limit)
        buttons = _buttons(params)
        if key == "text":
            self._preview(params, text, entities)
        thread = params.get("message_thread_id")
        if thread is not None and not chat.is_forum:
            raise bad_request("message thread not found")
        reply = params.get("reply_parameters") or {}
        reply_to = reply.get("message_id", params.get("reply_to_message_id"))
        if reply_to is not None and int(reply_to) not in chat.messages:
            if not reply.get("allow_sending_without_reply"):
                raise bad_request("message to be replied not found")
            reply_to = None
        chat.last_id += 1
        message: Json = {"message_id": chat.last_id, "date": int(time.time()), "chat": chat.json()}
        message |= {"from": self.me(), **({key: text} if text else {}), **body}
        message |= {"message_thread_id": int(thread)} if thread is not None else {}
        if params.get("reply_markup"):
            message["reply_markup"] = params["reply_markup"]
        chat.messages[chat.last_id] = ShownMessage(
            chat.last_id,
            text,
            by_bot=True,
            buttons=buttons,
            entities=tuple(entities),
            thread=int(thread) if thread is not None else None,
            reply_to=int(reply_to) if reply_to is not None else None,
            raw=message,
        )
        return message

    def _edit(self, params: Json) -> Json:
        chat = self._writable(params)
        shown = chat.messages.get(int(params.get("message_id", 0)))
        if shown is None:
            raise bad_request("message to edit not found")
        if not shown.by_bot:
            raise bad_request("message can't be edited")
        text, entities = self._text(params, "text", MAX_TEXT, is_edit=True)
        buttons = _buttons(params)
        self._preview(params, text, entities)
        if (text, tuple(entities), buttons) == (shown.text, shown.entities, shown.buttons):
            raise bad_request(_UNMODIFIED)
        shown.text, shown.entities, shown.buttons = text, tuple(entities), buttons
        shown.edits += 1
        shown.raw = shown.raw | {"text": text, "reply_markup": params.get("reply_markup") or {}}
        return shown.raw

    def _preview(self, params: Json, text: str, entities: list[TextEntity]) -> None:
        if not (params.get("link_preview_options") or {}).get("is_disabled"):
            self.previews += found_links(text, entities)[:1]

    def _act(self, params: Json) -> bool:
        if params.get("action") not in ("typing", "upload_photo", "upload_document", "record_voice"):
            raise bad_request("wrong parameter action in request")
        self._writable(params).actions.append(params["action"])
        return True

    def _get_file(self, params: Json) -> Json:
        file_id = str(params.get("file_id"))
        if file_id not in self.files:
            raise bad_request("wrong file_id or the file is temporarily unavailable")
        size = len(self.files[file_id][1])
        if size > MAX_DOWNLOAD:
            raise bad_request("file is too big")
        return {"file_id": file_id, "file_unique_id": f"u{file_id}", "file_size": size, "file_path": file_id}

    def _answer_query(self, params: Json) -> bool:
        query_id = str(params.get("callback_query_id"))
        if self.queries.get(query_id, "answered") is not None:
            raise bad_request("query is too old and response timeout expired or query ID is invalid")
        self.queries[query_id] = str(params.get("text", ""))
        return True

    def _set_commands(self, params: Json) -> bool:
        commands = params.get("commands") or []
        for command in commands:
            name = str(command.get("command", ""))
            if not (0 < len(name) <= 32 and name.replace("_", "").isalnum() and name == name.lower()):
                raise bad_request("BOT_COMMAND_INVALID")
            if not 0 < len(str(command.get("description", ""))) <= 256:
                raise bad_request("BOT_COMMAND_DESCRIPTION_INVALID")
        self.commands = commands
        return True

    # -- rules ----------------------------------------------------------------------------------------------

    def _writable(self, params: Json) -> PlatformChat:
        try:
            chat = self.chats.get(int(params.get("chat_id", 0)))
        except (TypeError, ValueError):
            chat = None
        if chat is None:
            raise bad_request("chat not found")
        if chat.moved_to is not None:
            text = "Bad Request: group chat was upgraded to a supergroup chat"
            raise TelegramRefusal(400, text, migrate_to_chat_id=chat.moved_to)
        if chat.is_blocked:
            is_private = chat.kind == "private"
            who = "blocked by the user" if is_private else f"kicked from the {chat.kind} chat"
            raise TelegramRefusal(403, f"Forbidden: bot was {who}")
        return chat

    def _text(
        self, params: Json, key: str, limit: int, *, is_edit: bool = False
    ) -> tuple[str, list[TextEntity]]:
        try:
            text, entities = parse(str(params.get(key, "")), str(params.get("parse_mode") or ""))
            given = params.get("entities" if key == "text" else "caption_entities") or []
            entities += msgspec.convert(given, list[TextEntity])
        except ParseError as error:
            raise bad_request(f"can't parse entities: {error}") from None
        text = text.strip()
        if not text and key == "text":
            raise bad_request("message text is empty")
        if utf16_length(text) > limit:
            what = "message caption is too long" if key == "caption" else "message is too long"
            raise bad_request("MESSAGE_TOO_LONG" if is_edit else what)
        return text, entities


def _buttons(params: Json) -> tuple[tuple[str, str], ...]:
    rows = (params.get("reply_markup") or {}).get("inline_keyboard") or []
    buttons = tuple((str(one["text"]), str(one.get("callback_data", ""))) for row in rows for one in row)
    if any(not 0 < len(data.encode()) <= MAX_DATA for _, data in buttons):
        raise bad_request("BUTTON_DATA_INVALID")
    return buttons
