"""All settings of a gateway: the tables that every gateway has, and those that its parts bring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, cast, get_type_hints

import msgspec

from talaria.access.settings import BudgetSettings, HookName, PersonName, PersonSettings, WebhookSettings
from talaria.agent.settings import AgentName, AgentSettings, ContextSettings, NamedAgentSettings
from talaria.cluster.membership import ClusterSettings
from talaria.config.plugins import PLUGIN_TABLES, PluginName, read_table
from talaria.core.limits import LimitSettings
from talaria.core.settings import GatewayPart, KeyPath, Mark, Parts, S
from talaria.jobs.settings import JobSettings
from talaria.models.known import Abilities, PriceSettings
from talaria.models.settings import (
    AliasTarget,
    LocalSettings,
    ModelPattern,
    ModelSettings,
    ProviderName,
    ProviderSettings,
)
from talaria.net.host_rules import NetworkSettings
from talaria.observe.logs import LogSettings
from talaria.pool.policy import PoolSettings
from talaria.store.settings import StoreSettings
from talaria.tools.settings import DelegateSettings, ToolSettings
from talaria.turns.settings import DeliverySettings, RetentionSettings, SessionSettings, ShutdownSettings
from talaria.workspace.browser.settings import BrowserSettings


class Settings(msgspec.Struct, frozen=True):
    """The settings, with a field for each table of config.toml. `settings_type` adds the tables of parts."""

    agent: AgentSettings = AgentSettings()
    model: ModelSettings = ModelSettings()
    aliases: Annotated[dict[ProviderName, AliasTarget], Mark.LIVE] = {}
    providers: Annotated[dict[ProviderName, ProviderSettings], Mark.LIVE] = {}
    models: dict[ModelPattern, Abilities] = {}
    prices: Annotated[dict[ModelPattern, PriceSettings], Mark.LIVE] = {}
    budgets: Annotated[BudgetSettings, Mark.LIVE] = BudgetSettings()
    people: Annotated[dict[PersonName, PersonSettings], Mark.LIVE] = {}
    webhooks: Annotated[dict[HookName, WebhookSettings], Mark.LIVE] = {}
    limits: Annotated[LimitSettings, Mark.LIVE] = LimitSettings()
    agents: Annotated[dict[AgentName, NamedAgentSettings], Mark.LIVE] = {}
    pool: Annotated[PoolSettings, Mark.LIVE] = PoolSettings()
    sessions: SessionSettings = SessionSettings()
    tools: ToolSettings = ToolSettings()
    delegates: Annotated[DelegateSettings, Mark.LIVE] = DelegateSettings()
    context: ContextSettings = ContextSettings()
    network: NetworkSettings = NetworkSettings()
    browser: BrowserSettings = BrowserSettings()
    store: StoreSettings = StoreSettings()
    cluster: ClusterSettings = ClusterSettings()
    delivery: DeliverySettings = DeliverySettings()
    retention: RetentionSettings = RetentionSettings()
    shutdown: ShutdownSettings = ShutdownSettings()
    jobs: Annotated[JobSettings, Mark.LIVE] = JobSettings()
    log: LogSettings = LogSettings()
    local: LocalSettings = LocalSettings()
    plugins: dict[PluginName, dict[str, Any]] = {}

    def problems(self) -> Iterator[tuple[str, str]]:
        owners: dict[str, str] = {}
        for name, person in self.people.items():
            for identity in person.ids:
                if (other := owners.setdefault(identity, name)) != name:
                    yield "people", f"has {identity} twice: expected one person, {other} or {name}."

    def of(self, part: GatewayPart[S]) -> S:
        """Return the settings of a part; its defaults if these settings are of a type without its table."""
        if part.table[:1] == PLUGIN_TABLES:
            return read_table(part.settings, self.plugins.get(part.table[1], {}))
        value: object = self
        for name in part.table:
            value = getattr(value, name, None)
        return value if isinstance(value, part.settings) else part.settings()


def settings_type(parts: Parts) -> type[Settings]:
    """Return the type of the settings of a gateway with these parts; the same type for the same parts."""
    own = [
        part
        for part in parts
        if part.table[:1] not in ((), PLUGIN_TABLES) and part.settings is not _core_table(part.table)
    ]
    return _settings_type(tuple((part.table, part.settings, part.is_required) for part in own))


def _core_table(path: KeyPath) -> Any:
    """Return the struct of a table that every gateway has, which parts may share; None for another table."""
    return _core_tables().get(path[0]) if len(path) == 1 else None


@cache
def _core_tables() -> dict[str, Any]:
    return get_type_hints(Settings)


@cache
def _settings_type(tables: tuple[tuple[KeyPath, type[msgspec.Struct], bool], ...]) -> type[Settings]:
    kinds = {path: kind if is_required else Annotated[kind, Mark.LIVE] for path, kind, is_required in tables}
    return _extend(Settings, kinds) if kinds else Settings


def _extend(base: type[S], tables: Mapping[KeyPath, Any]) -> type[S]:
    """Return a subclass of the struct with a field for each table, whatever the depth of its path."""
    fields = []
    for name in dict.fromkeys(path[0] for path in tables):
        inner = {path[1:]: kind for path, kind in tables.items() if path[0] == name}
        own = (
            inner.pop((), None) or get_type_hints(base).get(name) or msgspec.defstruct(name, [], frozen=True)
        )
        kind = _extend(own, inner) if inner else own
        fields.append((name, kind, kind()))
    return cast("type[S]", msgspec.defstruct(base.__name__, fields, bases=(base,), frozen=True))
