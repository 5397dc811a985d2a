from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from talaria.core.ledger import StoreStats
from talaria.core.messages import TokenUsage
from talaria.observe.metrics import (
    ClusterReading,
    EndpointReading,
    Metrics,
    PoolCounters,
    PoolReading,
    endpoint_metrics,
    pool_metrics,
)

DATABASE = {
    "talaria_store_wal_bytes",
    "talaria_store_bytes",
    "talaria_owed_turns",
    "talaria_outbox",
    "talaria_job_wait_seconds",
    "talaria_members",
}
Key = tuple[str, tuple[tuple[str, str], ...]]


def samples(metrics: Metrics) -> dict[Key, float]:
    """The page as Prometheus reads it."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def test_what_is_counted_can_be_scraped() -> None:
    metrics = Metrics()
    metrics.turn_ended("done", "http", 0.2)
    metrics.turn_ended("done", "http", 3.0)
    metrics.turn_ended("failed", "console", 700.0)
    metrics.model_called("openrouter", "ok", 0.7)
    metrics.money_spent("openrouter", "m", 12_500_000)
    metrics.cache_missed("idle")
    metrics.tokens_used("openrouter", TokenUsage(input=100, cached=80, output=20, reasoning=5))
    metrics.tool_called("read_file", "error")
    metrics.request_answered("/api/turns/{id}", 404)

    page = samples(metrics)

    assert page["talaria_turns_total", (("channel", "http"), ("state", "done"))] == 2
    assert page["talaria_turns_total", (("channel", "console"), ("state", "failed"))] == 1
    assert page["talaria_turn_seconds_count", ()] == 3
    assert page["talaria_turn_seconds_bucket", (("le", "0.5"),)] == 1
    assert page["talaria_turn_seconds_bucket", (("le", "600.0"),)] == 2
    assert page["talaria_model_calls_total", (("outcome", "ok"), ("provider", "openrouter"))] == 1
    assert page["talaria_model_seconds_sum", ()] == pytest.approx(0.7)
    assert page["talaria_tokens_total", (("kind", "input"), ("provider", "openrouter"))] == 20
    assert page["talaria_tokens_total", (("kind", "cached"), ("provider", "openrouter"))] == 80
    assert page["talaria_cost_usd_total", (("model", "m"), ("provider", "openrouter"))] == 0.0125
    assert page["talaria_prompt_cache_misses_total", (("cause", "idle"),)] == 1
    assert page["talaria_tokens_total", (("kind", "output"), ("provider", "openrouter"))] == 20
    assert page["talaria_tool_calls_total", (("outcome", "error"), ("tool", "read_file"))] == 1
    assert page["talaria_http_requests_total", (("route", "/api/turns/{id}"), ("status", "404"))] == 1
    assert page["talaria_rss_bytes", ()] > 1 << 20


def test_the_endpoints_are_asked_at_each_scrape() -> None:
    metrics = Metrics()
    readings = {"acme": EndpointReading("open", 5, 3.0, 1, 2), "spare": EndpointReading()}
    metrics.watch(lambda: endpoint_metrics(readings))
    found = {key: value for key, value in samples(metrics).items() if key[0].startswith("talaria_endpoint")}
    assert found == {
        (f"talaria_endpoint_{name}", (("provider", provider),)): value
        for provider, values in {"acme": (1, 2, 5, 1), "spare": (0, 0, 0, 0)}.items()
        for name, value in zip(("busy", "waiting", "failures", "resting"), values, strict=True)
    }


def test_the_pool_is_asked_at_each_scrape() -> None:
    metrics = Metrics()
    later = PoolReading(2, 1, 3, 4096, PoolCounters(5, 6, 7, 8, 9, 10, 11, 12))
    readings = iter([PoolReading(1, 0, 0, 0, PoolCounters()), later])
    metrics.watch(lambda: pool_metrics(next(readings)))

    assert samples(metrics)["talaria_pool_agents", ()] == 1
    page = samples(metrics)

    found = {key: value for key, value in page.items() if key[0].startswith("talaria_pool")}
    assert found == {
        ("talaria_pool_agents", ()): 2,
        ("talaria_pool_busy", ()): 1,
        ("talaria_pool_building", ()): 3,
        ("talaria_pool_bytes", ()): 4096,
        ("talaria_pool_leases_total", (("found", "hit"),)): 5,
        ("talaria_pool_leases_total", (("found", "nothing"),)): 6,
        ("talaria_pool_leases_total", (("found", "behind"),)): 7,
        ("talaria_pool_leases_total", (("found", "outdated"),)): 8,
        ("talaria_pool_evicted_total", (("rule", "cap"),)): 9,
        ("talaria_pool_evicted_total", (("rule", "idle"),)): 10,
        ("talaria_pool_evicted_total", (("rule", "bytes"),)): 11,
        ("talaria_pool_released_total", ()): 12,
    }


def test_the_stores_figures_and_the_logs_drops_are_on_the_page() -> None:
    metrics = Metrics()
    metrics.note_store(StoreStats("sqlite", 1, 4096, 1024, 3, {"done": 2}, 5, 6))

    page = samples(metrics)

    assert page["talaria_store_bytes", ()] == 4096
    assert page["talaria_store_wal_bytes", ()] == 1024
    assert page["talaria_owed_turns", ()] == 5
    assert page["talaria_outbox", ()] == 6


def test_open_event_streams_are_counted_also_when_they_break() -> None:
    metrics = Metrics()
    with metrics.event_stream():
        assert samples(metrics)["talaria_event_streams", ()] == 1
        with pytest.raises(ConnectionError), metrics.event_stream():
            raise ConnectionError
    assert samples(metrics)["talaria_event_streams", ()] == 0


def test_names_that_a_model_invents_do_not_grow_the_page_for_ever() -> None:
    metrics = Metrics()
    for n in range(1000):
        metrics.tool_called(f"invented_{n}", "error")

    page = samples(metrics)

    tools = [key for key in page if key[0] == "talaria_tool_calls_total"]
    assert len(tools) == 257
    assert page["talaria_tool_calls_total", (("outcome", "other"), ("tool", "other"))] == 744


def test_two_gateways_in_one_process_count_apart() -> None:
    first, second = Metrics(), Metrics()
    first.turn_ended("done", "http", 0.1)

    assert samples(second)["talaria_turn_seconds_count", ()] == 0


def test_the_page_has_no_start_times() -> None:
    metrics = Metrics()
    metrics.turn_ended("done", "http", 0.1)

    assert b"_created" not in metrics.render()


def test_a_member_of_a_cluster_labels_its_own_metrics_and_not_those_of_the_database() -> None:
    metrics = Metrics()
    metrics.turn_ended("done", "http", 1.0)
    reading = ClusterReading({"alive": 2, "draining": 0}, {"upkeep": True, "channel:telegram": False}, 1)
    metrics.watch_cluster("web-1", lambda: reading)
    page = metrics.render().decode().splitlines()
    assert 'talaria_turns_total{channel="http",member="web-1",state="done"} 1.0' in page
    assert 'talaria_turn_seconds_count{member="web-1"} 1.0' in page
    assert 'talaria_role{member="web-1",role="upkeep"} 1.0' in page
    assert 'talaria_role{member="web-1",role="channel:telegram"} 0.0' in page
    assert 'talaria_members_unreachable{member="web-1"} 1.0' in page
    assert 'talaria_members{state="alive"} 2.0' in page
    assert "talaria_owed_turns 0.0" in page
    of_the_member = [line for line in page if line.startswith("talaria_") and "member=" not in line]
    assert {line.partition("{")[0].partition(" ")[0] for line in of_the_member} <= DATABASE
    again = metrics.render().decode().splitlines()
    assert list(map(sample, again)) == list(map(sample, page)), "a page adds nothing to the next one"


def sample(line: str) -> str:
    """Return a line of the page, without its value if that is the memory of this process."""
    return line.rpartition(" ")[0] if line.startswith("talaria_rss_bytes") else line
