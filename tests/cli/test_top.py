"""`talaria top`: what an operator sees of a running gateway."""

from __future__ import annotations

import pytest
from rich.console import Console

from cli.conftest import Serve, Talaria
from talaria.cli.top import render, render_cluster, render_processes
from talaria.core.errors import NotFound


def test_one_look_shows_pool_turns_and_memory(serve: Serve, talaria: Talaria) -> None:
    serve()
    assert talaria("ask", "hello", "--session", "demo").returncode == 0
    seen = talaria("top")  # once, because its output is no terminal
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
    long = "a-chat-with-a-name-that-is-far-too-long-for-a-table-of-eighty-columns"
    assert talaria("ask", "hello", "--session", long).returncode == 0
    assert f"main:http:api:{long}" in talaria("top", "--once").stdout


@pytest.mark.parametrize(
    ("endpoint", "told"),
    [
        ({"state": "closed", "busy": 2, "waiting": 3}, "2 under way, 3 waiting"),
        ({"state": "open", "busy": 0}, "0 under way, resting for 4 s after 5 failures"),
        ({"state": "half_open", "busy": 1}, "1 under way, being tried again"),
    ],
)
def test_an_endpoint_is_told_with_its_queue_and_its_rest(endpoint: dict[str, object], told: str) -> None:
    about = {"failures": 5, "retry_seconds": 4.2, "waiting": 0, **endpoint}
    status = {
        "version": "1", "phase": "ready", "uptime_seconds": 1, "rss_bytes": 1, "turns": {},
        "owed": {"turns": 0, "replies": 0}, "endpoints": {"acme": about},
    }  # fmt: skip
    pool = {"counters": {}, "agents": [], "size": 0, "cap": 1, "busy": 0, "bytes": 0, "max_bytes": 1}
    pool["counters"] = dict.fromkeys(("hits", "builds", "catchups", "rebuilds"), 0)
    console = Console(width=200)
    with console.capture() as seen:
        console.print(render(status, pool))
    assert f"acme ({told})" in seen.get()


def test_background_processes_are_listed() -> None:
    process = {
        "id": "p1",
        "session_id": "ses_1",
        "command": "npm\x1b dev",
        "started_at": 1.0,
        "written": 2048,
    }
    console = Console(width=200)
    with console.capture() as seen:
        console.print(render_processes([process], now=13.0))
    assert seen.get().splitlines()[1].split() == ["p1", "ses_1", "npm", "dev", "12", "s", "2.0", "KiB"]


def test_a_narrow_terminal_cuts_sessions_and_commands_but_no_id_of_a_process() -> None:
    process = {
        "id": "p92e52784",
        "session_id": "ses_01KA5ZZZZZZZZZZZZZZZZZZZZZ",
        "command": "python -m http.server --directory build 8000",
        "started_at": 1.0,
        "written": 2048,
    }
    console = Console(width=80)
    with console.capture() as seen:
        console.print(render_processes([process], now=13.0))
    (_, row) = seen.get().splitlines()
    assert row.split()[0] == "p92e52784"
    assert row.rstrip().endswith("2.0 KiB")
    assert "python -m" in row


def test_without_a_gateway_it_says_what_to_do(talaria: Talaria) -> None:
    seen = talaria("top", "--once")
    assert seen.returncode == 1
    assert "No gateway is running" in seen.stderr
    assert "Traceback" not in seen.stderr


def test_all_gateways_of_a_database_are_shown_with_their_roles_and_troubles() -> None:
    figures = {
        "turns": 2,
        "agents": 5,
        "rss_bytes": 3 << 20,
        "turns_total": 17,
        "channels": [],
        "trouble": "",
    }
    here = {
        "id": "own_1", "is_here": True, "state": "alive", "host": "web-1", "url": "http://10.0.0.1:8765",
        "version": "1.0", "started_at": 1.0, "roles": ["channel:telegram", "upkeep"], "figures": figures,
    }  # fmt: skip
    ill = figures | {"trouble": "store: The database\x1b[2J does not answer."}
    other = here | {"is_here": False, "host": "web-2", "url": "http://10.0.0.2:8765", "figures": ill}
    gone = here | {"is_here": False, "host": "web-3\x1b[31m\x9b2J\u202e", "state": "gone", "roles": []}
    gone |= {"url": "http://a\x1b]0;x\x07", "version": "[red]1\x1b[2J", "roles": ["[link=x]\x1b[2J"]}
    status = {
        "owed": {"turns": 1, "replies": 0},
        "reasons": [],
        "cluster": {
            "lease_seconds": 30.0,
            "is_out": False,
            "members": [here, other | {"roles": []}, gone],
            "troubles": ["web-2 is far away."],
        },
    }
    console = Console(width=200)
    with console.capture() as seen:
        console.print(render_cluster(status, now=61.0))
    text = seen.get()
    assert "2 gateways, leases of 30 s" in text
    assert "owed: 1 turn, 0 replies" in text
    (first,) = [line for line in text.splitlines() if "web-1" in line]
    assert first.split()[:3] == ["web-1", "10.0.0.1:8765", "(here)"]
    assert first.rstrip().endswith("channel:telegram, upkeep")
    assert "web-2 is far away." in text
    assert "web-2 http://10.0.0.2:8765: store: The database" in text
    assert not {"\x1b", "\x9b", "\x07", "\u202e"} & set(text)
    assert "[red]1" in text
    with pytest.raises(NotFound, match="alone"):
        render_cluster(status | {"cluster": None}, now=61.0)


def test_gateways_that_lost_the_database_are_shown_as_last_seen() -> None:
    figures = {"turns": 0, "turns_total": 0, "agents": 0, "rss_bytes": 0, "trouble": ""}
    lost = {
        "is_here": True, "state": "gone", "host": "web-1", "url": "http://[fd00::5]:8765", "version": "1",
        "started_at": 0.0, "roles": [], "figures": figures,
    }  # fmt: skip
    status = {
        "reasons": ["store: The database cannot be reached."],
        "owed": {"turns": 0, "replies": 0},
        "cluster": {"lease_seconds": 30.0, "is_out": True, "members": [lost], "troubles": []},
    }
    console = Console(width=200)
    with console.capture() as seen:
        console.print(render_cluster(status, now=61.0))
    text = seen.get()
    assert "1 gateway as last seen" in text
    (row,) = [line for line in text.splitlines() if "web-1" in line]
    assert row.split()[:4] == ["web-1", "[fd00::5]:8765", "(here)", "unknown"]
