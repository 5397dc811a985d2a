"""Money at the edge: what a turn cost, what the gateway spent, and a cap that a server never hears of."""

from __future__ import annotations

from pathlib import Path

from support.gateway import TOKEN, in_process
from talaria.testing.model_server import ModelServer

PRICES = {"scripted/*": {"input": 1.0, "cached": 0.1, "output": 10.0, "max_output": 1000}}
COST = "0.00048"  # 200 tokens in at a dollar for a million, 800 at a tenth of it, 20 out at ten


async def test_a_turn_tells_its_cost_at_once_and_from_the_ledger(tmp_path: Path) -> None:
    async with ModelServer() as model, in_process(tmp_path, model, tables={"prices": PRICES}) as api:
        turn = await api.say("one", "[[usage 1000 800 20 5]] hello")
        assert turn["usage"]["cost_usd"] == COST
        assert (await api.get(f"/api/turns/{turn['id']}"))["usage"] == turn["usage"]
        spending = (await api.get("/api/status"))["spending"]
        assert isinstance(spending, dict)
        assert (spending["today_usd"], spending["reserved_usd"], spending["caps_usd"]) == (COST, "0.00", {})


async def test_a_cost_that_is_not_known_is_null(tmp_path: Path) -> None:
    async with ModelServer() as model:
        tables = {
            "model": {"provider": "mine", "name": "m"},
            "providers": {"mine": {"base_url": model.base_url}},
        }
        async with in_process(tmp_path, model, tables=tables) as api:
            turn = await api.say("one", "hello")
            assert (turn["state"], turn["usage"]["cost_usd"]) == ("done", None)
        async with in_process(tmp_path, model, tables={**tables, "budgets": {"per_day_usd": 9.0}}) as api:
            refused = await api.say("one", "hello")
            assert (refused["state"], refused["error"]["type"]) == ("failed", "over_budget")
            assert '[prices."mine/m"]' in refused["reply"]
        assert model.requests == 1


async def test_over_a_cap_the_server_is_never_called(tmp_path: Path) -> None:
    tables = {"prices": PRICES, "budgets": {"per_day_usd": 0.001}}
    async with ModelServer() as model, in_process(tmp_path, model, tables=tables) as api:
        turn = await api.say("one", "hello")
        assert (turn["state"], turn["error"]["type"]) == ("failed", "over_budget")
        assert (
            "Have the operator raise the cap: `talaria config set budgets.per_day_usd DOLLARS`"
            in turn["reply"]
        )
        body = {"model": "main", "messages": [{"role": "user", "content": "hello"}]}
        answer = await api.post("/v1/chat/completions", body, status=402)
        assert answer["error"]["type"] == "over_budget"
        assert TOKEN not in str(answer)
        assert model.requests == 0


async def test_a_provider_that_reports_absurd_usage_breaks_neither_the_status_nor_later_calls(
    tmp_path: Path,
) -> None:
    many = 9 * 10**15
    prices = {"scripted/*": {"input": 75.0, "output": 150.0, "max_output": 1000}}
    tables = {"prices": prices, "budgets": {"per_user_daily_usd": 50.0}}
    async with ModelServer() as model, in_process(tmp_path, model, tables=tables) as api:
        turn = await api.say("one", f"[[usage {many} {many} {many} {many}]] hello")
        assert turn["state"] == "done"
        # 2^18 hidden tokens at 150 dollars for a million cost 39.32; the call itself is small.
        assert 39.3 < float(turn["usage"]["cost_usd"]) < 45
        status = await api.get("/api/status")
        assert isinstance(status["spending"], dict)
        assert status["spending"]["today_usd"] == turn["usage"]["cost_usd"]
        usage = await api.say("one", "/usage")
        assert f"${float(turn['usage']['cost_usd']):.4f}" in usage["reply"]
        assert (await api.say("two", "hello"))["state"] == "done"
