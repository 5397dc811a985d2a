"""The gateway's numbers for Prometheus, in a registry of their own.

Labels are providers, tools, routes and states, never sessions or people. What is counted often goes through
label children that are looked up once; what is merely known (pool, memory) is read when somebody scrapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from talaria.core.ledger import StoreStats
from talaria.core.messages import TokenUsage
from talaria.observe.health import read_rss

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER = "other"
_MOST_CHILDREN = 256
_TURN_SECONDS = (0.01, 0.1, 0.5, 2, 10, 30, 120, 600)
_MODEL_SECONDS = (0.1, 0.5, 1, 2, 5, 15, 60, 300)


class PoolReading(msgspec.Struct, frozen=True):
    """What the warm pool says of itself: three gauges, its bytes, and counters since the start."""

    size: int = 0
    busy: int = 0
    building: int = 0
    bytes: int = 0
    hits: int = 0
    builds: int = 0
    catchups: int = 0
    rebuilds: int = 0
    evicted_cap: int = 0
    evicted_idle: int = 0
    evicted_bytes: int = 0
    released: int = 0


class Metrics:
    """Counts on the event loop's thread; `render` may be called at any time."""

    def __init__(self) -> None:
        # A start time per series doubles the page and tells nothing.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry = CollectorRegistry()
        self._turns = _Children(
            Counter("talaria_turns_total", "Turns that ended.", ("state", "channel"), registry=registry)
        )
        self._turn_seconds = Histogram(
            "talaria_turn_seconds", "From accepted to ended.", buckets=_TURN_SECONDS, registry=registry
        )
        self._calls = _Children(
            Counter("talaria_model_calls_total", "Model calls.", ("provider", "outcome"), registry=registry)
        )
        self._model_seconds = Histogram(
            "talaria_model_seconds", "One model call.", buckets=_MODEL_SECONDS, registry=registry
        )
        self._tokens = _Children(
            Counter("talaria_tokens_total", "Tokens used.", ("provider", "kind"), registry=registry)
        )
        self._tools = _Children(
            Counter("talaria_tool_calls_total", "Tool calls.", ("tool", "outcome"), registry=registry)
        )
        self._requests = _Children(
            Counter("talaria_http_requests_total", "HTTP answers.", ("route", "status"), registry=registry)
        )
        self._streams = Gauge("talaria_event_streams", "Open event streams.", registry=registry)
        self._rss = Gauge("talaria_rss_bytes", "Resident memory of this process.", registry=registry)
        self._rss.set_function(read_rss)
        self._wal = Gauge("talaria_store_wal_bytes", "Size of the write-ahead log.", registry=registry)
        self._size = Gauge("talaria_store_bytes", "Size of the database.", registry=registry)
        self._owed = Gauge("talaria_owed_turns", "Turns accepted and not settled.", registry=registry)
        self._outbox = Gauge("talaria_outbox", "Replies not yet sent.", registry=registry)

    # -- counting

    def turn_ended(self, state: str, channel: str, seconds: float) -> None:
        self._turns.get(state, channel).inc()
        self._turn_seconds.observe(seconds)

    def model_called(self, provider: str, outcome: str, seconds: float) -> None:
        """`outcome` is "ok" or the error's type."""
        self._calls.get(provider, outcome).inc()
        self._model_seconds.observe(seconds)

    def tokens_used(self, provider: str, usage: TokenUsage) -> None:
        """`input` counts what the prompt cache did not serve, so that the kinds add up."""
        self._tokens.get(provider, "input").inc(max(0, usage.input - usage.cached))
        self._tokens.get(provider, "cached").inc(usage.cached)
        self._tokens.get(provider, "output").inc(usage.output)

    def tool_called(self, tool: str, outcome: str) -> None:
        self._tools.get(tool, outcome).inc()

    def request_answered(self, route: str, status: int) -> None:
        """`route` is the pattern (`/api/turns/{id}`), never the path."""
        self._requests.get(route, str(status)).inc()

    @contextmanager
    def event_stream(self) -> Iterator[None]:
        """Counts a stream as open while the block runs."""
        self._streams.inc()
        try:
            yield
        finally:
            self._streams.dec()

    # -- reading

    def watch_pool(self, read: Callable[[], PoolReading]) -> None:
        """Ask the pool at each scrape. `read` must be quick and must not raise."""
        self._registry.register(_PoolCollector(read))

    def watch_log_drops(self, read: Callable[[], int]) -> None:
        """Ask the log how many records it dropped, at each scrape."""
        self._registry.register(_Reading("talaria_log_dropped", "Log records dropped, not written.", read))

    def note_store(self, stats: StoreStats) -> None:
        """Take over what the store said of itself; it answers asynchronously, so it is asked beforehand."""
        self._wal.set(stats.wal_bytes)
        self._size.set(stats.size_bytes)
        self._owed.set(stats.owed)
        self._outbox.set(stats.outbox)

    def render(self) -> bytes:
        """The page that Prometheus reads; its type is `CONTENT_TYPE`."""
        return generate_latest(self._registry)


_Family = TypeVar("_Family", bound=MetricWrapperBase)


class _Children(Generic[_Family]):
    """The children of one family by their labels; more than a bounded number share the label `other`."""

    def __init__(self, family: _Family) -> None:
        self._family = family
        self._known: dict[tuple[str, ...], _Family] = {}

    def get(self, *labels: str) -> _Family:
        return self._known.get(labels) or self._add(labels)

    def _add(self, labels: tuple[str, ...]) -> _Family:
        if len(self._known) >= _MOST_CHILDREN:
            return self._family.labels(*(OTHER for _ in labels))
        child = self._known[labels] = self._family.labels(*labels)
        return child


class _PoolCollector:
    """Renders a `PoolReading`."""

    def __init__(self, read: Callable[[], PoolReading]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        now = self._read()
        yield GaugeMetricFamily("talaria_pool_agents", "Warm agents.", now.size)
        yield GaugeMetricFamily("talaria_pool_busy", "Agents leased by a turn.", now.busy)
        yield GaugeMetricFamily("talaria_pool_building", "Agents being built.", now.building)
        yield GaugeMetricFamily("talaria_pool_bytes", "Transcript bytes held.", now.bytes)
        leases = CounterMetricFamily("talaria_pool_leases", "Leases by what they found.", labels=("found",))
        leases.add_metric(("hit",), now.hits)
        leases.add_metric(("nothing",), now.builds)
        leases.add_metric(("behind",), now.catchups)
        leases.add_metric(("outdated",), now.rebuilds)
        yield leases
        evicted = CounterMetricFamily("talaria_pool_evicted", "Agents evicted, by rule.", labels=("rule",))
        evicted.add_metric(("cap",), now.evicted_cap)
        evicted.add_metric(("idle",), now.evicted_idle)
        evicted.add_metric(("bytes",), now.evicted_bytes)
        yield evicted
        yield CounterMetricFamily("talaria_pool_released", "Agents that left memory.", now.released)


class _Reading:
    """One counter that somebody else keeps."""

    def __init__(self, name: str, text: str, read: Callable[[], int]) -> None:
        self._name, self._text, self._read = name, text, read

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(self._name, self._text, self._read())
