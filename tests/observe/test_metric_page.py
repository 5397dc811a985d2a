"""The whole page of metrics, line by line, after one call of each method."""

from __future__ import annotations

from talaria.core.jobs import JobCounts
from talaria.core.ledger import StoreStats
from talaria.core.limits import LimitReading
from talaria.core.messages import TokenUsage
from talaria.observe.metrics import EndpointReading, LoopReading, Metrics, PoolReading

EXPECTED = """\
talaria_turns_total{channel="http",state="done"} 2.0
talaria_turn_seconds_count 2.0
talaria_turn_seconds_sum 5.0
talaria_model_calls_total{outcome="ok",provider="p"} 1.0
talaria_model_seconds_count 1.0
talaria_model_seconds_sum 1.5
talaria_model_retries_total{provider="p"} 1.0
talaria_model_fallbacks_total{provider="p"} 1.0
talaria_tokens_total{kind="input",provider="p"} 6.0
talaria_tokens_total{kind="cached",provider="p"} 4.0
talaria_tokens_total{kind="output",provider="p"} 3.0
talaria_cost_usd_total{model="m",provider="p"} 0.5
talaria_prompt_cache_misses_total{cause="spec"} 1.0
talaria_tool_calls_total{outcome="ok",tool="now"} 1.0
talaria_webhook_calls_total{hook="deploys",outcome="accepted"} 1.0
talaria_deliveries_total{channel="telegram",outcome="sent"} 1.0
talaria_http_requests_total{route="/healthz",status="200"} 1.0
talaria_loop_delay_seconds_count 1.0
talaria_loop_delay_seconds_sum 0.25
talaria_event_streams 0.0
talaria_store_wal_bytes 1.0
talaria_store_bytes 2.0
talaria_owed_turns 3.0
talaria_outbox 4.0
talaria_jobs{state="active"} 2.0
talaria_job_runs{state="due"} 1.0
talaria_job_wait_seconds 5.0
talaria_job_lateness_seconds_count 1.0
talaria_job_lateness_seconds_sum 0.5
talaria_job_skips_day{reason="overlap"} 3.0
talaria_job_skips_day{reason="missed"} 0.0
talaria_job_skips_day{reason="other"} 1.0
talaria_pool_agents 1.0
talaria_pool_busy 2.0
talaria_pool_building 3.0
talaria_pool_bytes 4.0
talaria_pool_leases_total{found="hit"} 5.0
talaria_pool_leases_total{found="nothing"} 6.0
talaria_pool_leases_total{found="behind"} 7.0
talaria_pool_leases_total{found="outdated"} 8.0
talaria_pool_evicted_total{rule="cap"} 9.0
talaria_pool_evicted_total{rule="idle"} 10.0
talaria_pool_evicted_total{rule="bytes"} 11.0
talaria_pool_released_total 12.0
talaria_endpoint_busy{provider="p"} 1.0
talaria_endpoint_busy{provider="q"} 0.0
talaria_endpoint_waiting{provider="p"} 2.0
talaria_endpoint_waiting{provider="q"} 0.0
talaria_endpoint_failures{provider="p"} 3.0
talaria_endpoint_failures{provider="q"} 0.0
talaria_endpoint_resting{provider="p"} 1.0
talaria_endpoint_resting{provider="q"} 0.0
talaria_loop_worst_seconds 0.5
talaria_loop_stalls_total 6.0
talaria_limit{limit="connections"} 9.0
talaria_limit{limit="body"} 8.0
talaria_limit_used{limit="connections"} 5.0
talaria_limit_refused_total{limit="connections"} 2.0
talaria_limit_refused_total{limit="body"} 1.0
"""


def test_every_figure_has_its_line() -> None:
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
    metrics.watch_pool(lambda: PoolReading(*range(1, 13)))
    metrics.watch_endpoints(lambda: {"p": EndpointReading("open", 3, 9.0, 1, 2), "q": EndpointReading()})
    metrics.watch_loop(lambda: LoopReading(worst_seconds=0.5, stalls=6))
    limits = {"connections": LimitReading(9.0, 5.0, 2), "body": LimitReading(8.0, None, 1)}
    metrics.watch_limits(lambda: limits)
    page = [line for line in metrics.render().decode().splitlines() if not line.startswith("#")]
    own = ("talaria_rss", "talaria_open", "talaria_max")
    figures = [line for line in page if "_bucket" not in line and not line.startswith(own)]
    assert figures == EXPECTED.splitlines()
    assert [line.split()[0] for line in page if line.startswith(own)] == [
        "talaria_rss_bytes",
        "talaria_open_descriptors",
        "talaria_max_descriptors",
    ]
    assert all(float(line.split()[1]) > 0 for line in page if line.startswith(own))
