"""Sends messages to chats outside of their turns: for `talaria send`, a tool, a job, a webhook."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET

from talaria.core.clock import Clock
from talaria.core.entries import Announcement
from talaria.core.errors import BadRequest, NotFound, StoreError, ToolError
from talaria.core.files import SentFile
from talaria.core.ids import (
    SESSION_PREFIX,
    ChatAddress,
    ChatKey,
    SessionId,
    TurnId,
    is_session_name,
    new_session_id,
    new_turn_id,
)
from talaria.core.ledger import ChatMessage, Fresh, SendMessage, SentTurn
from talaria.core.redaction import SecretRegistry
from talaria.core.tasks import finish, sleep_until_woken
from talaria.core.turns import ReplyPlace
from talaria.store.store import Store
from talaria.turns.feed import RecordChange
from talaria.turns.live import LiveTurn, LiveTurns
from talaria.turns.settings import TurnSettings
from talaria.workspace.folder import Folder
from talaria.workspace.places import ChatFolders
from talaria.workspace.uploads import keep_copy

_log = logging.getLogger("talaria.sending")
_LOOK_SECONDS = 30.0  # for sessions whose turns run in another process
MAX_TEXT = 256 << 10  # characters
_HTTP = "http"


class ChatSender(msgspec.Struct, eq=False):
    """Writes messages for chats. `find_address` returns the platform's address of a chat, None for a chat
    that fetches its messages, and raises `BadRequest` for a chat that cannot be written to.

    `live` are the turns of this process, None if no gateway runs in it. `wake` tells the delivery of new
    messages.
    """

    _store: Store
    _settings: TurnSettings
    find_address: Callable[[ChatAddress], str | None]
    _folders: ChatFolders
    secrets: SecretRegistry
    clock: Clock
    live: LiveTurns | None = None
    wake: Callable[[], None] = lambda: None
    _waiting: dict[SessionId, LiveTurn | None] = {}  # the turn that is known to run
    _is_known: bool = False  # whether all sessions for which messages wait are in `_waiting`
    _woken: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        if self.live is not None:
            self.live.observe(self._watch)

    def _watch(self, live: LiveTurn) -> None:
        """Let the chat that a run replies to have the reply in its log."""
        if (order := live.turn.inbound.order) is not None and order.reply_to is not None:
            live.settled.add_done_callback(lambda _: self.look())

    def look(self) -> None:
        """Deliver and log what other orders of the store may have written."""
        self.wake()
        self._is_known = False
        self._woken.set()

    async def find_chat(self, name: str) -> ChatKey:
        """Return the chat that a person means: by its key, by the id of one of its sessions, or by the name
        of a chat of the HTTP API. Raises `NotFound` and `BadRequest`."""
        if name.startswith(SESSION_PREFIX):
            if (session := await self._store.session(SessionId(name))) is None:
                raise NotFound(f"There is no session {name}.", "`talaria sessions list` lists them.")
            return session.chat_key
        address = self.read_chat(name)
        key = address.key()
        if self.find_address(address) is None and await self._store.current_session(key) is None:
            raise NotFound(
                f"There is no chat {name}.",
                "`talaria sessions list` lists sessions; name a chat by its key, its session's id or name.",
            )
        return key

    def read_chat(self, name: str) -> ChatAddress:
        """Return the chat of a key or a name, whether it exists or not. Raises `BadRequest`."""
        if is_session_name(name):
            return ChatAddress(self._settings.agent_name, _HTTP, "api", name)
        try:
            return ChatAddress.parse(ChatKey(name))
        except ValueError:
            raise BadRequest(
                f"{name!r} names no chat.",
                "Write a chat's key (agent:NAME:CHANNEL:KIND:CHAT), or the name or the id of a session.",
            ) from None

    async def send(self, message: ChatMessage) -> SentTurn:
        """Write the message and return its turn. Durable when it returns; a caller that is cancelled stops
        nothing. A chat's running turn goes on, and the log gets the message after it.

        Raises `BadRequest`, `ToolError` for a file, `IdempotencyConflict`, `StoreError`.
        """
        text = self.secrets(message.text)
        if not (text.strip() or message.files):
            raise BadRequest("The message is empty.", "Write something, or name a file.")
        if len(text) > MAX_TEXT:
            raise BadRequest(
                f"The message has {len(text):,} characters, more than {MAX_TEXT:,}.", "Send a file instead."
            )
        place = message.place
        address = self.find_address(ChatAddress.parse(message.chat_key)) if place is None else place.address
        turn_id = new_turn_id()
        files = await asyncio.to_thread(self._copy, message, turn_id) if message.files else ()
        entry = Announcement(text, self._settings.stamp(self.clock.now()), message.is_untrusted or UNSET)
        names = "\n".join(message.files)
        order = SendMessage(
            turn_id,
            message.chat_key,
            message.sender,
            entry,
            Fresh(new_session_id(), None),
            address,
            files,
            message.key,
            f"{message.sender.id}\n{message.chat_key}" if message.key is not None else "",
            hashlib.sha256(f"{names}\n\n{text}".encode(errors="replace")).hexdigest(),
            claim=message.claim,
        )
        return await finish(self._write(order))

    async def _write(self, order: SendMessage) -> SentTurn:
        sent = await self._store.send(order)
        if not sent.is_duplicate:
            self.wake()
            if self.live is not None and self.live.feed.listeners:
                self.live.feed.tell(LiveTurn.recorded(sent.turn, self.clock))
        if not sent.is_logged:
            self._wait(sent.turn.session_id, sent.turn.chat_key)
        return sent

    def place_of(self, key: ChatKey, address: str | None = None) -> ReplyPlace:
        """Return where messages to a chat go. `address` is that of a chat on a channel that has no others."""
        try:
            return ReplyPlace(key, self.find_address(ChatAddress.parse(key)))
        except BadRequest:
            return ReplyPlace(key, address)

    def _copy(self, message: ChatMessage, turn_id: TurnId) -> tuple[SentFile, ...]:
        """Copy the files to where people get them. Raises `ToolError`. Blocks."""
        folder = Folder(self._folders(message.chat_key))
        return tuple(
            keep_copy(folder, folder.resolve(path), (turn_id, path), check=self._check)[0]
            for path in message.files
        )

    def _check(self, data: bytes) -> None:
        if names := self.secrets.redactor.names_in(data):
            what = f"The file holds a secret of the gateway ({', '.join(names)}) and is not sent."
            raise ToolError(what, "Take it out of the file first.")

    # -- the logs of sessions in which a turn runs ----------------------------------------------------------

    def _wait(self, session_id: SessionId, chat_key: ChatKey | None = None) -> None:
        """Log what waits for the session when its turn is over."""
        running = self.live.running_in(chat_key) if self.live is not None and chat_key else None
        if session_id not in self._waiting:
            self._woken.set()
        elif running is None or self._waiting[session_id] is running:
            return
        self._waiting[session_id] = running
        if running is not None:
            running.settled.add_done_callback(lambda _: self._woken.set())

    async def run(self) -> None:
        """Log sent messages after the turns that ran when they were sent, until cancelled."""
        while True:
            self._woken.clear()
            if not self._is_known:
                self._waiting = dict.fromkeys(await self._unannounced()) | self._waiting
            for session_id in tuple(self._waiting):
                await self._announce(session_id)
            if self._waiting:
                await sleep_until_woken(self.clock, _LOOK_SECONDS, self._woken)
            else:
                await self._woken.wait()

    async def _unannounced(self) -> Sequence[SessionId]:
        try:
            self._is_known = True
            return await self._store.unannounced()
        except StoreError as error:
            _log.warning("sent messages are logged later: %s", error)
            return ()

    async def _announce(self, session_id: SessionId) -> None:
        try:
            is_logged = await self._store.announce(session_id)
            session = await self._store.session(session_id)
            if is_logged:
                self._waiting.pop(session_id, None)
                if session is not None and self.live is not None:
                    now, key = self.clock.now(), session.chat_key
                    self.live.feed.note(RecordChange("session.written", session_id, key, now))
                return
            self._wait(session_id, session.chat_key if session is not None else None)
        except StoreError as error:
            _log.warning("sent messages of %s are logged later: %s", session_id, error)
