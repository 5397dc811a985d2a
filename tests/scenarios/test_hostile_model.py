"""A hostile model server ends its own turn, once, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.rig import start
from talaria.core.limits import Limits, LimitSettings
from talaria.core.turns import TurnState
from talaria.core.units import Size
from talaria.models.providers import WIRES, Providers
from talaria.models.settings import FallbackSettings, ModelSettings, ProviderSettings
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import HastyClock
from talaria.testing.model_server import ModelServer


@pytest.mark.parametrize("wire", WIRES)
async def test_an_answer_over_its_budget_fails_the_turn_without_another_try(
    wire: str, tmp_path: Path
) -> None:
    clock, limits = HastyClock(), Limits(LimitSettings(answer_bytes=Size(200_000)))
    async with ModelServer(strict=False) as server:
        settings = {"first": ProviderSettings(server.base_url, wire, api_key="k")}  # type: ignore[arg-type]
        async with (
            Providers(settings, {}, clock, limits=limits) as providers,
            start(
                MemoryStore(clock),
                tmp_path,
                clock=clock,
                settings=ModelSettings("first", "m"),
                models=providers,
            ) as rig,
        ):
            turn = await rig.say("[[hostile comments 400000]]")
            assert turn.state is TurnState.FAILED
            assert turn.error is not None
            assert turn.error.type == "answer_too_large"
            assert "limits.answer_bytes = 200000 in config.toml" in turn.error.hint
            assert server.requests == 1, "asked again, it would cost again"
            assert limits.readings()["answer_bytes"].refused == 1
            called = rig.metrics.render().decode()
            assert 'outcome="answer_too_large"' in called
            spoken = await rig.say("[[hostile text 400000]]")
            assert spoken.error is not None
            assert "The answer broke off" in spoken.error.message
            assert "limits.answer_bytes" in spoken.error.hint
            assert (await rig.say("hello")).reply == "You said: hello"


async def test_the_fallback_is_asked_instead(tmp_path: Path) -> None:
    clock, limits = HastyClock(), Limits(LimitSettings(answer_calls=10))
    async with ModelServer(strict=False) as hostile, ModelServer(strict=False) as spare:
        model = ModelSettings("first", "m", fallback=(FallbackSettings("second", "n"),))
        settings = {
            "first": ProviderSettings(hostile.base_url, "openai-responses"),
            "second": ProviderSettings(spare.base_url),
        }
        async with (
            Providers(settings, {}, clock, limits=limits) as providers,
            start(MemoryStore(clock), tmp_path, clock=clock, settings=model, models=providers) as rig,
        ):
            turn = await rig.say("[[hostile output 400000]]")
            assert (hostile.requests, spare.requests) == (1, 1)
            assert turn.error is not None, "this format has no such attack, so the spare server refuses"
            assert "has more than 10 tool calls, and second/n failed too" in turn.error.message
