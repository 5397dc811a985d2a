"""The checks of `talaria doctor` for the machine, the home, the running gateway and the store. They change
nothing."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from talaria.cli.text import count
from talaria.config.home import Home, open_mode
from talaria.config.settings import Settings
from talaria.config.trust import find_distrust
from talaria.core.errors import ForeignDatabase, StoreGone, TalariaError
from talaria.core.gateway_part import Status
from talaria.core.problems import Problem, end_command, install_command, ok, problem, shell, warn
from talaria.core.units import format_age, format_size
from talaria.core.version import this_version
from talaria.store.engines import (
    RescuedDatabase,
    describe_engine,
    find_rescue,
    inspect_database,
)
from talaria.store.filesystems import check_filesystem
from talaria.store.home_lock import HomeLock

LITTLE_SPACE, NO_SPACE = 1 << 30, 100 << 20


def check_machine(home: Home) -> Iterator[Problem]:
    python = f"Python {platform.python_version()} ({sys.executable})"
    yield ok("talaria", f"Talaria {this_version()} on {python}, {platform.system()}.")
    if time.time() < Path(__file__).stat().st_mtime - 86_400:
        text = time.strftime("The clock says %Y-%m-%d %H:%M, which is before this program was installed.")
        yield problem("clock", text, "", "timedatectl set-ntp true")
    else:
        yield ok("clock", time.strftime("It is %Y-%m-%d %H:%M %Z."))
    try:
        ZoneInfo("Europe/Berlin")
    except (ZoneInfoNotFoundError, OSError):
        text = "This machine has no time zone database, so agent.timezone cannot be used."
        yield warn("clock", text, "", install_command("tzdata"))
    yield _check_disk(_existing(home.path))


def _check_disk(folder: Path) -> Problem:
    try:
        check_filesystem(folder)
        free = shutil.disk_usage(folder).free
    except TalariaError as error:
        return error.problem("disk")
    except OSError as error:
        return warn("disk", f"The disk of {folder} cannot be looked at: {error.strerror}.")
    if free >= LITTLE_SPACE:
        return ok("disk", f"{format_size(free)} free.")
    level = problem if free < NO_SPACE else warn
    return level("disk", f"{format_size(free)} free.", f"Make room on the disk that holds {folder}.")


def check_trust(home: Home) -> Iterator[Problem]:
    """Yield what lets other users control the home."""
    for reason in find_distrust(home):
        otherwise = f"{reason.otherwise[:1].upper()}{reason.otherwise[1:]}."
        yield problem("home", reason.user_text, otherwise, reason.command)


def check_home(home: Home, environ: Mapping[str, str]) -> Iterator[Problem]:
    """Check the folder. It may be mistyped, so no command here touches files that Talaria did not make."""
    path, elsewhere = home.path, "Name a folder that you can write with --home or TALARIA_HOME."
    if not path.exists():
        parent = _existing(path)
        if parent.is_dir() and os.access(parent, os.W_OK):
            yield ok("home", f"{path} is not there yet; the first start makes it.")
        else:
            yield problem("home", f"{path} cannot be made: {parent} cannot be written.", elsewhere)
    elif not path.is_dir():
        is_named = environ.get("TALARIA_HOME") and Home.find(None, environ) == home
        unset = "unset TALARIA_HOME" if is_named else ""
        yield problem("home", f"{path} is a file, not a folder.", elsewhere, unset)
    elif not os.access(path, os.W_OK | os.X_OK):
        yield problem("home", f"{path} cannot be written by this user.", elsewhere)
    else:
        if mode := open_mode(path):
            text = f"{path} is open to other users (mode {mode})."
            if _is_ours(path):
                yield warn("home", text, "", shell("chmod", "700", path))
            else:
                fix = "It does not look like a home: name a folder of its own, or close it yourself."
                yield warn("home", text, fix)
        else:
            yield ok("home", f"{path}, for this user only.")
        for folder in (home.files, home.logs):
            if folder.exists() and not folder.is_dir():
                text = f"{folder} is a file, and a folder is needed there."
                yield problem("home", text, "Talaria did not make it: move it away, or name another home.")


def _is_ours(path: Path) -> bool:
    """Return whether the folder belongs to this user and looks like a home."""
    home = Home(path)
    is_home = any(each.exists() for each in (home.lock, home.token_file, home.config))
    return is_home and path.stat().st_uid == os.getuid()


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
                fix = "Mend that; the gateway opens it again when config.toml changes, and after a restart."
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
                "owed", text, f"Connect {name} again, or wait: they are given up after delivery.max_age."
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
    return problem("store", trouble, "Its log says more. If a disk is the reason, it goes on by itself.")


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
        fix = f"{error.hint} Without a backup, this begins anew and keeps the old:".strip()
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


def _existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    return next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))
