"""`talaria top`: a live view of the running gateway with its pool, turns, endpoints, memory and processes."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from functools import partial

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from talaria.cli.home_gateway import running_gateway
from talaria.cli.options import Invocation, run_loop, verb
from talaria.cli.text import count
from talaria.cluster.overview import MemberState
from talaria.console.gateway_client import GatewayClient
from talaria.core.errors import NotFound
from talaria.core.shells import ProcessInfo
from talaria.core.text import clean_line
from talaria.core.units import format_age, format_size
from talaria.observe.metrics import EndpointReading
from talaria.operations.operation import Nothing
from talaria.operations.status import ClusterView, StatusView, show_pool, show_status
from talaria.pool.pool import PoolStats

_MAX_AGENTS = 15
_COMMAND_WIDTH = 48
_VERSION_WIDTH = 24
_NAME_WIDTH = 80
_TROUBLE_WIDTH = 400
_PIPED_WIDTH = 200  # columns, so that nothing is cut where there is no screen
_REFRESH_SECONDS = 1.0


@verb("top", "talaria top", "talaria top --once", "talaria top --cluster")
@click.option("--once", is_flag=True, help="Print once and exit.")
@click.option("--cluster", is_flag=True, help="Show all gateways that serve the same database.")
def command(invocation: Invocation, once: bool, cluster: bool) -> None:
    """Watch the running gateway. Ctrl-C exits. Into a pipe or a file it prints once."""
    run_loop(_watch(invocation, once=once, cluster=cluster))


async def _watch(invocation: Invocation, *, once: bool, cluster: bool) -> None:
    async with running_gateway(invocation.read_home(), os.environ) as client:
        if client is None:
            raise NotFound("No gateway is running on this home.", "Start one with `talaria serve`.")
        view = await _look(client, cluster=cluster)
        if once or not sys.stdout.isatty():  # a pipe gets one view: the screen of a terminal cannot be piped
            Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH).print(view)
            return
        with Live(view, auto_refresh=False, screen=True) as live:
            while True:
                await asyncio.sleep(_REFRESH_SECONDS)
                live.update(await _look(client, cluster=cluster), refresh=True)


async def _look(client: GatewayClient, *, cluster: bool) -> RenderableType:
    status = await client.carry_out(show_status, Nothing())
    if cluster:
        return render_cluster(status, time.time())
    return render(status, await client.carry_out(show_pool, Nothing()))


def render_cluster(status: StatusView, now: float) -> RenderableType:
    """Return the gateways that serve the database together. Raises `NotFound` for a gateway on SQLite."""
    cluster = status.cluster
    if cluster is None:
        raise NotFound(
            "This gateway serves its database alone.",
            "Gateways work together on PostgreSQL: see [store] url and docs/scale-out.md.",
        )
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for head in ("GATEWAY", "STATE", "UP", "VERSION", "TURNS", "ENDED", "AGENTS", "MEMORY", "ROLES"):
        is_number = head in ("UP", "TURNS", "ENDED", "AGENTS", "MEMORY")
        table.add_column(head, justify="right" if is_number else "left", no_wrap=head != "ROLES")
    for member in cluster.members:
        figures, place = member.figures, member.url.partition("://")[2]
        name = clean_line(f"{member.host} {place}", _NAME_WIDTH) + (" (here)" if member.is_here else "")
        is_unknown = cluster.is_out and member.state is MemberState.GONE
        table.add_row(
            Text(name),  # an IPv6 address would be markup
            "unknown" if is_unknown else clean_line(member.state),
            format_age(max(0.0, now - member.started_at)),
            Text(clean_line(member.version, _VERSION_WIDTH)),
            str(figures.turns),
            str(figures.turns_total),
            str(figures.agents),
            format_size(figures.rss_bytes),
            Text(clean_line(", ".join(member.roles)) or "-"),
        )
    owed, living = status.owed, sum(each.state is not MemberState.GONE for each in cluster.members)
    lease = f"leases of {cluster.lease_seconds:g} s"
    facts = [
        f"{count(len(cluster.members), 'gateway')} as last seen, since this one lost the database, {lease}"
        if cluster.is_out
        else f"{count(living, 'gateway')}, {lease}",
        f"owed: {count(owed.turns, 'turn')}, {count(owed.replies, 'reply', 'replies')}",
    ]
    views: list[RenderableType] = [*facts, "", table]
    if troubles := _cluster_troubles(status, cluster):
        views += ["", *(Text(clean_line(text, _TROUBLE_WIDTH), style="yellow") for text in troubles)]
    return Group(*views)


def _cluster_troubles(status: StatusView, cluster: ClusterView) -> list[str]:
    """Return what is wrong with the cluster, as this gateway and the others tell it."""
    told = [f"here: {reason}" for reason in status.reasons] + list(cluster.troubles)
    return told + [
        f"{member.host} {member.url}: {member.figures.trouble}"
        for member in cluster.members
        if member.figures.trouble and not member.is_here and member.state is not MemberState.GONE
    ]


def render(status: StatusView, pool: PoolStats) -> RenderableType:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    for name, text in _facts(status, pool):
        facts.add_row(name, text)
    agents = Table(box=None, padding=(0, 2), header_style="dim")
    for head in ("AGENT OF", "STATE", "BYTES", "IDLE", "REVISION"):
        agents.add_column(head, justify="right" if head in ("BYTES", "IDLE") else "left", no_wrap=True)
    for agent in list(reversed(pool.agents))[:_MAX_AGENTS]:
        agents.add_row(
            agent.chat_key.removeprefix("agent:"),
            agent.state,
            format_size(agent.bytes),
            f"{agent.idle_seconds:.0f} s",
            agent.revision,
        )
    views: list[RenderableType] = [facts, "", agents]
    if running := status.processes:
        views += ["", render_processes(running, time.time())]
    return Group(*views)


def render_processes(running: Sequence[ProcessInfo], now: float) -> Table:
    """Return the background processes of all sessions, the newest first."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for head in ("PROCESS", "SESSION", "COMMAND", "TIME", "PRINTED"):
        is_cut = head in ("SESSION", "COMMAND")  # on a narrow terminal, and no other column
        table.add_column(head, justify="right" if head in ("TIME", "PRINTED") else "left", no_wrap=not is_cut)
    for process in sorted(running, key=lambda each: -each.started_at)[:_MAX_AGENTS]:
        age = format_age(max(0.0, now - process.started_at))
        cut = partial(Text, no_wrap=True, overflow="ellipsis")
        command = cut(clean_line(process.command, _COMMAND_WIDTH))
        session = cut(process.session_id)
        table.add_row(process.id, session, command, age, format_size(process.written))
    return table


def _facts(status: StatusView, pool: PoolStats) -> list[tuple[str, str]]:
    turns, counters, owed = status.turns, pool.counters, status.owed
    found = counters.hits + counters.builds + counters.catchups + counters.rebuilds
    warm = f"{(counters.hits + counters.catchups) * 100 // found} % found warm" if found else "none yet"
    evicted = counters.evicted_cap + counters.evicted_idle + counters.evicted_bytes
    endpoints = ", ".join(f"{name} ({_condition(about)})" for name, about in status.endpoints.items())
    return [
        ("gateway", f"{status.version}, {status.phase}, up {status.uptime_seconds:.0f} s"),
        ("memory", format_size(status.rss_bytes)),
        ("turns", ", ".join(f"{number} {state}" for state, number in turns.items() if number) or "none yet"),
        ("owed", f"{count(owed.turns, 'turn')}, {count(owed.replies, 'reply', 'replies')}"),
        (
            "pool",
            f"{pool.size} of {pool.cap} agents, {pool.busy} busy, "
            f"{format_size(pool.bytes)} of {format_size(pool.max_bytes)}",
        ),
        ("leases", f"{warm}; {counters.rebuilds} rebuilt, {evicted} evicted"),
        ("endpoints", endpoints or "none called yet"),
        *_jobs(status),
    ]


def _jobs(status: StatusView) -> list[tuple[str, str]]:
    """Return the line about jobs, if there are any."""
    jobs = status.jobs
    if not sum(jobs.jobs.values()):
        return []
    kept = ", ".join(f"{number} {state}" for state, number in jobs.jobs.items() if number)
    runs = ", ".join(f"{number} {state}" for state, number in jobs.runs.items() if number) or "none due"
    late = f"; a run waits for {format_age(jobs.late_seconds)}" if jobs.late_seconds >= 1 else ""
    held = f"; they wait: {status.scheduled_work_waits}" if status.scheduled_work_waits else ""
    return [("jobs", f"{kept}; runs: {runs}{late}{held}")]


def _condition(endpoint: EndpointReading) -> str:
    """Describe the calls at an endpoint, and its circuit breaker if that is not closed."""
    parts = [f"{endpoint.busy} under way"]
    if endpoint.waiting:
        parts.append(f"{endpoint.waiting} waiting")
    if endpoint.state == "open":
        parts.append(f"resting for {endpoint.retry_seconds:.0f} s after {endpoint.failures} failures")
    elif endpoint.state != "closed":
        parts.append("being tried again")
    return ", ".join(parts)
