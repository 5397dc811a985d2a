"""The share of the process that tool calls get: slots, threads, child processes and room for files."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TypeVar, TypeVarTuple

import msgspec

from talaria.core.errors import ToolError
from talaria.core.ids import SessionId, TurnId
from talaria.core.limits import Limits
from talaria.core.slots import FairSlots, FairThreads
from talaria.workspace.quota import FolderQuota

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_LINE_BYTES = 1 << 20  # the longest line that is read of a child


class ToolWorkers:
    """The resources that all tool calls of the process share. Chats take turns at each of them.

    `threads` and `quota` may be shared with other parts of the gateway.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        threads: FairThreads | None = None,
        quota: FolderQuota | None = None,
    ) -> None:
        self.limits = limits = limits or Limits()
        self.threads = threads or tool_threads(limits)
        self.quota = quota or FolderQuota(limits)
        self._calls = FairSlots(lambda: limits.now.tools, lambda: limits.now.turn_tools)
        self._computing = FairSlots(lambda: 1, lambda: 1)
        self._children = FairSlots(lambda: limits.now.children, lambda: max(1, limits.now.children // 2))
        self._commands = FairSlots(lambda: limits.now.commands, lambda: max(1, limits.now.commands // 2))
        limits.watch("tools", lambda: self._calls.in_use)
        limits.watch("children", lambda: self._children.in_use)
        limits.watch("commands", lambda: self._commands.in_use)

    def slot(self, turn_id: TurnId) -> AbstractAsyncContextManager[None]:
        """Hold one of the slots for calls inside the block. Entering waits for it."""
        return self._calls.slot(turn_id)

    def resources(self, session_id: SessionId) -> TurnResources:
        """Return the resources for the calls of one turn."""
        return TurnResources(self, session_id)

    async def compute(self, session_id: SessionId, function: Callable[[*Ts], T], *args: *Ts) -> T:
        async with self._computing.slot(session_id):
            return await self.threads.run(session_id, function, *args)

    def child_slot(self, session_id: SessionId) -> AbstractAsyncContextManager[None]:
        return self._children.slot(session_id)

    def command_slot(self, session_id: SessionId) -> AbstractAsyncContextManager[None]:
        return self._commands.slot(session_id)


@asynccontextmanager
async def _run(*command: str) -> AsyncIterator[Process]:
    """Run a program inside the block. It is dead and reaped on leaving."""
    # The child never reads or writes its stderr: the kernel closes the other end when this process dies,
    # however it dies, and tells the child by SIGIO if it asked for that.
    life, held = os.pipe()
    try:
        try:
            child = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, stderr=life, env={}, cwd="/", limit=_LINE_BYTES
            )
        finally:
            os.close(life)
        try:
            yield child
        finally:
            with suppress(ProcessLookupError):
                child.kill()
            await child.communicate()  # closes its pipes and reaps it
    finally:
        os.close(held)


def tool_threads(limits: Limits) -> FairThreads:
    """Return threads within `limits.tool_threads`."""
    threads = FairThreads("talaria-tool", lambda: limits.now.tool_threads)
    limits.watch("tool_threads", lambda: threads.in_use)
    return threads


class TurnResources(msgspec.Struct):
    """The resources of the process that the calls of one turn may use. Each is limited, and chats take turns
    at it, so that one chat cannot keep the others waiting. A wait counts towards the call's time limit.

    `child_seconds` is how long the turn's child processes have run, together.
    """

    workers: ToolWorkers
    session_id: SessionId
    child_seconds: float = 0.0

    @property
    def quota(self) -> FolderQuota:
        return self.workers.quota

    async def in_thread(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run a blocking function in a thread for tools. It goes on to its end if the call is cancelled."""
        return await self.workers.threads.run(self.session_id, function, *args)

    async def computing(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run a function that computes for long. Only one such function runs at a time in the process."""
        return await self.workers.compute(self.session_id, function, *args)

    def command(self) -> AbstractAsyncContextManager[None]:
        """Hold one of the slots for commands of shells inside the block. Entering waits for it."""
        return self.workers.command_slot(self.session_id)

    @asynccontextmanager
    async def child(self, *command: str) -> AsyncIterator[Process]:
        """Run a program inside the block, with pipes for stdin and stdout and an empty environment. It has
        ended when the block has. Its stderr is a pipe that is closed when the gateway dies."""
        async with self.child_time(), _run(*command) as child:
            yield child

    @asynccontextmanager
    async def child_time(self) -> AsyncIterator[None]:
        """Hold one of the slots for child processes inside the block, whose time counts for the turn.
        Entering waits for it. Raises `ToolError` if the turn has used up its time."""
        limits, clock = self.workers.limits, asyncio.get_running_loop().time
        async with self.workers.child_slot(self.session_id):
            if self.child_seconds >= limits.now.turn_children.total_seconds():
                raise ToolError(
                    f"The child processes of this turn's tools ran for {self.child_seconds:.0f} seconds.",
                    limits.refuse("turn_children"),
                )
            began = clock()
            try:
                yield
            finally:
                self.child_seconds += clock() - began
