"""A running gateway among others on the same database: it joins them, and shares roles and replies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from talaria.cluster.following import PeerClient
from talaria.cluster.leases import LeaseKeeper
from talaria.cluster.member_checks import ClusterToken
from talaria.cluster.membership import Membership, join_cluster
from talaria.cluster.overview import Overview, open_overview
from talaria.cluster.settings import ClusterSettings
from talaria.core.clock import Clock
from talaria.core.cluster import MemberFigures, Wake
from talaria.gateway import OpenChannel
from talaria.observe.health import Health, read_rss
from talaria.observe.metrics import Metrics
from talaria.pool.pool import Pool
from talaria.store.store import Store
from talaria.tools.workers import ToolWorkers
from talaria.turns.delivery import Delivery
from talaria.turns.followed import FollowedTurns
from talaria.turns.other_feeds import OtherFeeds
from talaria.turns.turns import Turns
from talaria.workspace.chat_folders import ChatFolders
from talaria.workspace.member_uploads import ChatFileRoutes, MemberUploads
from talaria.workspace.uploads import Uploads

_MOST_TROUBLE = 300  # characters that other gateways are told


@dataclass(frozen=True, slots=True)
class ClusterScope:
    """The membership of a gateway, the clock of its database, its token of the cluster, and the client with
    which it calls other members. `routes` lead to the files of chats."""

    membership: Membership
    clock: Clock
    token: ClusterToken
    store: Store
    peers: PeerClient

    @property
    def routes(self) -> ChatFileRoutes:
        own = self.membership
        return ChatFileRoutes(own.store, self.peers, own.here, self.clock, own.chats.claim)


@asynccontextmanager
async def join_others(
    store: Store,
    clock: Clock,
    settings: ClusterSettings,
    home: Path,
    *,
    environ: Mapping[str, str],
    keeper: LeaseKeeper,
    files: str = "",
) -> AsyncIterator[ClusterScope]:
    """Be a member of the database's cluster while the context is open. `files` is the id of the folder of
    `store.files`. Raises `ConfigError` if this gateway cannot serve beside those that are there."""
    secret = settings.find_token(environ)
    token = ClusterToken.of(settings.token_env, secret)
    known = (store, clock, keeper, settings, home)
    async with join_cluster(*known, token=token, files=files) as membership:
        peers = PeerClient(secret, now=store.clock.now)
        try:
            yield ClusterScope(membership, store.clock, token, store, peers)
        finally:
            await peers.close()  # a start that is refused may have called a member


def make_uploads(
    scope: ClusterScope | None, folders: ChatFolders, clock: Clock, workers: ToolWorkers
) -> Uploads:
    """Return the uploads of a gateway, which is alone or one of a cluster."""
    known = (folders.files, folders, clock, workers.threads, workers.quota)
    if scope is None:
        return Uploads(*known)
    return MemberUploads(*known, routes=scope.routes)


@dataclass(frozen=True, slots=True)
class OwnFigures:
    """Measures what this gateway tells the others of itself."""

    keeper: LeaseKeeper
    pool: Pool
    metrics: Metrics
    health: Health
    channels: Mapping[str, OpenChannel]

    def measure(self) -> MemberFigures:
        ready = (name for name, channel in self.channels.items() if channel.status.startswith("ready"))
        return MemberFigures(
            turns=len(self.keeper),
            agents=self.pool.stats().size,
            rss_bytes=read_rss(),
            turns_total=self.metrics.turns_ended,
            channels=tuple(sorted(ready)),
            trouble="; ".join(self.health.readiness().reasons)[:_MOST_TROUBLE],
        )


@asynccontextmanager
async def work_together(
    scope: ClusterScope, figures: OwnFigures, turns: Turns, delivery: Delivery
) -> AsyncIterator[Overview]:
    """Share roles and the sending of replies with the others while the context is open, follow their turns,
    and watch them. `Turns.drain` closes the client."""
    own = scope.membership
    followed = FollowedTurns(scope.store, own.store, turns.live, scope.peers, own.owner)
    turns.use_followed(followed, OtherFeeds(scope.store, turns.live.feed, scope.peers, own.owner))
    delivery.use_files(scope.routes.read)
    own.on_wake(Wake.OUTBOX, delivery.wake)
    async with open_overview(own, scope.clock, scope.token, figures.measure, scope.peers) as overview:
        delivery.share(lambda: own.wake(Wake.OUTBOX), scope.clock.now, overview.own_roles.has_channel)
        figures.health.watch("cluster", overview.trouble)
        figures.metrics.watch_cluster(own.me.place, overview.reading)
        yield overview
