"""The gateway's Prometheus metrics, in a registry of their own.

Label values are providers, models, tools, routes, channels and states, never sessions or people.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
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
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from talaria.core.ids import TurnId
from talaria.core.jobs import JobCounts
from talaria.core.ledger import StoreStats
from talaria.core.limits import LimitReading
from talaria.core.messages import TokenUsage
from talaria.observe.health import count_descriptors, descriptor_limit, read_rss

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_OTHER = "other"
_MEMBER = "member"
_OF_THE_DATABASE = (
    "talaria_store_wal_bytes",
    "talaria_store_bytes",
    "talaria_owed_turns",
    "talaria_outbox",
    "talaria_jobs",
    "talaria_job_runs",
    "talaria_job_wait_seconds",
    "talaria_job_skips_day",
    "talaria_members",
)
"""Metrics that are the same at every gateway of a database, so that they have no member label."""
_MAX_LABEL_SETS = 256
_TURN_SECONDS = (0.01, 0.1, 0.5, 2, 10, 30, 120, 600)
_LAG_SECONDS = (0.002, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 15, 60)
_MODEL_SECONDS = (0.1, 0.5, 1, 2, 5, 15, 60, 300)


class PoolCounters(msgspec.Struct):
    hits: int = 0
    builds: int = 0
    catchups: int = 0
    rebuilds: int = 0
    evicted_cap: int = 0
    evicted_idle: int = 0
    evicted_bytes: int = 0
    released: int = 0


class PoolReading(msgspec.Struct, frozen=True):
    """The warm pool's figures at one moment. The counters count from the start."""

    size: int
    busy: int
    building: int
    bytes: int
    counters: PoolCounters


class EndpointReading(msgspec.Struct, frozen=True):
    """A model endpoint's figures at one moment: its breaker's state, consecutive failures, seconds until the
    next attempt, calls that run, and calls that wait for a permit."""

    state: str = "closed"
    failures: int = 0
    retry_seconds: float = 0.0
    busy: int = 0
    waiting: int = 0


class LoopReading(msgspec.Struct, frozen=True):
    """The event loop's figures at one moment.

    `lag_seconds` is how long it was held just now, 0 if it runs in time; `worst_seconds` is the longest delay
    of the last minute. `stalls` counts from the start. The other fields tell of the last stall.
    """

    lag_seconds: float = 0.0
    worst_seconds: float = 0.0
    stalls: int = 0
    last_seconds: float = 0.0
    last_at: float | None = None
    held_by: str = ""
    turn_id: TurnId | None = None


class NetworkReading(msgspec.Struct, frozen=True):
    """The networks of commands at one moment: sessions that have one, and open connections. `trouble` says
    why the last command got none; it is empty if it got one."""

    sessions: int = 0
    connections: int = 0
    trouble: str = ""


class ServerReading(msgspec.Struct, frozen=True):
    """An MCP server at one moment. `trouble` says why it is down or was last, `hint` what to do. `tools` are
    offered, `proposed` wait for approval, and `left_out` are listed by the server and cannot be offered."""

    state: str
    starts: int = 0
    trouble: str = ""
    hint: str = ""
    left_out: tuple[str, ...] = ()
    calls: int = 0
    failed_calls: int = 0
    tools: int = 0
    proposed: tuple[str, ...] = ()


class ClusterReading(msgspec.Struct, frozen=True):
    """A cluster at one moment, as one of its gateways sees it: living members by state, the roles that this
    gateway wants and whether it has them, and the members that it cannot reach. `is_out`: it could not renew
    its time, so it begins no turns."""

    members: Mapping[str, int]
    roles: Mapping[str, bool]
    unreachable: int = 0
    is_out: bool = False


class Metrics:
    """Counts events of the gateway and renders them as a page for Prometheus."""

    def __init__(self) -> None:
        self._member = ""
        self.turns_ended = 0
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> _Counter:
            registry.register(counted := _Counter(f"talaria_{name}", text, labels))
            return counted

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"talaria_{name}", text, registry=registry)

        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> _Histogram:
            registry.register(observed := _Histogram(f"talaria_{name}", text, bounds))
            return observed

        self._turns = counter("turns", "Turns that ended.", "state", "channel")
        self._turn_seconds = histogram("turn_seconds", "From accepted to ended.", _TURN_SECONDS)
        self._calls = counter("model_calls", "Model calls.", "provider", "outcome")
        self._model_seconds = histogram("model_seconds", "One model call.", _MODEL_SECONDS)
        self.model_retried = counter("model_retries", "Model calls tried again.", "provider").inc
        # A turn went on with the next model of its chain.
        self.model_left = counter("model_fallbacks", "Turns that continued elsewhere.", "provider").inc
        self._tokens = counter("tokens", "Tokens used.", "provider", "kind")
        self._cost = counter("cost_usd", "Dollars that calls of known price cost.", "provider", "model")
        missed = "Answers with less from the prompt cache than due."
        self.cache_missed = counter("prompt_cache_misses", missed, "cause").inc
        self.tool_called = counter("tool_calls", "Tool calls.", "tool", "outcome").inc
        # The outcome is accepted, repeated, refused, limited or failed.
        self.hook_called = counter("webhook_calls", "Calls of webhooks.", "hook", "outcome").inc
        # The outcome is the reply's state after the attempt.
        self.delivered = counter("deliveries", "Attempts to send a reply.", "channel", "outcome").inc
        self._requests = counter("http_requests", "HTTP answers.", "route", "status")
        self._connections = counter("command_connections", "Connections of commands.", "outcome")
        self._connection_bytes = counter("command_bytes", "Bytes of such connections.", "direction")
        self.loop_was_late = histogram("loop_delay_seconds", "Delay of the event loop.", _LAG_SECONDS).observe
        self._streams = gauge("event_streams", "Open event streams.")
        gauge("rss_bytes", "Resident memory of this process.").set_function(read_rss)
        gauge("open_descriptors", "File descriptors that are open.").set_function(count_descriptors)
        gauge("max_descriptors", "File descriptors that may be open.").set_function(descriptor_limit)
        self._wal = gauge("store_wal_bytes", "Size of the write-ahead log.")
        self._size = gauge("store_bytes", "Size of the database.")
        self._owed = gauge("owed_turns", "Turns accepted and not settled.")
        self._outbox = gauge("outbox", "Replies not yet sent.")
        self._jobs_by_state = Gauge("talaria_jobs", "Jobs.", ("state",), registry=registry)
        self._runs_by_state = Gauge("talaria_job_runs", "Runs of jobs.", ("state",), registry=registry)
        self._job_wait = gauge("job_wait_seconds", "How long the run waits that has waited longest.")
        self._job_lateness = histogram("job_lateness_seconds", "From due to started.", _MODEL_SECONDS)
        self._job_skips = Gauge(
            "talaria_job_skips_day", "Runs skipped in the last day.", ("reason",), registry=registry
        )

    def turn_ended(self, state: str, channel: str, seconds: float) -> None:
        self.turns_ended += 1
        self._turns.inc(state, channel)
        self._turn_seconds.observe(seconds)

    def model_called(self, provider: str, outcome: str, seconds: float) -> None:
        """`outcome` is "ok" or the error's type."""
        self._calls.inc(provider, outcome)
        self._model_seconds.observe(seconds)

    def note_jobs(self, counts: JobCounts, now: float, skipped: Mapping[str, int]) -> None:
        """Take over what the store counts. `skipped` are the skips of the last day by their reasons."""
        kinds = {"overlap": 0, "missed": 0, "other": 0}
        for reason, number in skipped.items():
            is_missed = "missed" in reason or "late" in reason
            kinds["overlap" if "earlier run" in reason else "missed" if is_missed else "other"] += number
        for kind, number in kinds.items():
            self._job_skips.labels(kind).set(number)
        for state, number in counts.jobs.items():
            self._jobs_by_state.labels(state).set(number)
        for state, number in counts.slots.items():
            self._runs_by_state.labels(state).set(number)
        self._job_wait.set(0.0 if counts.oldest_due is None else max(0.0, now - counts.oldest_due))

    def job_started(self, late_seconds: float) -> None:
        self._job_lateness.observe(max(0.0, late_seconds))

    def tokens_used(self, provider: str, usage: TokenUsage) -> None:
        """The kind `input` leaves out tokens that the prompt cache served, so that the kinds add up."""
        self._tokens.inc(provider, "input", by=max(0, usage.input - usage.cached))
        self._tokens.inc(provider, "cached", by=usage.cached)
        self._tokens.inc(provider, "output", by=usage.output)

    def money_spent(self, provider: str, model: str, nanodollars: int) -> None:
        self._cost.inc(provider, model, by=nanodollars / 1e9)

    def request_answered(self, route: str, status: int) -> None:
        """`route` is the pattern (`/api/turns/{id}`), never the path."""
        self._requests.inc(route, str(status))

    def command_connected(self, outcome: str, sent: int, received: int) -> None:
        """Count a connection of a command that has ended."""
        self._connections.inc(outcome)
        self._connection_bytes.inc("sent", by=sent)
        self._connection_bytes.inc("received", by=received)

    def event_stream(self) -> AbstractContextManager[None]:
        """Count a stream as open while the block runs."""
        return self._streams.track_inprogress()

    def watch(self, read: Callable[[], Iterator[Metric]]) -> None:
        """Call `read` at each scrape. It must be quick and must not raise."""
        self._registry.register(_ScrapeCollector(read))

    def watch_cluster(self, member: str, read: Callable[[], ClusterReading]) -> None:
        """Label the metrics of this gateway with its name in the cluster, and call `read` at each scrape. It
        must be quick and must not raise."""
        self._member = member
        self.watch(lambda: _cluster_metrics(read()))

    def note_store(self, stats: StoreStats) -> None:
        """Set the store's gauges. The store answers asynchronously, so the caller asks it before `render`."""
        self._wal.set(stats.wal_bytes)
        self._size.set(stats.size_bytes)
        self._owed.set(stats.owed)
        self._outbox.set(stats.outbox)

    def render(self) -> bytes:
        """Return the page that Prometheus reads; its media type is `CONTENT_TYPE`."""
        if not self._member:
            return generate_latest(self._registry)
        return generate_latest(_MemberPage(self._registry, self._member))


class _Counter(Collector):
    """A counter with a bounded number of label sets; further sets are counted as `other`.

    Only the event loop counts, so no lock is needed. The client library takes one for each increment.
    """

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        self._family = (name, text, None, labels)
        self._counts: dict[tuple[str, ...], float] = {}

    def inc(self, *labels: str, by: float = 1) -> None:
        counts = self._counts
        if labels not in counts:
            labels = labels if len(counts) < _MAX_LABEL_SETS else (_OTHER,) * len(labels)
            counts.setdefault(labels, 0.0)
        counts[labels] += by

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(*self._family)
        for labels, count in self._counts.items():
            family.add_metric(labels, count)
        yield family


class _Histogram(Collector):
    """Counts values by their upper bounds. Without a lock, as `_Counter`."""

    def __init__(self, name: str, text: str, bounds: tuple[float, ...]) -> None:
        self._family = (name, text)
        self._bounds = (*bounds, math.inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        counts = zip(map(floatToGoString, self._bounds), accumulate(self._counts), strict=True)
        yield HistogramMetricFamily(*self._family, list(counts), self._sum)


class _ScrapeCollector(Collector):
    """Metrics whose values are read at each scrape."""

    def __init__(self, read: Callable[[], Iterator[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        return self._read()


class _MemberPage(CollectorRegistry):
    """The metrics of another registry, with the label of the member that they are of."""

    def __init__(self, registry: CollectorRegistry, member: str) -> None:
        super().__init__()
        self._of = registry
        self._name = member

    def collect(self) -> Iterator[Metric]:
        for metric in self._of.collect():
            if metric.name not in _OF_THE_DATABASE:
                metric.samples = [
                    sample._replace(labels={**sample.labels, _MEMBER: self._name})
                    for sample in metric.samples
                ]
            yield metric


def _family(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    value: float | Mapping[str, float],
    label: str = "",
) -> Metric:
    """Return a metric with one value, or with values by that of a label."""
    if not isinstance(value, Mapping):
        return kind(f"talaria_{name}", text, value)
    family = kind(f"talaria_{name}", text, labels=(label,))
    for key, number in value.items():
        family.add_metric((key,), number)
    return family


_gauge = partial(_family, GaugeMetricFamily)
_counter = partial(_family, CounterMetricFamily)


def _cluster_metrics(now: ClusterReading) -> Iterator[Metric]:
    yield _gauge("members", "Gateways of the database.", now.members, "state")
    yield _gauge("role", "1 for a role that this gateway has.", now.roles, "role")
    yield _gauge("members_unreachable", "Living gateways that this one cannot reach.", now.unreachable)
    yield _gauge("member_out", "1 while it could not renew its time.", now.is_out)


def pool_metrics(now: PoolReading) -> Iterator[Metric]:
    yield _gauge("pool_agents", "Warm agents.", now.size)
    yield _gauge("pool_busy", "Agents leased by a turn.", now.busy)
    yield _gauge("pool_building", "Agents being built.", now.building)
    yield _gauge("pool_bytes", "Transcript bytes held.", now.bytes)
    done = now.counters
    found = {"hit": done.hits, "nothing": done.builds, "behind": done.catchups, "outdated": done.rebuilds}
    yield _counter("pool_leases", "Leases by what they found.", found, "found")
    rules = {"cap": done.evicted_cap, "idle": done.evicted_idle, "bytes": done.evicted_bytes}
    yield _counter("pool_evicted", "Agents evicted, by rule.", rules, "rule")
    yield _counter("pool_released", "Agents that left memory.", done.released)


def endpoint_metrics(now: Mapping[str, EndpointReading]) -> Iterator[Metric]:
    """The keys are providers."""

    def gauge(name: str, text: str, value: Callable[[EndpointReading], float]) -> Metric:
        values = {provider: value(reading) for provider, reading in now.items()}
        return _gauge(f"endpoint_{name}", text, values, "provider")

    yield gauge("busy", "Model calls under way.", lambda reading: reading.busy)
    yield gauge("waiting", "Model calls that wait for a permit.", lambda reading: reading.waiting)
    yield gauge("failures", "Failures in a row.", lambda reading: reading.failures)
    yield gauge("resting", "1 while the breaker is not closed.", lambda reading: reading.state != "closed")


def network_metrics(now: NetworkReading) -> Iterator[Metric]:
    yield _gauge("command_networks", "Sessions with a network.", now.sessions)
    yield _gauge("command_connections_open", "Open connections.", now.connections)


def server_metrics(now: Mapping[str, ServerReading]) -> Iterator[Metric]:
    """The keys are names of MCP servers."""

    def values(value: Callable[[ServerReading], float]) -> dict[str, float]:
        return {name: value(reading) for name, reading in now.items()}

    is_up = values(lambda reading: reading.state == "ready")
    failed, proposed = values(lambda reading: reading.failed_calls), values(lambda each: len(each.proposed))
    yield _gauge("mcp_up", "1 while the MCP server is ready.", is_up, "server")
    yield _counter("mcp_starts", "How often it was started.", values(lambda each: each.starts), "server")
    yield _counter("mcp_calls", "Calls of its tools.", values(lambda each: each.calls), "server")
    yield _counter("mcp_failed_calls", "Calls that failed.", failed, "server")
    yield _gauge("mcp_proposed", "Changed tools to approve.", proposed, "server")


def loop_metrics(now: LoopReading) -> Iterator[Metric]:
    worst = "The longest delay of the event loop in the last minute."
    yield _gauge("loop_worst_seconds", worst, now.worst_seconds)
    yield _counter("loop_stalls", "How often the event loop was held.", now.stalls)


def limit_metrics(now: Mapping[str, LimitReading]) -> Iterator[Metric]:
    """The keys are those of `[limits]`."""
    limits = {key: reading.limit for key, reading in now.items()}
    used = {key: reading.used for key, reading in now.items() if reading.used is not None}
    refused = {key: reading.refused for key, reading in now.items()}
    yield _gauge("limit", "Limits of [limits], in bytes, seconds or counts.", limits, "limit")
    yield _gauge("limit_used", "How much of a limit is in use.", used, "limit")
    yield _counter("limit_refused", "What a limit refused.", refused, "limit")
