"""Changes of config.toml while the gateway runs: which keys count at once, and who is told of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from talaria.config.decoder import hints_of, is_marked
from talaria.config.home import SECRETS_FILE
from talaria.config.issues import dotted
from talaria.config.load import FILE_NAME, load
from talaria.config.settings import Settings
from talaria.core.clock import Clock
from talaria.core.errors import ConfigError
from talaria.core.redaction import SecretRegistry
from talaria.core.settings import GatewayPart, KeyPath, Mark, Parts, S
from talaria.core.whole_files import Stamp, stamp_of

_log = logging.getLogger("talaria.config")
EVERY_SECONDS = 3.0


class Changes(msgspec.Struct, frozen=True):
    """The keys that differ: those in effect at once, and those that wait for the next start."""

    live: tuple[KeyPath, ...] = ()
    later: tuple[KeyPath, ...] = ()


class LiveSettings:
    """The current settings of a running gateway. Only keys marked `LIVE` change. Sessions that exist keep the
    prompt, the tools and the model that they were pinned to."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._told: list[tuple[tuple[KeyPath, ...], Callable[[Settings], None]]] = []

    def on(self, *paths: KeyPath, tell: Callable[[Settings], None]) -> None:
        """Call `tell` with the new settings when a live key at or below one of the paths changes. `tell` must
        not fail."""
        self._told.append((paths, tell))

    @contextmanager
    def follow(self, part: GatewayPart[S], tell: Callable[[S], None]) -> Iterator[None]:
        """Call `tell` with the part's new settings when a key of its table changes, while this is open."""
        told = ((part.table,), lambda new: tell(new.of(part)))
        self._told.append(told)
        try:
            yield
        finally:
            self._told.remove(told)

    def take(self, new: Settings) -> Changes:
        """Take the live keys of the new settings and tell of them. Others are compared again next time."""
        changes = compare(self.settings, new)
        self.settings = merge(self.settings, new)
        for paths, tell in tuple(self._told):
            if any(changed[: len(path)] == path for changed in changes.live for path in paths):
                tell(self.settings)
        return changes


def compare(old: Settings, new: Settings) -> Changes:
    found: tuple[list[KeyPath], list[KeyPath]] = ([], [])
    for path in _differences(old, new, ()):
        found[is_marked(type(new), path, Mark.LIVE)].append(path)
    return Changes(tuple(found[True]), tuple(found[False]))


def merge(old: S, new: S) -> S:
    """Return the old settings, or a table of them, with the live keys of the new ones."""
    taken = {}
    for name, hint in hints_of(type(old)).items():
        if Mark.LIVE in hint.marks:
            taken[name] = getattr(new, name)
        elif hint.is_struct:
            taken[name] = merge(getattr(old, name), getattr(new, name))
    return msgspec.structs.replace(old, **taken)


def _differences(old: object, new: object, path: KeyPath) -> Iterator[KeyPath]:
    if old == new:
        return
    if isinstance(old, msgspec.Struct) and isinstance(new, msgspec.Struct) and type(old) is type(new):
        old, new = msgspec.structs.asdict(old), msgspec.structs.asdict(new)
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*old, *new)):
            yield from _differences(old.get(name), new.get(name), (*path, name))
    else:
        yield path


class Reloader:
    """Reads the file again when it or the home's secrets change, which it checks every few seconds, and when
    told to.

    A bad file changes nothing and is logged once; `trouble` says what is wrong with it. `pending` are the
    changed keys that wait for the next start. `watchers` are called after each good reading, because secrets
    that the settings name may have changed with no key changed.
    """

    def __init__(
        self,
        home: Path,
        environ: Mapping[str, str],
        parts: Parts,
        live: LiveSettings,
        clock: Clock,
        *,
        secrets: SecretRegistry,
    ) -> None:
        self._home = home
        self._environ = environ
        self._parts = parts
        self.live = live
        self._clock = clock
        self._seen = self._stamp()
        self._secrets = secrets
        self.trouble = ""
        self.pending: tuple[str, ...] = ()
        self.watchers: list[Callable[[], None]] = []

    def allow_host(self, host: str, port: int) -> None:
        """Write a host to `network.allow`. The change counts at once, like any other of the file. Blocks."""
        from talaria.config.edit import change_key  # noqa: PLC0415 - rarely needed
        from talaria.net.host_rules import write_rule  # noqa: PLC0415

        rule, allowed = write_rule(host, port), self.live.settings.network.allow
        if rule not in allowed:
            change_key(self._home, ("network", "allow"), [*allowed, rule], self._environ, self._parts)

    async def run(self) -> None:
        while True:
            await self._clock.sleep(EVERY_SECONDS)
            if await asyncio.to_thread(self._stamp) != self._seen:
                self.reload()

    def reload(self) -> None:
        """Read the file now, and log what came of it."""
        self._seen = self._stamp()
        try:
            loaded = load(self._home, self._environ, self._parts)
        except ConfigError as error:
            if error.user_text != self.trouble:
                _log.error("config.toml was changed and cannot be used; nothing changes. %s", error)
            self.trouble = error.user_text
            return
        self.trouble = ""
        self._secrets.add(loaded.secrets)  # before anything can be logged about them
        changes = self.live.take(loaded.settings)
        self.pending = tuple(map(dotted, changes.later))
        for warning in loaded.warnings:
            _log.warning("%s", warning)
        if changes.live:
            _log.info("config.toml was read again; in effect now: %s", ", ".join(map(dotted, changes.live)))
        if changes.later:
            _log.warning("config.toml was changed; from the next start on: %s", ", ".join(self.pending))
        if not changes.live and not changes.later:
            _log.info("config.toml was read again; nothing is different")
        for watcher in tuple(self.watchers):
            watcher()

    def status(self) -> dict[str, object]:
        return {"pending": list(self.pending), "trouble": self.trouble}

    def _stamp(self) -> tuple[Stamp, Stamp]:
        return stamp_of(self._home / FILE_NAME), stamp_of(self._home / SECRETS_FILE)
