"""Notices that config.toml was changed while the gateway runs, and brings in what can change live."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from talaria.config.live import LiveSettings
from talaria.config.load import FILE_NAME, load
from talaria.config.report import dotted
from talaria.core.clock import Clock
from talaria.core.errors import ConfigError

_log = logging.getLogger("talaria.config")
EVERY_SECONDS = 3.0


class Reloader:
    """Looks at the file every few seconds, and when told to. A file that is not good changes nothing and is
    told of once; `trouble` says what is wrong with it, `pending` which keys wait for the next start."""

    def __init__(
        self,
        home: Path,
        environ: Mapping[str, str],
        live: LiveSettings,
        clock: Clock,
        add_secrets: Callable[[Iterable[str]], None] = lambda secrets: None,
    ) -> None:
        self._home = home
        self._environ = environ
        self.live = live
        self._clock = clock
        self._seen = self._stamp()
        self.add_secrets = add_secrets
        self.trouble = ""
        self.pending: tuple[str, ...] = ()

    async def run(self) -> None:
        while True:
            await self._clock.sleep(EVERY_SECONDS)
            if self._stamp() != self._seen:
                self.reload()

    def reload(self) -> None:
        """Read the file now, and say what came of it."""
        self._seen = self._stamp()
        try:
            loaded = load(self._home, self._environ)
        except ConfigError as error:
            if error.user_text != self.trouble:
                _log.error("config.toml was changed and cannot be used; nothing changes. %s", error)
            self.trouble = error.user_text
            return
        self.trouble = ""
        self.add_secrets(loaded.secrets)  # before anything can be logged about them
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

    def status(self) -> dict[str, object]:
        return {"pending": list(self.pending), "trouble": self.trouble}

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = (self._home / FILE_NAME).stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
