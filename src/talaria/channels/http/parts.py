"""What the HTTP channel is given by the composition root."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from talaria.access.logins import Logins
from talaria.channels.http.settings import HttpSettings
from talaria.core.ports import Histories, Pairings, Store
from talaria.gateway import Webhook
from talaria.models.catalog import Catalog
from talaria.observe.health import Health
from talaria.observe.metrics import Metrics
from talaria.pool.pool import Pool
from talaria.turns.turns import Turns
from talaria.workspace.uploads import Uploads


@dataclass(frozen=True, slots=True)
class HttpParts:
    """`hosts` are the exact Host values that are let in; `status` tells what only the root knows. `hooks` are
    what platforms call, by path, outside the token. `snapshot` makes a copy of the database and says where.

    `keep_alive`: seconds between the comments of a silent stream. `patience`: how long a completion's stream
    holds its headers back, so that a failure can still be an HTTP status.
    """

    turns: Turns
    store: Store
    histories: Histories
    snapshot: Callable[[], Awaitable[Path]]
    pairings: Pairings
    uploads: Uploads
    pool: Pool
    catalog: Catalog
    metrics: Metrics
    health: Health
    settings: HttpSettings
    logins: Logins
    hosts: frozenset[str]
    agent_name: str
    status: Callable[[], Awaitable[Mapping[str, object]]]
    hooks: Mapping[str, Webhook] = field(default_factory=dict)
    keep_alive: float = 15.0
    patience: float = 5.0
