"""`talaria top`: what an operator sees of a running gateway."""

from __future__ import annotations

from cli.conftest import Serve, Talaria


def test_one_look_shows_pool_turns_and_memory(serve: Serve, talaria: Talaria) -> None:
    serve()
    assert talaria("ask", "hello", "--session", "demo").returncode == 0
    seen = talaria("top", "--once")
    assert seen.returncode == 0, seen.stderr
    for part in (
        "ready, up",
        "1 done",
        "1 of 128 agents, 0 busy",
        "0 turns, 0 replies",
        "scripted (0 under way)",
    ):
        assert part in seen.stdout
    assert "main:http:api:demo" in seen.stdout


def test_without_a_gateway_it_says_what_to_do(talaria: Talaria) -> None:
    seen = talaria("top", "--once")
    assert seen.returncode == 1
    assert "No gateway is running" in seen.stderr
    assert "Traceback" not in seen.stderr
