"""Health, readiness and the status of the gateway, as the HTTP API shows them."""

from __future__ import annotations

from typing import Any

import msgspec

from talaria.cluster.overview import MemberState, Overview
from talaria.core.background import ProcessInfo
from talaria.core.cluster import Member, MemberFigures
from talaria.core.extensions import PluginReport
from talaria.core.ids import OwnerId, PlaceId
from talaria.core.limits import LimitReading
from talaria.models.local.larger import LargerModel
from talaria.observe.health import GatewayPhase
from talaria.observe.metrics import EndpointReading, LoopReading, NetworkReading, ServerReading
from talaria.search.hits import IndexReading
from talaria.skills.pins import SkillsReading


class HealthView(msgspec.Struct, frozen=True):
    live: bool
    phase: GatewayPhase


class ReadyView(msgspec.Struct, frozen=True):
    """`troubles` names the checks that fail; `/api/status` says why."""

    ready: bool
    phase: GatewayPhase
    loop_lag_seconds: float
    troubles: tuple[str, ...]


class BackupView(msgspec.Struct, frozen=True):
    """`database` is the path of the copy on the gateway's machine."""

    database: str


class DescriptorView(msgspec.Struct, frozen=True):
    open: int
    most: int


class DefaultModelView(msgspec.Struct, frozen=True):
    """`missing_keys` has the variables of keys that this process lacks, by provider."""

    default: str
    missing_keys: dict[str, str]


class BuiltInModelView(msgspec.Struct, frozen=True):
    """`weights` is the download that is under way."""

    pid: int | None
    weights: dict[str, Any] | None
    larger: LargerModel


class StoreView(msgspec.Struct, frozen=True):
    engine: str
    schema: int
    size_bytes: int
    wal_bytes: int
    sessions: int
    integrity: str
    trouble: str


class OwedView(msgspec.Struct, frozen=True):
    turns: int
    replies: int
    oldest_seconds: float
    channels: dict[str, int]


class JobsView(msgspec.Struct, frozen=True):
    """Jobs by state, and the runs that are due or under way. `late_seconds` is how long the run waits that
    has waited longest."""

    jobs: dict[str, int]
    runs: dict[str, int]
    late_seconds: float


class MemberView(msgspec.Struct, frozen=True):
    """A gateway of the cluster. `expires_seconds` is the time until others take its chats unless it renews,
    negative if they may. `roles` are those that it has. `unreachable` says why the gateway that answers
    cannot reach it. The figures are from its last renewal."""

    id: OwnerId
    place: PlaceId
    is_here: bool
    state: MemberState
    host: str
    url: str
    version: str
    schema: int
    started_at: float
    expires_seconds: float
    has_shared_files: bool
    roles: tuple[str, ...]
    figures: MemberFigures
    unreachable: str = ""


class ClusterView(msgspec.Struct, frozen=True):
    """The gateways that serve the database together. `is_out`: this one could not renew its time and begins
    no turns. `troubles` keep it from working with the others."""

    member: OwnerId
    place: PlaceId
    lease_seconds: float
    is_out: bool
    members: tuple[MemberView, ...]
    roles: dict[str, OwnerId]
    troubles: tuple[str, ...]


class StatusView(msgspec.Struct, frozen=True):
    version: str
    uptime_seconds: float
    pid: int
    rss_bytes: int
    descriptors: DescriptorView
    phase: GatewayPhase
    ready: bool
    reasons: tuple[str, ...]
    model: DefaultModelView
    endpoints: dict[str, EndpointReading]
    built_in_model: BuiltInModelView
    channels: dict[str, str]
    mcp_servers: dict[str, ServerReading]
    skills: SkillsReading
    plugins: tuple[PluginReport, ...]
    spending: dict[str, Any]
    config: dict[str, Any]
    limits: dict[str, LimitReading]
    loop: LoopReading
    scheduled_work_waits: str
    network: NetworkReading
    store: StoreView
    turns: dict[str, int]
    owed: OwedView
    jobs: JobsView
    search: IndexReading | None  # None until the index was used
    processes: tuple[ProcessInfo, ...]  # in the background, that run
    cluster: ClusterView | None


def view_cluster(overview: Overview) -> ClusterView:
    """Return the cluster as it was last read."""
    holders = {role.name: role.owner for role in overview.roles if overview.left(role.expires_at) > 0}
    lost = overview.unreachable()

    def view(member: Member) -> MemberView:
        return MemberView(
            id=member.owner,
            place=member.place,
            is_here=member.owner == overview.me.owner,
            state=overview.state_of(member),
            host=member.host,
            url=member.url,
            version=member.version,
            schema=member.schema,
            started_at=member.started_at,
            expires_seconds=round(overview.left(member.expires_at), 3),
            has_shared_files=member.has_shared_files,
            roles=tuple(sorted(name for name, owner in holders.items() if owner == member.owner)),
            figures=member.figures,
            unreachable=lost.get(member.owner, ""),
        )

    return ClusterView(
        member=overview.me.owner,
        place=overview.me.place,
        lease_seconds=overview.own_roles.lease_seconds,
        is_out=overview.is_out,
        members=tuple(map(view, overview.members)),
        roles=holders,
        troubles=overview.troubles(),
    )
