"""`talaria top`: what an operator sees of a running gateway."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console

from cli.conftest import Serve, Talaria
from talaria.cli.top import render, render_cluster, render_processes
from talaria.cluster.overview import MemberState
from talaria.core.cluster import MemberFigures
from talaria.core.errors import NotFound
from talaria.core.ids import OwnerId, PlaceId, SessionId
from talaria.core.shells import ProcessInfo, ProcessState
from talaria.observe.metrics import EndpointReading, PoolCounters
from talaria.operations.status import ClusterView, MemberView, StatusView
from talaria.pool.pool import PoolStats


def status(**fields: Any) -> StatusView:
    """Return the status of a gateway that has just started, with these fields."""
    idle = {
        "version": "1", "uptime_seconds": 1, "pid": 7, "rss_bytes": 1, "descriptors": {"open": 1, "most": 2},
        "phase": "ready", "ready": True, "reasons": [], "model": {"default": "", "missing_keys": {}},
        "endpoints": {}, "channels": {}, "mcp_servers": {}, "skills": {"in_use": 0, "new": []}, "plugins": [],
        "built_in_model": {
            "pid": None, "weights": None, "larger": {"name": "m", "size": 1, "memory": 1, "state": "absent"}
        },
        "spending": {}, "config": {}, "limits": {}, "loop": {}, "scheduled_work_waits": "", "network": {},
        "store": {
            "engine": "sqlite", "schema": 1, "size_bytes": 0, "wal_bytes": 0, "sessions": 0, "integrity": "",
            "trouble": "",
        },
        "turns": {}, "owed": {"turns": 0, "replies": 0, "oldest_seconds": 0, "channels": {}},
        "jobs": {"jobs": {}, "runs": {}, "late_seconds": 0}, "search": None, "processes": [],
        "cluster": None,
    }  # fmt: skip
    return msgspec.convert(idle | fields, StatusView)


def member(**fields: Any) -> MemberView:
    alive = MemberView(
        id=OwnerId("own_1"), place=PlaceId("place_1"), is_here=True, state=MemberState.ALIVE, host="web-1",
        url="http://10.0.0.1:8765", version="1.0", schema=1, started_at=1.0, expires_seconds=20.0,
        has_shared_files=False, roles=(), figures=MemberFigures(),
    )  # fmt: skip
    return replace(alive, **fields)


def cluster(*members: MemberView, is_out: bool = False, troubles: tuple[str, ...] = ()) -> ClusterView:
    return ClusterView(OwnerId("own_1"), PlaceId("place_1"), 30.0, is_out, members, {}, troubles)


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
        (EndpointReading("closed", busy=2, waiting=3), "2 under way, 3 waiting"),
        (EndpointReading("open", 5, 4.2), "0 under way, resting for 4 s after 5 failures"),
        (EndpointReading("half_open", busy=1), "1 under way, being tried again"),
    ],
)
def test_an_endpoint_is_told_with_its_queue_and_its_rest(endpoint: EndpointReading, told: str) -> None:
    pool = PoolStats(1, 0, 0, 0, 0, 1, (), PoolCounters(), 0, 0)
    console = Console(width=200)
    with console.capture() as seen:
        console.print(render(status(endpoints={"acme": endpoint}), pool))
    assert f"acme ({told})" in seen.get()


def test_runs_that_are_over_do_not_count_as_never_begun() -> None:
    """Fault 16 of the page's trial: the status counts runs that are due or under way. After seven runs, the
    line was `runs: none yet`."""
    pool = PoolStats(1, 0, 0, 0, 0, 1, (), PoolCounters(), 0, 0)
    console = Console(width=200)
    with console.capture() as seen:
        console.print(render(status(jobs={"jobs": {"active": 1}, "runs": {}, "late_seconds": 0}), pool))
    assert "1 active; runs: none due" in seen.get()


def test_background_processes_are_listed() -> None:
    process = ProcessInfo("p1", SessionId("ses_1"), "npm\x1b dev", ProcessState.RUNNING, 1.0, written=2048)
    console = Console(width=200)
    with console.capture() as seen:
        console.print(render_processes([process], now=13.0))
    assert seen.get().splitlines()[1].split() == ["p1", "ses_1", "npm", "dev", "12", "s", "2.0", "KiB"]


def test_a_narrow_terminal_cuts_sessions_and_commands_but_no_id_of_a_process() -> None:
    process = ProcessInfo(
        "p92e52784",
        SessionId("ses_01KA5ZZZZZZZZZZZZZZZZZZZZZ"),
        "python -m http.server --directory build 8000",
        ProcessState.RUNNING,
        1.0,
        written=2048,
    )
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
    figures = MemberFigures(turns=2, agents=5, rss_bytes=3 << 20, turns_total=17)
    ill = replace(figures, trouble="store: The database\x1b[2J does not answer.")
    here = member(roles=("channel:telegram", "upkeep"), figures=figures)
    other = member(is_here=False, host="web-2", url="http://10.0.0.2:8765", figures=ill)
    gone = member(
        is_here=False,
        host="web-3\x1b[31m\x9b2J\u202e",
        state=MemberState.GONE,
        url="http://a\x1b]0;x\x07",
        version="[red]1\x1b[2J",
        roles=("[link=x]\x1b[2J",),
    )
    seen_now = status(
        owed={"turns": 1, "replies": 0, "oldest_seconds": 0, "channels": {}},
        cluster=cluster(here, other, gone, troubles=("web-2 is far away.",)),
    )
    console = Console(width=200)
    with console.capture() as seen:
        console.print(render_cluster(seen_now, now=61.0))
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
        render_cluster(status(), now=61.0)


def test_gateways_that_lost_the_database_are_shown_as_last_seen() -> None:
    lost = member(state=MemberState.GONE, url="http://[fd00::5]:8765")
    seen_last = status(reasons=["store: The database cannot be reached."], cluster=cluster(lost, is_out=True))
    console = Console(width=200)
    with console.capture() as seen:
        console.print(render_cluster(seen_last, now=61.0))
    text = seen.get()
    assert "1 gateway as last seen" in text
    (row,) = [line for line in text.splitlines() if "web-1" in line]
    assert row.split()[:4] == ["web-1", "[fd00::5]:8765", "(here)", "unknown"]
