"""Operations on the gateway as a whole: status, agent pool, database copy, and model downloads."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated, Any, Final

import msgspec

from talaria.cluster.overview import MemberState, Overview
from talaria.core.cluster import Member, MemberFigures
from talaria.core.errors import NoModel
from talaria.core.extensions import PluginReport
from talaria.core.ids import OwnerId, PlaceId
from talaria.core.jobs import JobCounts
from talaria.core.limits import LimitReading
from talaria.core.program import this_version
from talaria.core.shells import ProcessInfo
from talaria.core.views import view_of
from talaria.gateway import Gateway, Records, find_extensions
from talaria.models.catalog import providers_in_use
from talaria.models.local.downloads import LargerModel
from talaria.observe.health import GatewayPhase, count_descriptors, descriptor_limit, read_rss
from talaria.observe.metrics import EndpointReading, LoopReading, NetworkReading, ServerReading
from talaria.operations.operation import OPERATE, READ, Nothing, OperationCall, argument, operation
from talaria.pool.pool import PoolStats
from talaria.search.index import IndexReading
from talaria.skills.pins import SkillsReading, read_status


class BackupView(msgspec.Struct, frozen=True):
    """`database` is the path of the copy on the gateway's machine."""

    database: str


class DescriptorView(msgspec.Struct, frozen=True):
    open: int
    most: int


class DefaultModelView(msgspec.Struct, frozen=True):
    """The default model. `missing_keys` names the unset API key variables, by provider."""

    default: str
    missing_keys: dict[str, str]


class BuiltInModelView(msgspec.Struct, frozen=True):
    """The built-in model. `weights` is the current download, if there is one."""

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
    trouble_type: str = ""  # older gateways do not tell it


class OwedView(msgspec.Struct, frozen=True):
    turns: int
    replies: int
    oldest_seconds: float
    channels: dict[str, int]


class JobsView(msgspec.Struct, frozen=True):
    """Number of jobs by state, and of due and running runs. `late_seconds` is the longest time that a run has
    been waiting."""

    jobs: dict[str, int]
    runs: dict[str, int]
    late_seconds: float


class MemberView(msgspec.Struct, frozen=True):
    """A gateway of the cluster. `expires_seconds` is the time until its lease expires, negative if it has
    expired and others may take over its chats. `unreachable` says why the answering gateway cannot reach it.
    `figures` are from its last lease renewal."""

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
    """The gateways that serve the same database. If `is_out`, this gateway could not renew its lease and
    starts no turns. `troubles` says what keeps it from working with the others."""

    member: OwnerId
    place: PlaceId
    lease_seconds: float
    is_out: bool
    members: tuple[MemberView, ...]
    roles: dict[str, OwnerId]
    troubles: tuple[str, ...]


class StatusView(msgspec.Struct, frozen=True):
    # Give new fields a default: commands of a newer version also read the status of an older gateway.
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
    processes: tuple[ProcessInfo, ...]  # running background processes
    cluster: ClusterView | None


def view_cluster(overview: Overview) -> ClusterView:
    """Return the cluster as it was last read."""
    holders = {role.name: role.owner for role in overview.roles if overview.left(role.expires_at) > 0}
    lost = overview.unreachable()

    def view(member: Member) -> MemberView:
        return view_of(
            MemberView,
            member,
            id=member.owner,
            is_here=member.owner == overview.me.owner,
            state=overview.state_of(member),
            expires_seconds=round(overview.left(member.expires_at), 3),
            roles=tuple(sorted(name for name, owner in holders.items() if owner == member.owner)),
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


class ModelName(msgspec.Struct, frozen=True):
    name: Annotated[str, argument("Name of the built-in model.", "NAME")]


# -- handlers ---------------------------------------------------------------------------------------------


@operation("gateway.status", "GET /api/status", READ)
async def show_status(gateway: Gateway, call: OperationCall, wanted: Nothing) -> StatusView:
    """Show the status of the gateway."""
    health, overview = gateway.health, gateway.overview
    no_spending: dict[str, object] = {}
    stats, spending, jobs, _ = await asyncio.gather(
        gateway.store.stats(),
        health.ask_store("spending", gateway.budgets.status, no_spending),
        count_jobs(gateway),
        asyncio.sleep(0) if overview is None else health.ask_store("cluster", overview.look, None),
    )
    readiness = health.readiness()  # last: trouble may begin meanwhile
    return StatusView(
        version=this_version(),
        uptime_seconds=round(gateway.clock.now() - gateway.started_at, 3),
        pid=os.getpid(),
        rss_bytes=read_rss(),
        descriptors=DescriptorView(count_descriptors(), descriptor_limit()),
        phase=readiness.phase,
        ready=readiness.is_ready,
        reasons=readiness.reasons,
        model=_default_model(gateway),
        endpoints=gateway.providers.readings(),
        built_in_model=_built_in_model(gateway),
        channels={name: channel.status for name, channel in gateway.channels.items()},
        mcp_servers=gateway.tool_runner.servers(),
        skills=read_status(gateway.home.path),
        plugins=() if (plugins := find_extensions(gateway.parts)) is None else plugins.reports(),
        spending=spending,
        config=gateway.reloader.status(),
        limits=gateway.limits.readings(),
        loop=gateway.loop_watch.reading(),
        scheduled_work_waits=gateway.loop_watch.load.runs_wait(),
        network=gateway.networks.reading(),
        store=view_of(StoreView, stats),
        turns=stats.turns,
        owed=OwedView(stats.owed, stats.outbox, round(stats.oldest_seconds, 3), stats.unsent),
        jobs=_view_jobs(jobs, gateway.store.clock.now()),
        processes=tuple(gateway.notes.processes.infos()),
        search=gateway.search.reading,
        cluster=None if overview is None else view_cluster(overview),
    )


async def count_jobs(gateway: Gateway) -> JobCounts:
    return await gateway.health.ask_store("jobs", gateway.store.jobs.counts, JobCounts({}, {}))


def _view_jobs(counts: JobCounts, now: float) -> JobsView:
    late = 0.0 if counts.oldest_due is None else now - counts.oldest_due
    return JobsView(counts.jobs, counts.slots, round(max(0.0, late), 3))


def _default_model(gateway: Gateway) -> DefaultModelView:
    """Return the default model, and the keys in use that this process does not have."""
    now = gateway.current()
    try:
        default = str(gateway.catalog.default())
    except NoModel:
        default = ""
    in_use = (default.partition("/")[0], *providers_in_use(now.model, now.aliases))
    return DefaultModelView(default, gateway.providers.missing_keys(in_use))


def _built_in_model(gateway: Gateway) -> BuiltInModelView:
    return msgspec.convert(gateway.local.status(), BuiltInModelView)


@operation("gateway.pool", "GET /api/pool", READ)
async def show_pool(gateway: Gateway, call: OperationCall, wanted: Nothing) -> PoolStats:
    """Show the agent pool."""
    return gateway.pool.stats()


@operation("gateway.backup", "POST /api/backup", OPERATE, audit="backup", answer_seconds=None)
async def copy_database(records: Records, call: OperationCall, wanted: Nothing) -> BackupView:
    """Copy the database to a file in the home and return its path."""
    # `talaria backup` packs and deletes the file. The gateway deletes a leftover file after a minute.
    return BackupView(str(await records.snapshot()))


@operation(
    "models.fetch",
    "POST /api/models/{name}/fetch",
    OPERATE,
    audit="model.fetch",
    status=202,
    errors=("not_found", "busy", "too_little_memory", "model_refused"),
)
async def fetch_model(gateway: Gateway, call: OperationCall, wanted: ModelName) -> BuiltInModelView:
    """Start downloading a built-in model. Returns `built_in_model` of the status."""
    call.about = wanted.name
    gateway.local.fetch(wanted.name)
    return _built_in_model(gateway)


GATEWAY_OPERATIONS: Final = (show_status, show_pool, copy_database, fetch_model)
