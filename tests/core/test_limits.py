"""The table `[limits]`: every limit has a value, a hint and a metric."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from talaria.core.limits import Limits, LimitSettings
from talaria.core.units import Size
from talaria.observe.metrics import Metrics, limit_metrics


def test_a_refusal_names_the_limit_as_config_toml_has_it() -> None:
    limits = Limits(LimitSettings(answer_bytes=Size(1 << 20)))
    assert limits.refuse("answer_bytes") == (
        'The limit is limits.answer_bytes = "1MiB" in config.toml; the operator can raise it.'
    )
    assert 'request_head = "10s"' in limits.refuse("request_head")
    assert "turn_tools = 8 " in limits.refuse("turn_tools")


def test_a_change_counts_at_once_and_keeps_the_counts() -> None:
    limits = Limits()
    limits.refuse("children")
    limits.change(LimitSettings(children=3))
    reading = limits.readings()["children"]
    assert (reading.limit, reading.refused, reading.used) == (3, 1, None)


def test_every_limit_has_its_metrics() -> None:
    limits, metrics = Limits(), Metrics()
    metrics.watch(lambda: limit_metrics(limits.readings()))
    limits.watch("tools", lambda: 5)
    limits.refuse("tools")
    page = metrics.render().decode()
    for key in LimitSettings.__struct_fields__:
        assert f'talaria_limit{{limit="{key}"}}' in page
    assert 'talaria_limit_used{limit="tools"} 5.0' in page
    assert 'talaria_limit_refused_total{limit="tools"} 1.0' in page


def test_an_unknown_key_is_a_mistake_in_the_code() -> None:
    with pytest.raises(KeyError):
        Limits().refuse("answers")
    with pytest.raises(KeyError):
        Limits().watch("answers", lambda: 0)


@pytest.mark.parametrize("key", LimitSettings.__struct_fields__)
def test_every_limit_is_enforced_and_tested(key: str) -> None:
    root = Path(__file__).parents[2]
    own = (root / "src/talaria/core/limits.py", Path(__file__))
    for folder, use in (("src", rf"\.{key}\b"), ("tests", rf"\b{key}\b")):
        files = [path for path in (root / folder).rglob("*.py") if path not in own]
        assert any(re.search(use, path.read_text()) for path in files), folder
