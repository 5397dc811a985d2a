"""The workspaces of a running gateway: files, shells, processes and networks of sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from talaria.cluster.leash import LEASH_FILE
from talaria.config.reload import LiveSettings
from talaria.core.ids import ChatKey, SessionId
from talaria.core.limits import Limits
from talaria.core.slots import FairThreads
from talaria.observe.metrics import Metrics, network_metrics
from talaria.skills.pins import readable_folders
from talaria.tools.environment import command_environ
from talaria.workspace.chat_folders import ChatFolders
from talaria.workspace.command_guard import CommandGuard
from talaria.workspace.network import SessionNetworks
from talaria.workspace.sandbox.choice import Sandboxes
from talaria.workspace.sandbox.port import ProcessLimits
from talaria.workspace.shell import SessionCommands
from talaria.workspace.workspaces import ChatWorkspaces


@asynccontextmanager
async def open_workspaces(
    home: Path,
    live: LiveSettings,
    environ: Mapping[str, str],
    threads: FairThreads,
    folders: ChatFolders,
    *,
    limits: Limits,
    metrics: Metrics,
    is_clustered: bool,
    chat_of: Callable[[SessionId], Awaitable[ChatKey | None]],
    taint: Callable[[ChatKey, str], Awaitable[None]],
) -> AsyncIterator[tuple[ChatWorkspaces, SessionNetworks]]:
    """Open the workspaces while the context is open. Leaving it ends no session.

    What a command loads from the network is untrusted, so it taints the folders of its chat: `taint` is
    awaited before the first byte arrives. `chat_of` returns the chat of a session.
    """
    tools = live.settings.tools

    async def taint_chat(session_id: SessionId) -> None:
        chat_key = workspaces.borrower(session_id) or await chat_of(session_id)
        if chat_key is not None:
            await taint(chat_key, "network")

    networks = SessionNetworks(
        home,
        lambda: live.settings.network,
        threads=threads,
        count=metrics.command_connected,
        on_reach=taint_chat,
    )
    metrics.watch(lambda: network_metrics(networks.reading()))
    guard = CommandGuard(home / LEASH_FILE) if is_clustered else None
    commands = SessionCommands(
        Sandboxes(tools.sandbox, home, folders.shared),
        partial(command_environ, tools, environ),
        ProcessLimits(tools.command_memory, tools.command_processes),
        networks,
        threads,
        readable=partial(readable_folders, home),
        guard=guard,
    )
    workspaces = ChatWorkspaces(home, (networks,), commands, folders, limits)
    try:
        await networks.resume()
        yield workspaces, networks
    finally:
        await workspaces.close()
        if guard is not None:
            await guard.close()
