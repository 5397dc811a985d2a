"""What a Bot API server knows and decides, without HTTP: people, chats, messages, updates and the rules."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from talaria.testing.telegram_text import Entity, ParseError, found_entities, parse, utf16_length

Json = dict[str, Any]
Files = Mapping[str, tuple[str, bytes]]  # name and content, by the field of a form

BOT_ID = 4200
BOT_NAME = "talaria_bot"
MAX_TEXT, MAX_CAPTION, MAX_DATA, MAX_DOWNLOAD = 4096, 1024, 64, 20 << 20
_ANONYMOUS_ADMIN = 1087968824
_UNMODIFIED = (
    "message is not modified: specified new message content and reply markup are exactly the same "
    "as a current content and reply markup of the message"
)
_HIDDEN_BY_DEFAULT = frozenset({"chat_member", "message_reaction", "message_reaction_count"})


class Refusal(Exception):
    """An answer with `ok: false`."""

    def __init__(self, code: int, description: str, **parameters: int) -> None:
        super().__init__(description)
        self.code = code
        self.description = description
        self.parameters = parameters


def bad(description: str) -> Refusal:
    return Refusal(400, f"Bad Request: {description}")


@dataclass(slots=True)
class Shown:
    """One message as the people of a chat see it now."""

    id: int
    text: str
    by_bot: bool
    edits: int = 0
    buttons: tuple[tuple[str, str], ...] = ()
    file: bytes | None = None
    file_name: str = ""
    entities: tuple[Entity, ...] = ()
    thread: int | None = None
    reply_to: int | None = None
    raw: Json = field(default_factory=dict)


@dataclass(slots=True)
class Chat:
    id: int
    kind: str
    title: str = ""
    is_forum: bool = False
    is_blocked: bool = False
    moved_to: int | None = None
    messages: dict[int, Shown] = field(default_factory=dict)
    actions: list[str] = field(default_factory=list)
    last_id: int = 0

    def json(self) -> Json:
        shape: Json = {"id": self.id, "type": self.kind}
        shape |= {"title": self.title} if self.title else {}
        return shape | ({"is_forum": True} if self.is_forum else {})

    @property
    def replies(self) -> list[str]:
        """The texts of the bot's messages, oldest first."""
        return [shown.text for shown in self.messages.values() if shown.by_bot]


@dataclass(frozen=True, slots=True)
class Person:
    """Someone who uses the platform; each method is what their client would do."""

    world: World
    id: int
    first_name: str = "Ada"
    username: str = ""

    def json(self) -> Json:
        shape: Json = {"id": self.id, "is_bot": False, "first_name": self.first_name}
        return shape | ({"username": self.username} if self.username else {})

    def says(self, text: str, chat: Chat | None = None, **more: Any) -> Json:
        entities = msgspec.to_builtins(found_entities(text))
        body = {"text": text} | ({"entities": entities} if entities else {})
        return self.world.arrive(self, chat, body | more)

    def edits(self, message: Json, text: str) -> Json:
        edited = message | {"text": text, "edit_date": int(time.time()) + 1}
        self.world.push("edited_message", edited)
        return edited

    def presses(self, shown: Shown, label: str, chat: Chat | None = None) -> str:
        data = dict(shown.buttons)[label]
        query_id = f"query-{len(self.world.queries) + 1}"
        self.world.queries[query_id] = None
        place = chat or self.world.private(self)
        message = {"message_id": shown.id, "date": 1, "chat": place.json(), "text": shown.text}
        query = {"id": query_id, "from": self.json(), "message": message | shown.raw, "data": data}
        self.world.push("callback_query", query | {"chat_instance": "1"})
        return query_id

    def sends(self, kind: str, data: bytes, chat: Chat | None = None, *, name: str = "", **more: Any) -> Json:
        """`kind`: photo, document or voice; `more`: caption, media_group_id, …"""
        file = self.world.keep(data, name)
        shape: Json = {"file_id": file, "file_unique_id": f"u{file}", "file_size": len(data)}
        match kind:
            case "photo":
                small = shape | {"file_id": self.world.keep(b"small", ""), "width": 90, "height": 90}
                body: Json = {"photo": [small, shape | {"width": 800, "height": 600}]}
            case "voice":
                body = {"voice": shape | {"duration": 3, "mime_type": "audio/ogg"}}
            case _:
                body = {kind: shape | {"file_name": name, "mime_type": more.pop("mime_type", "text/plain")}}
        return self.world.arrive(self, chat, body | more)

    def forwards(self, text: str, chat: Chat | None = None) -> Json:
        origin = {"type": "hidden_user", "sender_user_name": "Someone", "date": 1}
        return self.says(text, chat, forward_origin=origin)

    def joins(self, chat: Chat) -> Json:
        return self.world.arrive(self, chat, {"new_chat_members": [self.json()]})


class World:
    """One bot's platform."""

    def __init__(self) -> None:
        self.chats: dict[int, Chat] = {}
        self.queries: dict[str, str | None] = {}
        self.files: dict[str, tuple[str, bytes]] = {}
        self.commands: list[Json] = []
        self.queue: deque[Json] = deque()
        self.strays: list[Json] = []  # handed out once more, whatever the offset says
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

    # -- who and where --------------------------------------------------------------------------------------

    def me(self) -> Json:
        return {"id": BOT_ID, "is_bot": True, "first_name": "Talaria", "username": BOT_NAME}

    def person(self, id: int, first_name: str = "Ada", username: str = "") -> Person:
        return Person(self, id, first_name, username)

    def private(self, person: Person) -> Chat:
        return self.chats.setdefault(person.id, Chat(person.id, "private"))

    def group(
        self, id: int, title: str = "Group", *, kind: str = "supergroup", is_forum: bool = False
    ) -> Chat:
        return self.chats.setdefault(id, Chat(id, kind, title, is_forum))

    # -- what reaches the bot -------------------------------------------------------------------------------

    def push(self, kind: str, body: Json) -> Json:
        self._last_update += 1
        update = {"update_id": self._last_update, kind: body}
        is_wanted = kind not in _HIDDEN_BY_DEFAULT if self.allowed is None else kind in self.allowed
        if is_wanted:
            self.queue.append(update)
            self.on_update()
        return update

    def arrive(self, sender: Person | None, chat: Chat | None, body: Json, kind: str = "message") -> Json:
        place = chat or self.private(sender)  # type: ignore[arg-type]
        place.last_id += 1
        message: Json = {"message_id": place.last_id, "date": int(time.time()), "chat": place.json()}
        message |= {"from": sender.json()} if sender else {}
        message |= body
        text = str(body.get("text", body.get("caption", "")))
        place.messages[place.last_id] = Shown(place.last_id, text, by_bot=False, raw=message)
        self.push(kind, message)
        return message

    def posts_in_channel(self, chat: Chat, text: str) -> Json:
        return self.arrive(None, chat, {"text": text, "sender_chat": chat.json()}, "channel_post")

    def anonymous_admin_says(self, chat: Chat, text: str) -> Json:
        admin = Person(self, _ANONYMOUS_ADMIN, "Group", "GroupAnonymousBot")
        return admin.says(text, chat, sender_chat=chat.json())

    def migrate(self, chat: Chat, new_id: int) -> Chat:
        """A group becomes a supergroup: service messages in both, and the old id is refused from now on."""
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
        batch = self.strays + list(self.queue)[:limit]
        self.strays = []
        return batch[::-1] if self.is_shuffled else batch

    # -- what the bot asks ----------------------------------------------------------------------------------

    def call(self, method: str, params: Json, files: Files) -> Any:
        """`method` in lower case, as the platform does not mind. Raises `Refusal`."""
        kind = method.removeprefix("send")
        if kind in ("photo", "document", "voice"):
            return self._send_file(kind, params, files)
        run = self._methods.get(method)
        if run is None:
            raise Refusal(404, "Not Found: method not found")
        return run(params)

    def _send_file(self, kind: str, params: Json, files: Files) -> Json:
        given = files.get(kind)
        if given is None:
            raise bad(f"there is no {kind} in the request")
        if not given[1]:
            raise bad("file must be non-empty")
        file_id = self.keep(given[1], given[0])
        shape = {"file_id": file_id, "file_size": len(given[1])}
        body = {kind: [shape] if kind == "photo" else shape | {"file_name": given[0]}}
        answer = self._post(params, "caption", MAX_CAPTION, body)
        shown = self.chats[answer["chat"]["id"]].messages[answer["message_id"]]
        shown.file, shown.file_name = given[1], given[0]
        return answer

    def _post(self, params: Json, key: str, limit: int, body: Json) -> Json:
        chat = self._writable(params)
        text, entities = self._text(params, key, limit)
        buttons = _buttons(params)
        thread = params.get("message_thread_id")
        if thread is not None and not chat.is_forum:
            raise bad("message thread not found")
        reply = params.get("reply_parameters") or {}
        reply_to = reply.get("message_id", params.get("reply_to_message_id"))
        if reply_to is not None and int(reply_to) not in chat.messages:
            if not reply.get("allow_sending_without_reply"):
                raise bad("message to be replied not found")
            reply_to = None
        chat.last_id += 1
        message: Json = {"message_id": chat.last_id, "date": int(time.time()), "chat": chat.json()}
        message |= {"from": self.me(), **({key: text} if text else {}), **body}
        message |= {"message_thread_id": int(thread)} if thread is not None else {}
        if params.get("reply_markup"):
            message["reply_markup"] = params["reply_markup"]
        chat.messages[chat.last_id] = Shown(
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
            raise bad("message to edit not found")
        if not shown.by_bot:
            raise bad("message can't be edited")
        text, entities = self._text(params, "text", MAX_TEXT, is_edit=True)
        buttons = _buttons(params)
        if (text, tuple(entities), buttons) == (shown.text, shown.entities, shown.buttons):
            raise bad(_UNMODIFIED)
        shown.text, shown.entities, shown.buttons = text, tuple(entities), buttons
        shown.edits += 1
        shown.raw = shown.raw | {"text": text, "reply_markup": params.get("reply_markup") or {}}
        return shown.raw

    def _act(self, params: Json) -> bool:
        if params.get("action") not in ("typing", "upload_photo", "upload_document", "record_voice"):
            raise bad("wrong parameter action in request")
        self._writable(params).actions.append(params["action"])
        return True

    def _get_file(self, params: Json) -> Json:
        file_id = str(params.get("file_id"))
        if file_id not in self.files:
            raise bad("wrong file_id or the file is temporarily unavailable")
        size = len(self.files[file_id][1])
        if size > MAX_DOWNLOAD:
            raise bad("file is too big")
        return {"file_id": file_id, "file_unique_id": f"u{file_id}", "file_size": size, "file_path": file_id}

    def _answer_query(self, params: Json) -> bool:
        query_id = str(params.get("callback_query_id"))
        if self.queries.get(query_id, "answered") is not None:
            raise bad("query is too old and response timeout expired or query ID is invalid")
        self.queries[query_id] = str(params.get("text", ""))
        return True

    def _set_commands(self, params: Json) -> bool:
        commands = params.get("commands") or []
        for command in commands:
            name = str(command.get("command", ""))
            if not (0 < len(name) <= 32 and name.replace("_", "").isalnum() and name == name.lower()):
                raise bad("BOT_COMMAND_INVALID")
            if not 0 < len(str(command.get("description", ""))) <= 256:
                raise bad("BOT_COMMAND_DESCRIPTION_INVALID")
        self.commands = commands
        return True

    # -- rules ----------------------------------------------------------------------------------------------

    def _writable(self, params: Json) -> Chat:
        try:
            chat = self.chats.get(int(params.get("chat_id", 0)))
        except (TypeError, ValueError):
            chat = None
        if chat is None:
            raise bad("chat not found")
        if chat.moved_to is not None:
            text = "Bad Request: group chat was upgraded to a supergroup chat"
            raise Refusal(400, text, migrate_to_chat_id=chat.moved_to)
        if chat.is_blocked:
            is_private = chat.kind == "private"
            who = "blocked by the user" if is_private else f"kicked from the {chat.kind} chat"
            raise Refusal(403, f"Forbidden: bot was {who}")
        return chat

    def _text(self, params: Json, key: str, limit: int, *, is_edit: bool = False) -> tuple[str, list[Entity]]:
        try:
            text, entities = parse(str(params.get(key, "")), str(params.get("parse_mode") or ""))
        except ParseError as error:
            raise bad(f"can't parse entities: {error}") from None
        text = text.strip()
        if not text and key == "text":
            raise bad("message text is empty")
        if utf16_length(text) > limit:
            what = "message caption is too long" if key == "caption" else "message is too long"
            raise bad("MESSAGE_TOO_LONG" if is_edit else what)
        return text, entities


def _buttons(params: Json) -> tuple[tuple[str, str], ...]:
    rows = (params.get("reply_markup") or {}).get("inline_keyboard") or []
    buttons = tuple((str(one["text"]), str(one.get("callback_data", ""))) for row in rows for one in row)
    if any(not 0 < len(data.encode()) <= MAX_DATA for _, data in buttons):
        raise bad("BUTTON_DATA_INVALID")
    return buttons
