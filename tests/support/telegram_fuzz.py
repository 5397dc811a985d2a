"""Random broken updates for the Telegram channel, and a check of the turns that come from them."""

from __future__ import annotations

import json
import logging
import tempfile
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from talaria.access.authorizer import Authorizer
from talaria.channels.telegram.bot_api import BotApi, User
from talaria.channels.telegram.parse import decode
from talaria.channels.telegram.updates import UpdateHandler
from talaria.config.settings import Settings
from talaria.core.clock import SystemClock
from talaria.core.ids import ChatKey
from talaria.core.turns import Inbound
from talaria.store.in_memory import MemoryStore
from talaria.testing.telegram_platform import BOT_ID, Json, TelegramPlatform
from talaria.workspace.places import ChatFolders

ALLOWED = 7
KINDS = (
    "message", "edited_message", "channel_post", "edited_channel_post", "callback_query", "inline_query",
    "message_reaction", "my_chat_member", "chat_member",
)  # fmt: skip
JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 7, 2**31, 2**63, 2**70, -(2**63), 1.5, 1e308, "", "7", "\x00", "\ud83d",
    "😀" * 50, "/status", "/status@talaria_bot", "@talaria_bot", "#0", "#99999", "a" * 5000, "\u202e",
    "../../etc/passwd", [], {}, [[]], [None], {"id": 7}, {"id": 7, "is_bot": True}, "private", "group",
    "channel", "supergroup",
)  # fmt: skip
_PLACES = ("from", "sender_chat", "chat", "text", "id", "entities")


@dataclass
class Fuzzed:
    """The results. `wrong` are turns from updates that the allowed user did not send."""

    updates: int = 0
    decoded: int = 0
    turns: int = 0
    wrong: list[Json] = field(default_factory=list)
    uncaught: list[str] = field(default_factory=list)


def corpus() -> list[Json]:
    """Return valid updates of every kind, from the allowed user and from others."""
    world = TelegramPlatform()
    world.allowed = frozenset(KINDS)
    group, channel = world.group(-100, is_forum=True), world.group(-200, kind="channel")
    for person in (world.person(ALLOWED), world.person(99, "Eve", "7")):
        for chat in (world.private(person), group, channel):
            said = person.says("@talaria_bot hello", chat, message_thread_id=3, is_topic_message=True)
            person.edits(said, "@talaria_bot hello again")
            person.says("/status@talaria_bot now", chat, reply_to_message=said, quote={"text": "hello"})
            person.forwards("@talaria_bot forwarded", chat)
            person.sends("photo", b"x", chat, caption="@talaria_bot look", media_group_id="g")
            person.sends("document", b"x", chat, caption="@talaria_bot", name="a.txt")
            person.sends("voice", b"x", chat)
            markup = {"inline_keyboard": [[{"text": "Yes", "callback_data": "#0"}]]}
            message = said | {"reply_markup": markup}
            query = {"id": "q", "from": person.json(), "message": message, "data": "#0"}
            world.push("callback_query", query)
            for kind in ("inline_query", "message_reaction", "my_chat_member", "chat_member", "channel_post"):
                world.push(kind, said | {"user": person.json(), "query": "hello"})
            person.joins(chat)
    world.anonymous_admin_says(group, "@talaria_bot hello")
    world.posts_in_channel(channel, "hello")
    world.migrate(world.group(-5, kind="group"), -1005)
    return list(world.queue)


def mutate(update: Json, random: Random) -> Json:
    """Change one to three values. Most new values have the type of the old one, to get past the decoder."""
    changed: Json = json.loads(json.dumps(update))
    for _ in range(random.randint(1, 3)):
        table: Any = changed
        while True:
            if not table:
                break
            key = random.choice(list(table) if isinstance(table, dict) else range(len(table)))
            if isinstance(table[key], dict | list) and random.random() < 0.7:
                table = table[key]
                continue
            match random.randrange(4):
                case 0 if isinstance(table, dict):
                    del table[key]
                case 1 if isinstance(table, dict):
                    table[random.choice(_PLACES)] = table[key]
                case _:
                    same = [junk for junk in JUNK if type(junk) is type(table[key])]
                    table[key] = deepcopy(random.choice(same if same and random.random() < 0.7 else JUNK))
            break
    return changed


def is_their_own(update: Json) -> bool:
    """Return whether the update says that the allowed user sent it."""
    for kind in ("callback_query", "message", "edited_message", "channel_post", "edited_channel_post"):
        body = update.get(kind)
        if not isinstance(body, dict):
            continue
        who = body.get("from")
        place = body.get("message") if kind == "callback_query" else body
        chat = place.get("chat") if isinstance(place, dict) else None
        return (
            isinstance(who, dict)
            and who.get("id") == ALLOWED
            and not who.get("is_bot")
            and not (kind != "callback_query" and body.get("sender_chat"))
            and isinstance(chat, dict)
            and chat.get("type") in ("private", "group", "supergroup")
        )
    return False


class _Errors(logging.Handler):
    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        self._found.append(self.format(record))


async def fuzz(count: int, seed: int = 0) -> Fuzzed:
    random, known, result = Random(seed), corpus(), Fuzzed()
    heard: list[Inbound] = []
    clock = SystemClock()
    logger, handler = logging.getLogger("talaria"), _Errors(result.uncaught)
    logger.addHandler(handler)

    async def note(value: Inbound) -> None:
        heard.append(value)

    async def amend(value: Inbound, edit_key: str) -> bool:
        return False

    async def move_chat(old: ChatKey, new: ChatKey) -> bool:
        return True

    try:
        with tempfile.TemporaryDirectory(prefix="talaria-fuzz-") as folder:
            async with BotApi("http://127.0.0.1:1", "1:token") as api:
                authorizer = Authorizer(MemoryStore(clock).pairings, {"telegram": [ALLOWED]}, clock)
                gateway: Any = SimpleNamespace(
                    turns=SimpleNamespace(submit=note, amend=amend),
                    store=SimpleNamespace(move_chat=move_chat),
                    chat_folder=lambda key: Path(folder) / "chat",
                    folders=ChatFolders(Path(folder)),
                    settings=Settings(),
                )
                updates = UpdateHandler(api, authorizer, gateway, "mention")
                bot = User(BOT_ID, is_bot=True, first_name="Talaria", username="talaria_bot")
                for _ in range(count):
                    original = mutate(random.choice(known), random)
                    data = json.dumps(original).encode()
                    if random.random() < 0.05:
                        data = data[: random.randrange(len(data))] + random.randbytes(3)
                        original = {}
                    result.updates += 1
                    await _throw(updates, bot, data, result)
                    if heard and not is_their_own(original):
                        result.wrong.append(original)
                    result.turns += len(heard)
                    heard.clear()
    finally:
        logger.removeHandler(handler)
    return result


async def _throw(updates: UpdateHandler, bot: User, data: bytes, result: Fuzzed) -> None:
    try:
        update = decode(data)
        if update is not None:
            result.decoded += 1
            await updates.handle([update], bot)
    except Exception as error:  # counting these is the purpose
        result.uncaught.append(f"{error!r} {data[:500]!r}")
