"""The whole page of metrics, line by line, after one call of each method."""

from __future__ import annotations

from golden.golden_files import Golden
from talaria.core.jobs import JobCounts
from talaria.core.ledger import StoreStats
from talaria.core.limits import LimitReading
from talaria.core.messages import TokenUsage
from talaria.observe.metrics import (
    EndpointReading,
    LoopReading,
    Metrics,
    PoolCounters,
    PoolReading,
    endpoint_metrics,
    limit_metrics,
    loop_metrics,
    pool_metrics,
)


def test_every_figure_has_its_line(golden: Golden) -> None:
    metrics = Metrics()
    for _ in range(2):
        metrics.turn_ended("done", "http", 2.5)
    metrics.model_called("p", "ok", 1.5)
    metrics.model_retried("p")
    metrics.model_left("p")
    metrics.tokens_used("p", TokenUsage(input=10, cached=4, output=3))
    metrics.tokens_used("p", TokenUsage(input=0, cached=0, output=0))
    metrics.money_spent("p", "m", 500_000_000)
    metrics.cache_missed("spec")
    metrics.tool_called("now", "ok")
    metrics.delivered("telegram", "sent")
    metrics.request_answered("/healthz", 200)
    metrics.loop_was_late(0.25)
    metrics.hook_called("deploys", "accepted")
    metrics.job_started(0.5)
    skipped = {"an earlier run had not ended": 3, "the job was edited": 1}
    metrics.note_jobs(JobCounts({"active": 2}, {"due": 1}, 95.0), 100.0, skipped)
    metrics.note_store(StoreStats("sqlite", 1, 2, 1, 0, {}, owed=3, outbox=4))
    pool = PoolReading(1, 2, 3, 4, PoolCounters(*range(5, 13)))
    metrics.watch(lambda: pool_metrics(pool))
    endpoints = {"p": EndpointReading("open", 3, 9.0, 1, 2), "q": EndpointReading()}
    metrics.watch(lambda: endpoint_metrics(endpoints))
    metrics.watch(lambda: loop_metrics(LoopReading(worst_seconds=0.5, stalls=6)))
    limits = {"connections": LimitReading(9.0, 5.0, 2), "body": LimitReading(8.0, None, 1)}
    metrics.watch(lambda: limit_metrics(limits))
    lines = metrics.render().decode().splitlines()
    own = {"talaria_rss_bytes", "talaria_open_descriptors", "talaria_max_descriptors"}
    measured = {line.split()[0]: float(line.split()[1]) for line in lines if line.split()[0] in own}
    assert set(measured) == own and all(value > 0 for value in measured.values())
    shown = [f"{line.split()[0]} MEASURED" if line.split()[0] in own else line for line in lines]
    golden.check("metric-page.txt", "\n".join(shown))
