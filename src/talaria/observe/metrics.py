"""The gateway's numbers for Prometheus, in a registry of their own.

Labels are providers, tools, routes and states, never sessions or people. What is counted often is a number in
a dictionary; it takes the client library's shape when somebody scrapes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate

import msgspec
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

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


class EndpointReading(msgspec.Struct, frozen=True):
    """What an endpoint says of itself: its breaker's state, its failures in a row, the seconds until it is
    asked again, and the calls that run and wait."""

    state: str = "closed"
    failures: int = 0
    retry_seconds: float = 0.0
    busy: int = 0
    waiting: int = 0


class Metrics:
    """Counts on the event loop's thread; `render` may be called at any time."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._turns = self._tally("turns", "Turns that ended.", "state", "channel")
        self._turn_seconds = self._spread("turn_seconds", "From accepted to ended.", _TURN_SECONDS)
        self._calls = self._tally("model_calls", "Model calls.", "provider", "outcome")
        self._model_seconds = self._spread("model_seconds", "One model call.", _MODEL_SECONDS)
        self._retries = self._tally("model_retries", "Model calls tried again.", "provider")
        self._fallbacks = self._tally("model_fallbacks", "Turns that went on elsewhere.", "provider")
        self._tokens = self._tally("tokens", "Tokens used.", "provider", "kind")
        cost = "Dollars that calls of known price cost."
        self._cost = self._tally("cost_usd", cost, "provider", "model", unit=1e9)
        missed = "Answers with less from the prompt cache than due."
        self._cache_misses = self._tally("prompt_cache_misses", missed, "cause")
        self._tools = self._tally("tool_calls", "Tool calls.", "tool", "outcome")
        self._deliveries = self._tally("deliveries", "Attempts to send a reply.", "channel", "outcome")
        self._requests = self._tally("http_requests", "HTTP answers.", "route", "status")
        self._streams = Gauge("talaria_event_streams", "Open event streams.", registry=registry)
        self._rss = Gauge("talaria_rss_bytes", "Resident memory of this process.", registry=registry)
        self._rss.set_function(read_rss)
        self._wal = Gauge("talaria_store_wal_bytes", "Size of the write-ahead log.", registry=registry)
        self._size = Gauge("talaria_store_bytes", "Size of the database.", registry=registry)
        self._owed = Gauge("talaria_owed_turns", "Turns accepted and not settled.", registry=registry)
        self._outbox = Gauge("talaria_outbox", "Replies not yet sent.", registry=registry)

    def _tally(self, name: str, text: str, *labels: str, unit: float = 1) -> _Tally:
        tally = _Tally(f"talaria_{name}", text, labels, unit)
        self._registry.register(tally)
        return tally

    def _spread(self, name: str, text: str, bounds: tuple[float, ...]) -> _Spread:
        spread = _Spread(f"talaria_{name}", text, bounds)
        self._registry.register(spread)
        return spread

    # -- counting

    def turn_ended(self, state: str, channel: str, seconds: float) -> None:
        self._turns.add((state, channel))
        self._turn_seconds.observe(seconds)

    def model_called(self, provider: str, outcome: str, seconds: float) -> None:
        """`outcome` is "ok" or the error's type."""
        self._calls.add((provider, outcome))
        self._model_seconds.observe(seconds)

    def model_retried(self, provider: str) -> None:
        self._retries.add((provider,))

    def model_left(self, provider: str) -> None:
        """A turn went on with the next model of its chain."""
        self._fallbacks.add((provider,))

    def tokens_used(self, provider: str, usage: TokenUsage) -> None:
        """`input` counts what the prompt cache did not serve, so that the kinds add up."""
        self._tokens.add((provider, "input"), max(0, usage.input - usage.cached))
        self._tokens.add((provider, "cached"), usage.cached)
        self._tokens.add((provider, "output"), usage.output)

    def money_spent(self, provider: str, model: str, nanodollars: int) -> None:
        self._cost.add((provider, model), nanodollars)

    def cache_missed(self, cause: str) -> None:
        self._cache_misses.add((cause,))

    def tool_called(self, tool: str, outcome: str) -> None:
        self._tools.add((tool, outcome))

    def delivered(self, channel: str, outcome: str) -> None:
        """One attempt to send a reply; `outcome` is the state it left it in."""
        self._deliveries.add((channel, outcome))

    def request_answered(self, route: str, status: int) -> None:
        """`route` is the pattern (`/api/turns/{id}`), never the path."""
        self._requests.add((route, str(status)))

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
        self._registry.register(_Asked(lambda: _pool_metrics(read())))

    def watch_endpoints(self, read: Callable[[], Mapping[str, EndpointReading]]) -> None:
        """Ask the endpoints, by provider, at each scrape. `read` must be quick and must not raise."""
        self._registry.register(_Asked(lambda: _endpoint_metrics(read())))

    def note_store(self, stats: StoreStats) -> None:
        """Take over what the store said of itself; it answers asynchronously, so it is asked beforehand."""
        self._wal.set(stats.wal_bytes)
        self._size.set(stats.size_bytes)
        self._owed.set(stats.owed)
        self._outbox.set(stats.outbox)

    def render(self) -> bytes:
        """The page that Prometheus reads; its type is `CONTENT_TYPE`."""
        return generate_latest(self._registry)


class _Tally:
    """A counter by labels, as plain numbers: the client library's take a lock for each increment. More than a
    bounded number of label sets share the label `other`. `unit` is how many of what is counted make one."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...], unit: float = 1) -> None:
        self._name, self._text, self._labels, self._unit = name, text, labels, unit
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, labels: tuple[str, ...], count: int = 1) -> None:
        counts = self._counts
        if labels not in counts and len(counts) >= _MOST_CHILDREN:
            labels = (OTHER,) * len(labels)
        counts[labels] = counts.get(labels, 0) + count

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, count in list(self._counts.items()):
            family.add_metric(labels, count / self._unit)
        yield family


class _Spread:
    """A histogram over fixed bounds."""

    def __init__(self, name: str, text: str, bounds: tuple[float, ...]) -> None:
        self._name, self._text, self._bounds = name, text, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        names = [*map(str, map(float, self._bounds)), "+Inf"]
        buckets = list(zip(names, map(float, accumulate(self._counts)), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)


class _Asked:
    """What somebody else keeps, asked for at each scrape."""

    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self.collect = collect


def _pool_metrics(now: PoolReading) -> Iterator[Metric]:
    yield GaugeMetricFamily("talaria_pool_agents", "Warm agents.", now.size)
    yield GaugeMetricFamily("talaria_pool_busy", "Agents leased by a turn.", now.busy)
    yield GaugeMetricFamily("talaria_pool_building", "Agents being built.", now.building)
    yield GaugeMetricFamily("talaria_pool_bytes", "Transcript bytes held.", now.bytes)
    found = {"hit": now.hits, "nothing": now.builds, "behind": now.catchups, "outdated": now.rebuilds}
    leases = CounterMetricFamily("talaria_pool_leases", "Leases by what they found.", labels=("found",))
    for what, count in found.items():
        leases.add_metric((what,), count)
    yield leases
    rules = {"cap": now.evicted_cap, "idle": now.evicted_idle, "bytes": now.evicted_bytes}
    evicted = CounterMetricFamily("talaria_pool_evicted", "Agents evicted, by rule.", labels=("rule",))
    for rule, count in rules.items():
        evicted.add_metric((rule,), count)
    yield evicted
    yield CounterMetricFamily("talaria_pool_released", "Agents that left memory.", now.released)


def _endpoint_metrics(now: Mapping[str, EndpointReading]) -> Iterator[Metric]:
    gauges: dict[str, tuple[str, Callable[[EndpointReading], float]]] = {
        "busy": ("Model calls under way.", lambda reading: reading.busy),
        "waiting": ("Model calls that wait for a permit.", lambda reading: reading.waiting),
        "failures": ("Failures in a row.", lambda reading: reading.failures),
        "resting": ("1 while the breaker is not closed.", lambda reading: reading.state != "closed"),
    }
    for name, (text, value) in gauges.items():
        family = GaugeMetricFamily(f"talaria_endpoint_{name}", text, labels=("provider",))
        for provider, reading in now.items():
            family.add_metric((provider,), value(reading))
        yield family
