"""Which settings a running gateway takes up at once, and who is told when one of them changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from talaria.config.positions import KeyPath
from talaria.config.settings import Settings

# Keys, or all keys below a table. What is not here takes effect at the next start. Whatever it is, sessions
# that exist keep the prompt, the tools and the model that they were pinned to.
LIVE: tuple[KeyPath, ...] = (
    ("agent", "prompt"),
    ("aliases",),
    ("budgets",),
    ("channels", "telegram", "allowed"),
    ("log", "level"),
    ("model", "name"),
    ("model", "provider"),
    ("pool",),
    ("prices",),
    ("providers",),
    ("sessions", "daily_at"),
    ("sessions", "idle_after"),
    ("sessions", "reset"),
    ("tools", "enabled"),
)


class Changes(msgspec.Struct, frozen=True):
    """The keys that differ: those in effect at once, and those that wait for the next start."""

    live: tuple[KeyPath, ...] = ()
    later: tuple[KeyPath, ...] = ()


class LiveSettings:
    """What a running gateway goes by now. Whoever can change while it runs says so with `on`; all that has
    no one to tell keeps what it was started with."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._told: list[tuple[tuple[KeyPath, ...], Callable[[Settings], None]]] = []

    def on(self, *patterns: KeyPath, tell: Callable[[Settings], None]) -> None:
        """Tell of every change below one of the patterns, which are of `LIVE`. `tell` must not fail."""
        assert set(patterns) <= set(LIVE)
        self._told.append((patterns, tell))

    def take(self, new: Settings) -> Changes:
        """Go by these, as far as that can be done while running. What cannot is compared again next time."""
        changes = compare(self.settings, new)
        self.settings = merged(self.settings, new)
        for patterns, tell in self._told:
            if any(_is_below(path, pattern) for path in changes.live for pattern in patterns):
                tell(self.settings)
        return changes


def is_live(path: KeyPath) -> bool:
    return any(_is_below(path, pattern) for pattern in LIVE)


def _is_below(path: KeyPath, pattern: KeyPath) -> bool:
    return path[: len(pattern)] == pattern


def compare(old: Settings, new: Settings) -> Changes:
    paths = tuple(_differences(old, new, ()))
    return Changes(
        tuple(path for path in paths if is_live(path)),
        tuple(path for path in paths if not is_live(path)),
    )


def merged(old: Settings, new: Settings) -> Settings:
    """The old settings with everything of the new ones that can change live."""
    settings = old
    for pattern in LIVE:
        settings = _with(settings, new, pattern)
    return settings


def _with(old: msgspec.Struct, new: msgspec.Struct, path: KeyPath) -> Settings:
    name, *rest = path
    value = getattr(new, name)
    if rest:
        value = _with(getattr(old, name), value, tuple(rest))
    changed: Settings = msgspec.structs.replace(old, **{name: value})  # type: ignore[assignment]
    return changed


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
