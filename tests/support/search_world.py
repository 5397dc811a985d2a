"""Logs that tests search: real stores, sessions that are filled by orders, and the index beside them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from talaria.access.people import People
from talaria.core.clock import Clock
from talaria.core.entries import EntryBody
from talaria.core.ids import ChatAddress, ChatKey, OwnerId, SessionId, TurnId
from talaria.core.ledger import Accept, Begin, Binding, BranchPoint, Commit, Fresh, TurnEnd
from talaria.core.messages import AssistantMessage, Content, Text, UserMessage
from talaria.core.turns import Inbound, Sender, TurnState
from talaria.search.index import SIDE_FILE, LogIndex
from talaria.store.in_memory import MemoryStore
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.fake_workspaces import FakeWorkspaces
from talaria.tools.function import parse_arguments
from talaria.tools.part import ToolScope
from talaria.tools.recall import recall_tools
from talaria.tools.tool import CallScope, ToolContext
from talaria.tools.workers import ToolWorkers

HOME = ChatAddress("main", "http", "api", "home").key()
AWAY = ChatAddress("main", "telegram", "dm", "7").key()
_OWNER, _LEASE = OwnerId("own_test"), 60.0
_numbers = count(1)


def said(text: str, name: str | None = None) -> UserMessage:
    return UserMessage((Text(text),), name=name)


@dataclass
class SearchWorld:
    store: MemoryStore | SqliteStore
    folder: Path
    clock: Clock
    page_bytes: int = 16 << 10
    warnings: list[str] = field(default_factory=list)
    workers: ToolWorkers = field(default_factory=ToolWorkers)

    def __post_init__(self) -> None:
        self.index = LogIndex(self.folder / SIDE_FILE, self.store.recall, self.clock)

    async def close(self) -> None:
        self.workers.threads.close()
        await self.index.close()

    async def talk(
        self,
        *bodies: EntryBody,
        session: SessionId | None = None,
        chat: ChatKey = HOME,
        parent: BranchPoint | None = None,
        copied: Sequence[UserMessage | AssistantMessage] = (),
    ) -> SessionId:
        """Append these to a session, or to a new one, in one turn. The first must be a user's message."""
        number = next(_numbers)
        turn_id, fresh = TurnId(f"turn_{number:06}"), SessionId(f"ses_{number:026}")
        first = bodies[0]
        assert isinstance(first, UserMessage)
        order = Accept(
            turn_id,
            Inbound(chat, Sender("u1"), (Text("."),)),
            Fresh(fresh, None, tuple(copied), parent=parent),
            binding=Binding.RESUME if session else Binding.NEW,
            resume=session,
            begin=Begin(turn_id, _OWNER, _LEASE, first),
        )
        accepted = await self.store.accept(order)
        assert accepted.began is not None
        found = accepted.turn.session_id
        end = TurnEnd(TurnState.DONE, ".")
        await self.store.commit(Commit(found, accepted.began.fence, turn_id, bodies[1:], end=end))
        return found

    async def head(self, session_id: SessionId) -> int:
        session = await self.store.session(session_id)
        assert session is not None
        return session.revision.seq

    async def call(self, session_id: SessionId, name: str, chat: ChatKey = HOME, **arguments: Any) -> Content:
        """Call a recall tool as a turn of the session does."""
        scope = ToolScope(
            self.folder,
            {},
            self.clock,
            People(),
            opened=self.store,
            index=self.index,
        )
        tools = {tool.spec.name: tool for tool in recall_tools(scope, self.page_bytes)}
        checked = parse_arguments(tools[name], msgspec.json.encode(arguments).decode())
        context = ToolContext(
            session_id,
            TurnId("turn_now"),
            "call_1",
            FakeWorkspaces(lambda key: self.folder).open(session_id, chat),
            CallScope(time.monotonic, 60),
            lambda text: None,
            self.workers.resources(session_id),
            distrust=lambda: self.warnings.append(name),
            chat_key=chat,
        )
        return await tools[name].run(checked, context)

    async def text(self, session_id: SessionId, name: str, chat: ChatKey = HOME, **arguments: Any) -> str:
        found = await self.call(session_id, name, chat, **arguments)
        assert isinstance(found, str)
        return found
