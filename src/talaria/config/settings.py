"""All settings of a gateway, assembled from each package's own."""

from __future__ import annotations

import msgspec

from talaria.agent.settings import AgentSettings
from talaria.channels.http.settings import HttpSettings
from talaria.models.settings import ModelSettings, ProviderSettings
from talaria.observe.settings import LogSettings
from talaria.pool.settings import PoolSettings
from talaria.store.settings import StoreSettings
from talaria.tools.settings import ToolSettings
from talaria.turns.settings import RetentionSettings, SessionSettings, ShutdownSettings


class Settings(msgspec.Struct, frozen=True):
    """One field per table of config.toml. `Settings()` is what runs without a file."""

    agent: AgentSettings = AgentSettings()
    model: ModelSettings = ModelSettings()
    aliases: dict[str, str] = {}
    providers: dict[str, ProviderSettings] = {}
    pool: PoolSettings = PoolSettings()
    sessions: SessionSettings = SessionSettings()
    tools: ToolSettings = ToolSettings()
    http: HttpSettings = HttpSettings()
    store: StoreSettings = StoreSettings()
    retention: RetentionSettings = RetentionSettings()
    shutdown: ShutdownSettings = ShutdownSettings()
    log: LogSettings = LogSettings()
