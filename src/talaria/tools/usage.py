"""How often the tools of each origin are called: the least used ones are not shown when there are many."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from talaria.core.whole_files import replace_file

USAGE_FILE: Final = "tool-usage.json"
_MOST_CALLS: Final = 4096  # of all origins; then every count is halved, so that old calls are forgotten
_MOST_ORIGINS: Final = 1000
_log = logging.getLogger("talaria.tools")


class ToolUsage:
    """Counts of calls by origin. They are kept in a file, which is written each time that a count has
    doubled, so that a kill costs less than half of it. Without a path they are kept in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._counts = {} if path is None else _load(path)

    def rank(self, origin: str) -> int:
        """Return how much an origin is used, by powers of two: a few calls more do not change an order."""
        return self._counts.get(origin, 0).bit_length()

    def add(self, origin: str) -> bool:
        """Count a call. Return whether the counts should be saved."""
        before = self.rank(origin)
        self._counts[origin] = self._counts.get(origin, 0) + 1
        is_full = sum(self._counts.values()) > _MOST_CALLS or len(self._counts) > _MOST_ORIGINS
        if is_full:
            self._counts = {each: count // 2 for each, count in self._counts.items() if count > 1}
        return self._path is not None and (is_full or self.rank(origin) != before)

    def save(self) -> None:
        """Write the file. Blocks; a file that cannot be written costs no call."""
        if self._path is None:
            return
        try:
            counts = msgspec.json.encode(dict(self._counts), order="sorted")
            replace_file(self._path, counts, is_durable=False)
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._path, error.strerror)


def _load(path: Path) -> dict[str, int]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}
