"""Health, readiness and the status of the gateway, as the HTTP API shows them."""

from __future__ import annotations

from typing import Any

import msgspec

from talaria.core.background import ProcessInfo
from talaria.core.extensions import PluginReport
from talaria.core.limits import LimitReading
from talaria.core.tokens import NamedToken
from talaria.models.local.larger import LargerModel
from talaria.observe.health import GatewayPhase
from talaria.observe.metrics import EndpointReading, LoopReading, NetworkReading, ServerReading
from talaria.skills.pins import SkillsReading


class HealthView(msgspec.Struct, frozen=True):
    live: bool
    phase: GatewayPhase


class ReadyView(msgspec.Struct, frozen=True):
    ready: bool
    phase: GatewayPhase
    loop_lag_seconds: float


class BackupView(msgspec.Struct, frozen=True):
    """`database` is the path of the copy on the gateway's machine."""

    database: str


class TokenList(msgspec.Struct, frozen=True):
    tokens: tuple[NamedToken, ...]


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
    processes: tuple[ProcessInfo, ...]  # in the background, that run
