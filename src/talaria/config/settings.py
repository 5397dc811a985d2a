"""All settings of a gateway, assembled from each package's own."""

from __future__ import annotations

import msgspec

from talaria.access.settings import BudgetSettings
from talaria.agent.settings import AgentSettings
from talaria.channels.http.settings import HttpSettings
from talaria.channels.telegram.settings import TelegramSettings
from talaria.models.abilities import Abilities
from talaria.models.local.settings import LocalSettings
from talaria.models.prices import PriceSettings
from talaria.models.settings import ModelSettings, ProviderSettings
from talaria.observe.settings import LogSettings
from talaria.pool.settings import PoolSettings
from talaria.store.settings import StoreSettings
from talaria.tools.settings import ToolSettings
from talaria.turns.settings import DeliverySettings, RetentionSettings, SessionSettings, ShutdownSettings


class ChannelSettings(msgspec.Struct, frozen=True):
    """One field per chat platform."""

    telegram: TelegramSettings = TelegramSettings()


class Settings(msgspec.Struct, frozen=True):
    """One field per table of config.toml. `Settings()` is what runs without a file."""

    agent: AgentSettings = AgentSettings()
    model: ModelSettings = ModelSettings()
    aliases: dict[str, str] = {}
    providers: dict[str, ProviderSettings] = {}
    models: dict[str, Abilities] = {}
    prices: dict[str, PriceSettings] = {}
    budgets: BudgetSettings = BudgetSettings()
    pool: PoolSettings = PoolSettings()
    sessions: SessionSettings = SessionSettings()
    tools: ToolSettings = ToolSettings()
    http: HttpSettings = HttpSettings()
    store: StoreSettings = StoreSettings()
    delivery: DeliverySettings = DeliverySettings()
    retention: RetentionSettings = RetentionSettings()
    shutdown: ShutdownSettings = ShutdownSettings()
    channels: ChannelSettings = ChannelSettings()
    log: LogSettings = LogSettings()
    local: LocalSettings = LocalSettings()
