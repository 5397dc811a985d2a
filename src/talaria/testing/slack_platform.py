"""Slack without HTTP: people, conversations, messages and events, and the rules that the Web API enforces.

Each rule names the page of Slack's documentation that states it, below https://docs.slack.dev/reference/methods/
unless the address is whole.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

TEAM, APP, BOT_USER, BOT_ID = "T0TEAM", "A0APP", "U0BOT", "B0BOT"
ALL_SCOPES = "channels:history,chat:write,commands,files:read,files:write,groups:history"
ALL_SCOPES += ",im:history,im:write,mpim:history,users:read"
_SCOPES = {  # of each method: its page names it
    "chat.postMessage": "chat:write",
    "chat.postEphemeral": "chat:write",
    "chat.update": "chat:write",
    "conversations.open": "im:write",
    "conversations.replies": "channels:history",
    "users.info": "users:read",
    "files.getUploadURLExternal": "files:write",
    "files.completeUploadExternal": "files:write",
}
_KINDS = {"C": "channel", "G": "mpim", "D": "im"}
_TS = re.compile(r"[0-9]{10}\.[0-9]{6}")
_MENTION = re.compile(r"@(\w+)")
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_MARKUP = re.compile(r"<([^<>|]+)(?:\|([^<>]*))?>")
_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)


class SlackRefusal(Exception):
    """A call is answered with `ok: false` and this error."""

    def __init__(self, error: str, **more: Any) -> None:
        super().__init__(error)
        self.answer: Json = {"ok": False, "error": error, **more}


@dataclass(slots=True)
class SlackMessage:
    """A message as people see it now. `text` is the mrkdwn of its blocks or, without blocks, its text."""

    ts: str
    user: str
    text: str
    thread_ts: str | None = None
    edits: int = 0
    buttons: tuple[tuple[str, str], ...] = ()
    blocks: list[Json] = field(default_factory=list)
    fallback: str = ""
    file: bytes | None = None
    file_name: str = ""
    seen_by: str | None = None  # the only reader of an ephemeral message
    raw: Json = field(default_factory=dict)

    @property
    def by_bot(self) -> bool:
        return self.user == BOT_USER

    @property
    def shown(self) -> str:
        """The text without mrkdwn's escapes."""
        return self.text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")

    @property
    def links(self) -> list[str]:
        """The addresses that people can click. With `verbatim`, only explicit links are any."""
        outside = _CODE.sub(" ", self.text)
        return [found[1] for found in _MARKUP.finditer(outside) if "://" in found[1]]


@dataclass(slots=True)
class SlackConversation:
    id: str
    members: set[str] = field(default_factory=set)
    is_archived: bool = False
    messages: dict[str, SlackMessage] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return _KINDS[self.id[0]]

    @property
    def replies(self) -> list[str]:
        """The texts of the bot's messages, oldest first, without ephemeral ones."""
        return [one.shown for one in self.messages.values() if one.by_bot and one.seen_by is None]


@dataclass(frozen=True, slots=True)
class SlackPerson:
    """A person on Slack. Each method does what a client program would do."""

    platform: SlackPlatform
    id: str
    name: str

    @property
    def dm(self) -> SlackConversation:
        return self.platform.conversation(f"D{self.id[1:]}", self.id)

    def says(
        self, text: str, place: SlackConversation | None = None, thread: str | None = None, **more: Any
    ) -> Json:
        """Write a message. `@talaria` mentions the bot."""
        place = place or self.dm
        place.members.add(self.id)
        body = {"user": self.id, "text": _typed(text), "client_msg_id": self.platform.new_id("msg"), **more}
        return self.platform.arrive(place, body, thread)

    def sends(self, name: str, data: bytes, text: str = "", **more: Any) -> Json:
        """Send a file with a text."""
        file = self.platform.keep(name, data, self.id)
        return self.says(text, subtype="file_share", files=[file], **more)

    def edits(self, message: Json, text: str) -> None:
        """Edit an earlier message, which `says` returned."""
        place = self.platform.conversations[message["channel"]]
        shown = place.messages[message["ts"]]
        before, ts = shown.raw, self.platform.new_ts()
        shown.raw = before | {"text": _typed(text), "edited": {"user": self.id, "ts": ts}}
        shown.text = shown.raw["text"]
        self.platform.changed(place, "message_changed", ts, message=shown.raw, previous_message=before)

    def deletes(self, message: Json) -> None:
        """Delete a message. One that has replies becomes a tombstone, so that its thread stays."""
        place = self.platform.conversations[message["channel"]]
        before = place.messages.pop(message["ts"]).raw
        if any(each.thread_ts == message["ts"] for each in place.messages.values()):
            stone = {"subtype": "tombstone", "user": "USLACKBOT", "text": "This message was deleted."}
            ts, gone = self.platform.new_ts(), before | stone | {"thread_ts": message["ts"]}
            self.platform.changed(place, "message_changed", ts, message=gone, previous_message=before)
            return
        more: Json = {"deleted_ts": message["ts"], "previous_message": before}
        self.platform.changed(place, "message_deleted", self.platform.new_ts(), **more)

    def presses(self, shown: SlackMessage, label: str, place: SlackConversation | None = None) -> Json:
        """Press a button. https://docs.slack.dev/reference/interaction-payloads/block_actions-payload"""
        place, platform = place or self.dm, self.platform
        element = next(each for each in _buttons(shown.blocks) if each["text"]["text"] == label)
        container = {"type": "message", "message_ts": shown.ts, "channel_id": place.id, "is_ephemeral": False}
        name = (
            "directmessage" if place.kind == "im" else "privategroup" if place.kind == "mpim" else "general"
        )
        press = {
            "type": "block_actions",
            "user": {"id": self.id, "username": self.name.lower(), "name": self.name, "team_id": TEAM},
            "api_app_id": APP,
            "container": container | ({"thread_ts": shown.thread_ts} if shown.thread_ts else {}),
            "trigger_id": platform.new_id("trigger"),
            "team": {"id": TEAM, "domain": "test"},
            "channel": {"id": place.id, "name": name},
            "message": shown.raw,
            "actions": [element | {"action_ts": platform.new_ts(), "block_id": "b"}],
        }
        platform.push("interactive", press)
        return press

    def commands(self, text: str, place: SlackConversation | None = None) -> Json:
        """Write `/talaria TEXT`. Slack refuses it in a thread, so there is no parameter for one.
        https://docs.slack.dev/interactivity/implementing-slash-commands"""
        command = {
            "team_id": TEAM,
            "api_app_id": APP,
            "channel_id": (place or self.dm).id,
            "channel_name": "directmessage" if place is None else "general",
            "user_id": self.id,
            "user_name": self.name.lower(),
            "command": "/talaria",
            "text": text,
            "trigger_id": self.platform.new_id("trigger"),
        }
        self.platform.push("slash_commands", command)
        return command


class SlackPlatform:
    """The workspace of one app. `on_event` gets the type and the payload of each event."""

    def __init__(self) -> None:
        self.conversations: dict[str, SlackConversation] = {}
        self.people: dict[str, SlackPerson] = {}
        self.files: dict[str, tuple[str, bytes]] = {}  # by id: name and content
        self.pending: dict[str, int] = {}  # uploads that are not completed: their promised lengths
        self.scopes = ALL_SCOPES
        self.has_mention_events = False  # app_mention is subscribed too
        self.files_url = ""  # set by the server
        self.log: deque[tuple[str, Json]] = deque(maxlen=1000)
        self.on_event: Callable[[str, Json], None] = lambda kind, payload: None
        self._count = 0
        self._calls: dict[str, Callable[[Json], Json]] = {
            "auth.test": lambda given: self.me(),
            "chat.postMessage": self._post,
            "chat.postEphemeral": self._post_ephemeral,
            "chat.update": self._update,
            "conversations.open": self._open,
            "conversations.replies": self._replies,
            "users.info": self._user,
            "files.getUploadURLExternal": self._start_upload,
            "files.completeUploadExternal": self._complete_upload,
        }

    def me(self) -> Json:
        return {"team_id": TEAM, "team": "Test", "user": "talaria", "user_id": BOT_USER, "bot_id": BOT_ID}

    def new_ts(self) -> str:
        self._count += 1
        return f"17{self._count // 1000:08d}.{self._count % 1000:06d}"

    def new_id(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count}"

    def person(self, id: str, name: str = "Ada") -> SlackPerson:
        return self.people.setdefault(id, SlackPerson(self, id, name))

    def conversation(self, id: str, *members: str) -> SlackConversation:
        """Return a conversation, which has the bot as a member when it is new."""
        found = self.conversations.setdefault(id, SlackConversation(id, {BOT_USER}))
        found.members.update(members)
        return found

    # -- events ---------------------------------------------------------------------------------------------

    def push(self, kind: str, payload: Json) -> None:
        self.log.append((kind, payload))
        self.on_event(kind, payload)

    def event(self, event: Json) -> None:
        """https://docs.slack.dev/apis/events-api#event-type-structure"""
        wrapped = {"type": "event_callback", "team_id": TEAM, "api_app_id": APP, "event": event}
        more = {"event_id": self.new_id("Ev"), "event_time": 1700000000, "authorizations": []}
        self.push("events_api", wrapped | more)

    def arrive(self, place: SlackConversation, body: Json, thread: str | None = None) -> Json:
        """Add a message to a conversation. The bot gets its event as a member, and another for a mention:
        https://docs.slack.dev/reference/events/message and .../app_mention"""
        ts = self.new_ts()
        message: Json = {"type": "message", "ts": ts, "team": TEAM, **body}
        if thread is not None:
            message |= {"thread_ts": thread, "parent_user_id": place.messages[thread].user}
        text, user = str(body.get("text", "")), str(body.get("user", ""))
        place.messages[ts] = SlackMessage(ts, user, text, thread, raw=message)
        event = message | {"channel": place.id, "channel_type": place.kind, "event_ts": ts}
        if BOT_USER in place.members:
            self.event(event)
            if self.has_mention_events and f"<@{BOT_USER}>" in text and place.kind != "im":
                kept = {key: value for key, value in event.items() if key not in ("channel_type", "subtype")}
                self.event(kept | {"type": "app_mention"})
        return event

    def changed(self, place: SlackConversation, subtype: str, ts: str, **more: Json | str) -> None:
        event = {"type": "message", "subtype": subtype, "hidden": True, "channel": place.id, "ts": ts}
        self.event(event | {"channel_type": place.kind, "event_ts": ts} | more)

    # -- calls of the app -----------------------------------------------------------------------------------

    def call(self, method: str, given: Json) -> Json:
        """Carry out a call with the bot's token. Raises `SlackRefusal`."""
        run = self._calls.get(method)
        if run is None:
            raise SlackRefusal("unknown_method", req_method=method)
        needed = _SCOPES.get(method)
        if needed is not None and needed not in self.scopes.split(","):
            raise SlackRefusal("missing_scope", needed=needed, provided=self.scopes)
        return {"ok": True, **run(given)}

    def _post(self, given: Json) -> Json:
        place = self._writable(given)
        text, blocks = _content(given)
        thread = given.get("thread_ts")
        if thread is not None:
            self._check_thread(place, thread)
        shown = self._add(place, text, blocks, thread)
        event = shown.raw | {"channel": place.id, "channel_type": place.kind, "event_ts": shown.ts}
        self.event(event)  # an app gets the events of its own messages too
        return {"channel": place.id, "ts": shown.ts, "message": shown.raw}

    def _add(
        self, place: SlackConversation, text: str, blocks: list[Json], thread: str | None
    ) -> SlackMessage:
        ts = self.new_ts()
        raw: Json = {
            "type": "message",
            "user": BOT_USER,
            "bot_id": BOT_ID,
            "app_id": APP,
            "text": text,
            "ts": ts,
        }
        raw |= {"blocks": blocks} | ({"thread_ts": thread} if thread else {})
        shown = SlackMessage(ts, BOT_USER, _shown_text(text, blocks), thread, raw=raw, blocks=blocks)
        shown.buttons, shown.fallback = _labels(blocks), text
        place.messages[ts] = shown
        return shown

    def _post_ephemeral(self, given: Json) -> Json:
        place = self._writable(given)
        if given.get("user") not in place.members:
            raise SlackRefusal("user_not_in_channel")  # chat.postEphemeral
        text, blocks = _content(given)
        shown = self._add(place, text, blocks, given.get("thread_ts"))
        shown.seen_by = given["user"]
        return {"message_ts": shown.ts}

    def _update(self, given: Json) -> Json:
        place = self._writable(given)
        shown = place.messages.get(str(given.get("ts")))
        if shown is None or shown.seen_by is not None:
            raise SlackRefusal("message_not_found")  # chat.update
        if not shown.by_bot:
            raise SlackRefusal("cant_update_message")  # chat.update
        if len(str(given.get("text", ""))) > 4000:
            raise SlackRefusal("msg_too_long")  # chat.update: "The text field cannot exceed 4,000 characters"
        text, blocks = _content(given)  # chat.update: a text without blocks removes the blocks
        before = shown.raw
        shown.text, shown.blocks, shown.fallback = _shown_text(text, blocks), blocks, text
        shown.buttons, shown.edits = _labels(blocks), shown.edits + 1
        shown.raw = before | {"text": text, "blocks": blocks}
        ts = self.new_ts()
        self.changed(place, "message_changed", ts, message=shown.raw, previous_message=before)
        return {"channel": place.id, "ts": shown.ts, "text": text}

    def _writable(self, given: Json) -> SlackConversation:
        place = self.conversations.get(str(given.get("channel", given.get("channel_id", ""))))
        if place is None:
            raise SlackRefusal("channel_not_found")  # chat.postMessage
        if BOT_USER not in place.members:
            raise SlackRefusal("not_in_channel")  # chat.postMessage
        if place.is_archived:
            raise SlackRefusal("is_archived")  # chat.postMessage
        return place

    def _check_thread(self, place: SlackConversation, thread: object) -> None:
        """chat.postMessage: `thread_ts` is a string, and never the ts of a reply. Slack takes a reply's ts
        and shows the message nowhere, so the fake refuses it."""
        if not isinstance(thread, str) or not _TS.fullmatch(thread):
            raise SlackRefusal("invalid_thread_ts")
        root = place.messages.get(thread)
        if root is None:
            raise SlackRefusal("thread_not_found")
        if root.thread_ts not in (None, thread):
            raise SlackRefusal("cannot_reply_to_message")

    def _replies(self, given: Json) -> Json:
        """The first message of a thread has a thread_ts too:
        https://docs.slack.dev/reference/methods/conversations.replies"""
        place = self._writable(given)
        root = str(given.get("ts"))
        if root not in place.messages:
            raise SlackRefusal("thread_not_found")  # conversations.replies
        found = [each for each in place.messages.values() if root in (each.ts, each.thread_ts)]
        seen = [each.raw for each in found if each.seen_by is None]
        limit = int(given.get("limit", 1000))
        first, rest = (
            [seen[0] | {"thread_ts": root}],
            [each for each in seen[1:] if each["ts"] >= str(given.get("oldest", ""))],
        )
        return {"messages": first + rest[:limit], "has_more": len(rest) > limit}

    def _open(self, given: Json) -> Json:
        person = self.people.get(str(given.get("users")))
        if person is None:
            raise SlackRefusal("user_not_found")  # conversations.open
        return {"channel": {"id": person.dm.id}}

    def _user(self, given: Json) -> Json:
        person = self.people.get(str(given.get("user")))
        if person is None:
            raise SlackRefusal("user_not_found")  # users.info
        profile = {"display_name": person.name, "real_name": f"{person.name} Test"}
        user = {"id": person.id, "name": person.name.lower(), "is_bot": False}
        return {"user": user | {"profile": profile}}

    # -- files ----------------------------------------------------------------------------------------------

    def keep(self, name: str, data: bytes, user: str) -> Json:
        """Store a file and return it as events show it. https://docs.slack.dev/reference/objects/file-object"""
        id = self.new_id("F").replace("-", "")
        self.files[id] = (name, data)
        kind = "image/png" if name.endswith(".png") else "text/plain"
        private = f"{self.files_url}/files-pri/{id}/download/{name}"
        file: Json = {"id": id, "name": name, "mimetype": kind, "size": len(data), "user": user}
        return file | {"mode": "hosted", "url_private": private, "url_private_download": private}

    def _start_upload(self, given: Json) -> Json:
        name, length = str(given.get("filename", "")), str(given.get("length", ""))
        if not name or not length.isdecimal() or not int(length):
            raise SlackRefusal("invalid_arguments")  # files.getUploadURLExternal
        id = self.new_id("F").replace("-", "")
        self.files[id] = (name, b"")
        self.pending[id] = int(length)
        return {"upload_url": f"{self.files_url}/upload/v1/{id}", "file_id": id}

    def receive_upload(self, id: str, data: bytes) -> bool:
        """Take the content of a file. Returns False if its length is not the promised one."""
        if len(data) != self.pending.get(id, -1):
            return False
        self.files[id] = (self.files[id][0], data)
        return True

    def _complete_upload(self, given: Json) -> Json:
        listed = given.get("files")
        if not isinstance(listed, list) or not listed:
            raise SlackRefusal("invalid_arguments")  # files.completeUploadExternal
        ids = [str(each.get("id")) for each in listed]
        if any(id not in self.pending or not self.files[id][1] for id in ids):
            raise SlackRefusal("file_not_found")  # files.completeUploadExternal
        place, thread = self._writable(given), given.get("thread_ts")
        if thread is not None:
            self._check_thread(place, thread)
        for id in ids:
            del self.pending[id]
            shown = self._add(place, str(given.get("initial_comment", "")), [], thread)
            shown.file_name, shown.file = self.files[id]
        return {"files": [{"id": id, "title": self.files[id][0]} for id in ids]}


def _content(given: Json) -> tuple[str, list[Json]]:
    """Return the text and the blocks of a call. Raises `SlackRefusal` as Slack does."""
    text, blocks = given.get("text") or "", given.get("blocks", [])
    if not isinstance(blocks, list):
        raise SlackRefusal("invalid_blocks_format")  # chat.postMessage
    if not text and not blocks:
        raise SlackRefusal("no_text")  # chat.postMessage
    if len(text) > 40_000:
        raise SlackRefusal(
            "msg_too_long"
        )  # https://docs.slack.dev/changelog/2018-truncating-really-long-messages
    wrong = _find_wrong(blocks)
    if wrong:
        raise SlackRefusal("invalid_blocks", errors=[wrong])
    return text, blocks


def _find_wrong(blocks: list[Json]) -> str:
    """Return what is wrong with blocks, by https://docs.slack.dev/reference/block-kit/blocks"""
    if len(blocks) > 50:
        return "no more than 50 items allowed"
    for number, block in enumerate(blocks):
        match block.get("type"):
            case "section":
                text = block.get("text") or {}
                if (
                    text.get("type") not in ("mrkdwn", "plain_text")
                    or not 0 < len(text.get("text", "")) <= 3000
                ):
                    return f"must be 1 to 3000 characters [json-pointer:/blocks/{number}/text/text]"
            case "actions":
                elements = block.get("elements") or []
                ids = [each.get("action_id") for each in elements]
                if not 0 < len(elements) <= 25 or len(ids) != len(set(ids)):
                    return (
                        f"1 to 25 elements with their own action_id [json-pointer:/blocks/{number}/elements]"
                    )
                if not all(map(_is_button, elements)):
                    return f"not a valid button [json-pointer:/blocks/{number}/elements]"
            case kind:
                return f"unsupported type: {kind} [json-pointer:/blocks/{number}/type]"
    return ""


def _is_button(element: Json) -> bool:
    """https://docs.slack.dev/reference/block-kit/block-elements/button-element"""
    label = element.get("text") or {}
    return (
        element.get("type") == "button"
        and label.get("type") == "plain_text"
        and 0 < len(label.get("text", "")) <= 75
        and len(element.get("value", "")) <= 2000
        and 0 < len(element.get("action_id", "")) <= 255
    )


def _buttons(blocks: list[Json]) -> list[Json]:
    return [each for block in blocks if block["type"] == "actions" for each in block["elements"]]


def _labels(blocks: list[Json]) -> tuple[tuple[str, str], ...]:
    return tuple((each["text"]["text"], each.get("value", "")) for each in _buttons(blocks))


def _shown_text(text: str, blocks: list[Json]) -> str:
    sections = [block["text"]["text"] for block in blocks if block["type"] == "section"]
    return "\n".join(sections) if blocks else text


def _typed(text: str) -> str:
    """Return a text as Slack sends it: escaped, with `@talaria` as a mention of the bot."""
    escaped = text.translate(_ESCAPES)
    return _MENTION.sub(lambda found: f"<@{BOT_USER}>" if found[1] == "talaria" else found[0], escaped)
