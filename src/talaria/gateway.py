"""The running gateway, as its channels and the command line see it.

`app` builds one `Gateway` and passes it by reference. The list of parts imports this module, so it imports
nothing heavy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from talaria.core.errors import TalariaError
from talaria.core.settings import GatewayPart, S
from talaria.workspace.places import ChatFolders

if TYPE_CHECKING:
    from talaria.access.authorizer import PairingAdmin
    from talaria.access.budgets import Budgets
    from talaria.access.people import People
    from talaria.cluster.following import PeerClient
    from talaria.cluster.membership import Membership
    from talaria.cluster.overview import Overview
    from talaria.cluster.roles import Roles
    from talaria.commands.command import ExtraCommand
    from talaria.config.home import Home
    from talaria.config.reload import Reloader
    from talaria.config.settings import Settings
    from talaria.core.clock import Clock
    from talaria.core.extensions import PluginReport
    from talaria.core.hooks import Hooks
    from talaria.core.ids import ChatKey
    from talaria.core.limits import Limits
    from talaria.core.redaction import Secret, SecretRegistry
    from talaria.core.settings import Parts
    from talaria.jobs.desk import JobDesk
    from talaria.jobs.settings import JobSettings
    from talaria.models.catalog import Catalog
    from talaria.models.local.local_endpoint import LocalEndpoint
    from talaria.models.providers import Providers
    from talaria.observe.health import Health
    from talaria.observe.loop_watch import Holder, LoopWatch
    from talaria.observe.metrics import Metrics
    from talaria.pool.pool import Pool
    from talaria.search.index import LogIndex
    from talaria.store.store import JobStore, Store
    from talaria.tools.execution import ToolRunner
    from talaria.turns.delivery import Delivery
    from talaria.turns.lifecycle import Deletions, SessionLifecycle
    from talaria.turns.notes import ProcessNotes
    from talaria.turns.sending import ChatSender
    from talaria.turns.turns import Turns
    from talaria.workspace.checkpoints.checkpoints import FolderCheckpoints
    from talaria.workspace.network import SessionNetworks
    from talaria.workspace.uploads import Uploads
    from talaria.workspace.workspaces import ChatWorkspaces

_SNAPSHOT_SECONDS = 60.0  # in which a caller opens its copy of the database
_TURNS_SHARE = 0.8  # of the time for shutting down; the rest is for sending their replies


class OpenChannel(Protocol):
    """A channel while it is open."""

    @property
    def status(self) -> str:
        """`ready`, or another word and, behind a colon, the reason."""
        ...


class Admission(NamedTuple):
    """A request of a webhook may have so many bytes. `is_proved`: its headers alone prove the caller."""

    max_body: int
    is_proved: bool = False


class Webhook(Protocol):
    """An endpoint that a platform or a program calls. It is outside the gateway's token, so it has a secret
    of its own. `caller` is the address of the connection."""

    def admit(self, headers: Mapping[bytes, bytes], caller: str) -> Admission:
        """Look at a request before a byte of its body is read.

        Raises a `TalariaError` for a caller that cannot have the secret, or that calls too often.
        """
        ...

    async def receive(self, headers: Mapping[bytes, bytes], body: bytes, caller: str) -> tuple[int, bytes]:
        """Take one request, and return the status and the body of the answer. Return once its content is
        durable; raise if the caller must send it again. Raises `Unproven` for a caller without the secret."""
        ...


class Unproven(TalariaError):
    """The caller of a webhook has not proved that it has the secret."""

    type = "unauthorized"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePart(GatewayPart[S]):
    """A background service of the gateway, such as the deletion of old data, or the scheduler.

    It is opened when everything but the channels is open, and closed before anything else is. A service that
    `needs_serve` starts turns that nobody at the terminal asked for, so a gateway inside `talaria ask` or
    `talaria chat` does not open it.
    """

    needs_serve: bool = False
    open: Callable[[Gateway, S], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionPart(GatewayPart[S]):
    """All plug-ins of a gateway together, beside the parts that they bring. It exists only if there are any.

    `open` opens their hooks; it yields None if they have none. `reports` returns what became of each. `blame`
    is called in a thread with the code that held the event loop, and for how many seconds.
    """

    commands: tuple[ExtraCommand, ...]
    open: Callable[[], AbstractAsyncContextManager[Hooks | None]]
    reports: Callable[[], tuple[PluginReport, ...]]
    blame: Callable[[Holder, float], None]


def find_extensions(parts: Parts) -> ExtensionPart[Any] | None:
    """Return the plug-ins of a gateway with these parts; None if it has none."""
    return next((part for part in parts if isinstance(part, ExtensionPart)), None)


def blame_plugins(parts: Parts, holder: Holder, seconds: float) -> None:
    """Tell the plug-ins, if there are any, which code held the event loop. Blocks."""
    if (plugins := find_extensions(parts)) is not None:
        plugins.blame(holder, seconds)


def plugin_commands(parts: Parts) -> tuple[ExtraCommand, ...]:
    plugins = find_extensions(parts)
    return () if plugins is None else plugins.commands


async def open_hooks(scopes: AsyncExitStack, parts: Parts) -> Hooks | None:
    """Return the hooks of plug-ins, which are open until the scopes are left; None if there are none."""
    plugins = find_extensions(parts)
    return None if plugins is None else await scopes.enter_async_context(plugins.open())


def make_job_desk(
    store: JobStore,
    people: People,
    clock: Clock,
    *,
    timezone: str,
    settings: Callable[[], JobSettings],
    check_model: Callable[[str], object],
) -> JobDesk:
    """Return the place where jobs are made and changed. Its code is imported with the first job."""
    from talaria.jobs.desk import JobDesk  # noqa: PLC0415
    from talaria.jobs.schedules import agent_zone  # noqa: PLC0415

    zone = agent_zone(timezone)
    return JobDesk(store, people, clock, zone=zone, settings=settings, check_model=check_model)


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a home, whether a gateway runs on it or not. Most operations need no more.

    `settings` are those of the start; `current` returns those of now.
    """

    home: Home
    settings: Settings
    clock: Clock
    store: Store
    people: People
    sender: ChatSender
    sessions: SessionLifecycle
    deletions: Deletions
    search: LogIndex
    workspaces: ChatWorkspaces
    pairing: PairingAdmin

    @property
    def folders(self) -> ChatFolders:
        return self.workspaces.folders

    def current(self) -> Settings:
        return self.settings

    def hide(self, secret: Secret) -> None:
        """Keep a new secret out of logs and answers. Without a gateway there are none."""

    def check_model(self, name: str) -> None:
        """Raise `NoModel` for a model that the gateway does not know. Without a gateway none is known."""

    async def snapshot(self, seconds: float = _SNAPSHOT_SECONDS) -> Path:
        """Copy the database to a new file in the home and return its path.

        The caller removes the file when it has read it. A file that is left is deleted after `seconds`, which
        does not disturb a caller that has opened it, and at the latest by the next start. If the caller is
        cancelled, the file is deleted as soon as it is written.
        """
        from talaria.store.archive import new_snapshot  # noqa: PLC0415

        path, loop = new_snapshot(self.home.path), asyncio.get_running_loop()
        remove = partial(path.unlink, missing_ok=True)
        copying = asyncio.ensure_future(self.store.snapshot(path))
        try:
            await asyncio.shield(copying)
        except asyncio.CancelledError:
            # A copy that fails after all leaves no file, and has no caller to tell.
            copying.add_done_callback(lambda done: done.exception() or loop.run_in_executor(None, remove))
            raise
        loop.call_later(seconds, loop.run_in_executor, None, remove)
        return path

    def job_desk(self) -> JobDesk:
        """Return the place where jobs are made and changed."""
        return make_job_desk(
            self.store.jobs,
            self.people,
            self.clock,
            timezone=self.settings.agent.timezone,
            settings=lambda: self.current().jobs,
            check_model=self.check_model,
        )


@dataclass(frozen=True, slots=True)
class Gateway(Records):
    """A running gateway.

    `channels` are the open channels by name. A channel registers the `webhooks` that its platform calls, by
    path. The `overview`, `cluster` and `peers` are there in a cluster only.
    """

    environ: Mapping[str, str]
    providers: Providers
    local: LocalEndpoint
    catalog: Catalog
    pool: Pool
    turns: Turns
    delivery: Delivery
    notes: ProcessNotes
    budgets: Budgets
    uploads: Uploads
    networks: SessionNetworks
    metrics: Metrics
    health: Health
    limits: Limits
    secrets: SecretRegistry
    loop_watch: LoopWatch
    reloader: Reloader
    started_at: float
    tool_runner: ToolRunner
    parts: Parts = ()
    overview: Overview | None = None
    cluster: Membership | None = None
    peers: PeerClient | None = None
    channels: dict[str, OpenChannel] = field(default_factory=dict)
    webhooks: dict[str, Webhook] = field(default_factory=dict)

    def current(self) -> Settings:
        return self.reloader.live.settings

    def hide(self, secret: Secret) -> None:
        self.secrets.add_recent(secret)

    def check_model(self, name: str) -> None:
        self.catalog.resolve(name)

    @property
    def roles(self) -> Roles | None:
        """The roles that this gateway has or wants; None outside a cluster."""
        return None if self.overview is None else self.overview.own_roles

    @property
    def checkpoints(self) -> FolderCheckpoints | None:
        return self.tool_runner.checkpoints

    def chat_folder(self, key: ChatKey) -> Path:
        """Return the folder that holds the files of a chat."""
        return self.folders(key)

    async def drain(self) -> None:
        """Let running turns finish and their replies go out, within `shutdown.deadline`.

        New messages are refused from now on. The next start resumes what does not finish in time.
        """
        seconds = self.settings.shutdown.deadline.total_seconds()
        began = self.clock.elapsed()
        self.abandon_late()
        if self.overview is not None and self.cluster is not None:
            await self.cluster.drain()
            await self.overview.drain(seconds * _TURNS_SHARE)
            seconds -= self.clock.elapsed() - began
            began = self.clock.elapsed()
        await self.turns.drain(seconds * _TURNS_SHARE)
        await self.delivery.drain(max(0.0, seconds - (self.clock.elapsed() - began)))

    def abandon_late(self) -> None:
        """Let the end of the process wait for a database that is gone only until the deadline has passed."""
        seconds = self.settings.shutdown.deadline.total_seconds()
        asyncio.get_running_loop().call_later(seconds, self.store.abandon)
