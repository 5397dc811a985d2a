"""A running gateway among others on the same database: it joins them, and shares roles and replies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from talaria.cluster.following import PeerClient
from talaria.cluster.leases import LeaseKeeper
from talaria.cluster.member_checks import ClusterToken
from talaria.cluster.membership import Membership, join_cluster
from talaria.cluster.overview import Overview, open_overview
from talaria.cluster.settings import ClusterSettings
from talaria.core.clock import Clock
from talaria.core.cluster import MemberFigures, Wake
from talaria.core.store_ports import StoreEngine
from talaria.gateway import OpenChannel
from talaria.observe.health import Health, read_rss
from talaria.observe.metrics import Metrics
from talaria.pool.pool import Pool
from talaria.turns.delivery import Delivery
from talaria.turns.followed import FollowedTurns
from talaria.turns.other_feeds import OtherFeeds
from talaria.turns.turns import Turns

_MOST_TROUBLE = 300  # characters that other gateways are told


@dataclass(frozen=True, slots=True)
class ClusterScope:
    """The membership of a gateway, the clock of its database, and its token of the cluster. The secret is
    left out of the repr."""

    membership: Membership
    clock: Clock
    token: ClusterToken
    secret: str = field(repr=False)


@asynccontextmanager
async def join_others(
    store: StoreEngine,
    clock: Clock,
    settings: ClusterSettings,
    home: Path,
    *,
    environ: Mapping[str, str],
    keeper: LeaseKeeper,
    has_shared_files: bool = False,
) -> AsyncIterator[ClusterScope]:
    """Be a member of the database's cluster while the context is open. Raises `ConfigError` if this gateway
    cannot serve beside those that are there."""
    secret = settings.find_token(environ)
    token = ClusterToken(settings.token_env, bool(secret))
    known = (store, clock, keeper, settings, home)
    async with join_cluster(*known, token=token, has_shared_files=has_shared_files) as membership:
        yield ClusterScope(membership, store.clock, token, secret)


def reach_peers(scope: ClusterScope, turns: Turns, store: StoreEngine) -> PeerClient:
    """Let the turns of other members be followed. `Turns.drain` closes the client."""
    peers, own = PeerClient(scope.secret), scope.membership
    followed = FollowedTurns(store, own.store, turns.live, peers, own.owner)
    turns.use_followed(followed, OtherFeeds(store, turns.live.feed, peers, own.owner))
    return peers


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
    scope: ClusterScope, figures: OwnFigures, delivery: Delivery, peers: PeerClient
) -> AsyncIterator[Overview]:
    """Share roles and the sending of replies with the others while the context is open, and watch them."""
    own = scope.membership
    delivery.share(lambda: own.wake(Wake.OUTBOX), scope.clock.now)
    own.on_wake(Wake.OUTBOX, delivery.wake)
    async with open_overview(own, scope.clock, scope.token, figures.measure, peers) as overview:
        figures.health.watch("cluster", overview.trouble)
        figures.metrics.watch_cluster(own.me.place, overview.reading)
        yield overview
