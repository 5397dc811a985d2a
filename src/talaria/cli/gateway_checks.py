"""The checks of `talaria doctor` for a gateway, running or not: its store, cluster, plug-ins and jobs. They
change nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from talaria.channels.descriptor import find_address
from talaria.channels.http.part import HTTP
from talaria.cli.operations import open_records
from talaria.cli.text import count
from talaria.cluster.member_checks import ClusterToken, check_members, find_far_trouble, read_boot
from talaria.config.home import Home, home_environ
from talaria.config.plugins import FOLDER, find_plugins
from talaria.config.settings import Settings
from talaria.console.gateway_client import GatewayClient
from talaria.core.errors import ConfigError, ForeignDatabase, StoreGone, TalariaError
from talaria.core.extensions import PluginReport, PluginState
from talaria.core.ids import ChatAddress, ChatKey
from talaria.core.jobs import MAX_FAILURES, NOWHERE, JobState
from talaria.core.problems import Problem, end_command, ok, problem, run, shell, warn
from talaria.core.program import this_version
from talaria.core.settings import Parts, Status
from talaria.core.text import clean_line
from talaria.core.units import format_age, format_size
from talaria.jobs.desk import JobView
from talaria.jobs.schedules import agent_zone, is_zone, zone_name
from talaria.operations.jobs import JobQuery, list_jobs
from talaria.store.home_lock import HomeLock
from talaria.store.part import (
    RescuedDatabase,
    describe_engine,
    find_members,
    find_rescue,
    inspect_database,
    read_jobs,
)
from talaria.store.settings import is_file

_PLUGINS = "plug-ins"
_LOOKED_AT = 500  # jobs
_NAMED = 3  # jobs in a finding
_GRACE = 120.0  # seconds that a job may be late


def check_gateway(url: str, status: Status, rescue: RescuedDatabase | None = None) -> Iterator[Problem]:
    """Yield what the status of a running gateway says about it, its channels and its store. `rescue` is the
    newest saved content of the database."""
    version, pid = status.get("version"), status.get("pid")
    if version != this_version():
        text = f"The running gateway is version {version}, this program is {this_version()}."
        yield warn("gateway", text, f"Restart it: {end_command(pid) or 'stop it'}, then `talaria serve`.")
    if status.get("ready"):
        rss = format_size(int(status.get("rss_bytes") or 0))
        yield ok("gateway", f"Running at {url} (pid {pid}, {rss} of memory), accepting.")
    else:
        given = status.get("reasons") or ["it does not say why"]
        reasons = "; ".join(str(reason).rstrip(".") for reason in given)
        yield problem("gateway", f"Running at {url} (pid {pid}), but not accepting: {reasons}.")
    for name, state in (status.get("channels") or {}).items():
        if not str(state).startswith(("ready", "starting", "draining", "elsewhere")):
            fix = ""
            if str(state).startswith("stopped"):
                fix = "Fix this, then restart the gateway. A change of the settings opens the channel too."
            yield problem(name, f"The gateway's channel is {str(state).rstrip('.')}.", fix)
    if pending := (status.get("config") or {}).get("pending"):
        text = f"{', '.join(pending)} in config.toml will count from the gateway's next start on."
        yield warn("gateway", text, "Stop it and start it again:", end_command(pid))
    store, owed = status.get("store") or {}, status.get("owed") or {}
    size, sessions = format_size(int(store.get("size_bytes", 0))), store.get("sessions", 0)
    noun = "session" if sessions == 1 else "sessions"
    if trouble := store.get("trouble"):
        is_gone = store.get("trouble_type") == StoreGone.type
        yield _check_trouble(str(trouble), pid, rescue, is_gone=is_gone)
    else:
        state = store.get("integrity", "unknown")
        yield ok("store", f"{store.get('engine')}, {sessions} {noun}, {size}; {state}.")
    yield ok("owed", _owed(status.get("turns") or {}, owed))
    for name, replies in (owed.get("channels") or {}).items():
        if name not in (status.get("channels") or {}):
            text = (
                f"{count(replies, 'reply', 'replies')} cannot be sent: the gateway has no channel {name} now."
            )
            yield warn(
                "owed",
                text,
                f"Connect {name} again, or wait: they are marked as failed after delivery.max_age.",
            )


def _check_trouble(trouble: str, pid: object, rescue: RescuedDatabase | None, *, is_gone: bool) -> Problem:
    """Tell why the store of the running gateway cannot be written, and what ends that."""
    end = end_command(pid)
    wait = f"{end} && while kill -0 {pid} 2>/dev/null; do sleep 0.2; done && " if end else ""
    if is_gone and rescue is not None and str(rescue.path) in trouble:
        text = f"The database vanished under the gateway. Its content is saved in {rescue.path}."
        stop = "This stops the gateway and restores it" if end else "Stop the gateway. This restores it"
        fix = f"{stop}; then start the gateway again (`talaria serve`):"
        return problem("store", text, fix, wait + rescue.command)
    if is_gone:
        fix = f"Stop the gateway, and start it again (`talaria serve`){':' if end else '.'}"
        return problem("store", trouble, fix, end)
    return problem("store", trouble, "Its log says more. If a disk is the reason, it continues by itself.")


def _owed(turns: Mapping[str, int], owed: Mapping[str, float]) -> str:
    """Return how much was accepted and not answered yet, and the age of the oldest."""
    waiting = [f"{turns[state]} {state}" for state in ("accepted", "running", "waiting") if turns.get(state)]
    if replies := owed.get("replies"):
        waiting.append(f"{count(int(replies), 'reply', 'replies')} unsent")
    if not waiting:
        return "Nothing: every turn is settled and every reply sent."
    return f"{', '.join(waiting)}; the oldest for {format_age(owed.get('oldest_seconds', 0.0))}."


def check_idle(home: Home, settings: Settings) -> Iterator[Problem]:
    """Look at the store, which is free while no gateway runs."""
    if home.is_locked():
        yield problem(
            "gateway",
            f"A process holds {home.lock}, but says nowhere where it is.",
            "If it does not go away by itself, end it:",
            end_command(home.lock.read_text().strip()),
        )
        return
    yield ok("gateway", "Not running. `talaria serve` starts it.")
    database = home.find_database(settings.store.url)
    if (rescue := find_rescue(database)) is not None:
        text = f"The database {database} vanished under a gateway, which saved its content in {rescue.path}."
        if not database.exists():
            yield problem("store", text, "", rescue.command)
            return
        fix = f"Another one is there now. Delete the saved one, or restore it with `{rescue.command}`."
        yield warn("store", text, fix)
    if (loss := home.find_loss(settings.store.url)) is not None:
        yield loss.problem("store")
    elif settings.store.url:
        yield ok("store", "store.url names a database elsewhere; it is not looked at.")
    elif not home.database.exists():
        yield ok("store", f"{home.database} is not there yet; the first start makes it.")
    else:
        yield _check_database(home)


def _check_database(home: Home) -> Problem:
    """Look at the database, under the home's lock, so that no gateway starts meanwhile.

    A home that cannot be locked, on a disk that is full or read-only, says nothing about its database.
    """
    lock = HomeLock(home.path)
    try:
        lock.acquire()
    except TalariaError as error:
        return error.problem("store")
    try:
        return ok("store", _describe_database(home.database))
    except ForeignDatabase as error:
        return error.problem("store")
    except TalariaError as error:
        fix = f"{error.hint} Without a backup, this starts empty and keeps the old:".strip()
        return problem("store", error.user_text, fix, _move_aside(home))
    finally:
        lock.release()


def _describe_database(path: Path) -> str:
    """Return in a sentence what the database is. Raises `StoreError` for one that cannot be used as it is.
    Read-only."""
    latest, database = describe_engine().schema, inspect_database(path)
    owed = ""
    if database.unsettled or database.unsent:
        taken = f"{count(database.unsettled, 'turn')} and {count(database.unsent, 'reply', 'replies')}"
        owed = f"; the next start takes up {taken}"
    state = "" if database.schema == latest else f", to be upgraded to {latest} at the next start"
    return f"{path}: whole, schema {database.schema}{state}, {format_size(path.stat().st_size)}{owed}."


def _move_aside(home: Home) -> str:
    """Return a command that moves the database and its write-ahead log away."""
    aside = home.path / time.strftime("damaged-%Y%m%d-%H%M%S")
    return f"{shell('mkdir', aside)} && mv {shell(home.database)}* {shell(aside)}/"


# -- the cluster -----------------------------------------------------------------------------------------


async def check_cluster(
    settings: Settings, environ: Mapping[str, str], status: Status | None
) -> AsyncIterator[Problem]:
    """Yield nothing for a database that one gateway serves. A running gateway has variables of its own, so
    it knows better whether it has the token."""
    url, cluster = settings.store.url, settings.cluster
    if is_file(url):
        return
    members = await asyncio.to_thread(find_members, url)
    running = (status or {}).get("cluster")
    secret = cluster.find_token(environ)
    try:
        ClusterToken.of(cluster.token_env, secret)
    except ConfigError as error:
        yield error.problem("cluster")
    token = ClusterToken(cluster.token_env, bool(running) or bool(secret))
    for finding in check_members(members, token):
        yield finding
    if running is None and members:
        http = settings.of(HTTP)
        address = cluster.advertise_url or f"http://{http.host}:{http.port or 8765}"
        if (trouble := find_far_trouble(address, read_boot(), members)) is not None:
            yield trouble.problem("cluster")
    for text in (running or {}).get("troubles") or ():
        yield problem("cluster", str(text))
    for member in (running or {}).get("members") or ():
        trouble = (member.get("figures") or {}).get("trouble")
        if trouble and not member.get("is_here") and member.get("state") != "gone":
            yield warn(
                "cluster", f"The gateway on {member.get('host')} ({member.get('url')}) says: {trouble}"
            )


# -- plug-ins --------------------------------------------------------------------------------------------


def check_plugins(
    home: Home, settings: Settings, environ: Mapping[str, str], status: Status | None
) -> list[Problem]:
    """Return a finding for each plug-in with a problem, and one for the rest. Blocks: a plug-in that was not
    checked yet is checked, in a process of its own."""
    running = [msgspec.convert(each, PluginReport) for each in (status or {}).get("plugins", ())]
    findings = [*_unknown_tables(home, settings)]
    if not find_plugins(home):
        return findings + [_gone(each) for each in running]
    from talaria.plugins.loading import examine_plugins

    variables = home_environ(home.path, environ)
    found = examine_plugins(home, settings.plugins, variables)
    examined = [each for each in found if each.state is not PluginState.OFF]
    next_start = [each.report() for each in examined]
    told = {each.name: each for each in running}
    for each, report in zip(examined, next_start, strict=True):
        now = told.pop(report.name, None)
        if each.result.problem is not None:
            findings.append(_faulty(report, each.result.problem))
        elif now is not None and now.problem:
            findings.append(problem(_PLUGINS, f"{now.name}: {now.problem}", now.hint))
        elif now is None and status is not None:
            text = f"The plug-in {report.name} is not in use yet."
            findings.append(warn(_PLUGINS, text, "It is loaded at the next start of the gateway."))
    findings += [_gone(each) for each in told.values() if each.state is PluginState.LOADED]
    good = [report.name for report in next_start if not report.problem]
    if good:
        findings.append(
            ok(_PLUGINS, f"{', '.join(good)}: checked, and not contained: they are your own code.")
        )
    return findings


def _faulty(report: PluginReport, found: Problem) -> Problem:
    text, hint = f"{report.name} ({report.source}) is {report.state}. {found.text}", found.hint
    action = found.action
    if report.state is PluginState.QUARANTINED:
        action = run(shell("talaria", "plugins", "check", report.name))
    elif action is not None:
        hint = ""  # it has the same command
    return problem(_PLUGINS, text, hint, action)


def _gone(report: PluginReport) -> Problem:
    return warn(
        _PLUGINS,
        f"The plug-in {report.name} is in use, but {Path(report.source).name} is gone.",
        "It is left out at the next start of the gateway.",
    )


def _unknown_tables(home: Home, settings: Settings) -> list[Problem]:
    """Warn of tables that no plug-in reads."""
    if not settings.plugins:
        return []
    known = {source.name for source in find_plugins(home)}
    return [
        warn(
            _PLUGINS,
            f"config.toml has [plugins.{name}], but there is no plug-in {name}.",
            f"Put {name}.py into {home.path / FOLDER}, or install its package; or remove the table:",
            shell("talaria", "config", "unset", f"plugins.{name}"),
        )
        for name in settings.plugins
        if name not in known
    ]


# -- jobs ------------------------------------------------------------------------------------------------


async def find_jobs(home: Home, settings: Settings, client: GatewayClient | None) -> tuple[JobView, ...]:
    """Return the unfinished jobs of the running gateway, or of the database that no process uses; none of a
    database that cannot be read now, of which other checks tell. Read-only."""
    if client is not None:
        return (await client.carry_out(list_jobs, JobQuery(limit=_LOOKED_AT, unfinished=True))).items
    if settings.store.url or not home.database.exists():
        return ()
    lock = HomeLock(home.path)
    try:
        lock.acquire()
    except TalariaError:
        return ()
    try:
        async with open_records(home, None) as records:
            desk = records.job_desk()
            return tuple(JobView.of(job, desk) for job in read_jobs(home.database, _LOOKED_AT))
    except TalariaError:
        return ()
    finally:
        lock.release()


async def check_jobs(
    jobs: Sequence[JobView], home: Home, settings: Settings, parts: Parts, *, is_running: bool
) -> AsyncIterator[Problem]:
    """Yield what keeps jobs from running, and results from arriving. Nothing if there are no jobs."""
    if not jobs:
        return
    active = [job for job in jobs if job.state == JobState.ACTIVE]
    found = [*_paused(jobs), *_unknown_zones(jobs, settings)]
    found += _unreachable(active, settings, parts)
    late = [job for job in active if job.next_at is not None and job.next_at < time.time() - _GRACE]
    if late and not is_running:
        found.append(
            warn(
                "jobs",
                f"{count(len(late), 'job')} should have run: {_names(late)}. No gateway runs.",
                "`talaria serve` runs jobs, also those that were missed.",
            )
        )
    if checked := [job for job in active if job.check]:
        from talaria.workspace.sandbox.choice import choose

        choice = await choose(settings.tools.sandbox, home.path)
        if choice.sandbox is None:
            text = f"There is no sandbox for the checks of {_names(checked)}, so these jobs fail."
            found.append(warn("jobs", text, choice.hint, choice.command))
    for finding in found or [ok("jobs", f"{count(len(active), 'job')} active.")]:
        yield finding


def _paused(jobs: Iterable[JobView]) -> Iterator[Problem]:
    for job in _first(job for job in jobs if job.state == JobState.PAUSED and job.failures >= MAX_FAILURES):
        text = f"The job {_names([job])} is paused: {job.reason}."
        fix = f"`talaria jobs history {shell(job.id)}` tells why. When it is fixed:"
        yield warn("jobs", text, fix, f"talaria jobs resume {shell(job.id)}")


def _unknown_zones(jobs: Iterable[JobView], settings: Settings) -> Iterator[Problem]:
    usual = zone_name(agent_zone(settings.agent.timezone))
    for job in _first(job for job in jobs if job.timezone != usual and not is_zone(job.timezone)):
        text = f"The job {_names([job])} has a time zone that this machine does not know: {job.timezone}."
        yield warn("jobs", text, "Give it another one:", f"talaria jobs edit {job.id} --timezone UTC")


def _unreachable(jobs: Iterable[JobView], settings: Settings, parts: Parts) -> Iterator[Problem]:
    find = partial(find_address, parts, settings.of, settings.agent.name)
    told: set[str] = set()
    for job in jobs:
        chat = job.to or job.chat_key
        if chat == NOWHERE or chat in told or len(told) == _NAMED:
            continue
        try:
            find(ChatAddress.parse(ChatKey(chat)))
        except TalariaError as error:
            told.add(chat)
            yield warn("jobs", f"Results of {_names([job])} cannot arrive: {error.user_text}", error.hint)


def _first(jobs: Iterable[JobView]) -> list[JobView]:
    return [*jobs][:_NAMED]


def _names(jobs: list[JobView]) -> str:
    named = ", ".join(f"“{clean_line(job.name, 40)}”" for job in jobs[:_NAMED])
    return f"{named} and {len(jobs) - _NAMED} more" if len(jobs) > _NAMED else named
