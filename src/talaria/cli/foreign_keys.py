"""Keys in well-known files of other tools. They are only read, and only here; which file is always said."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from talaria.models.presets import PRESETS

MAX_BYTES = 1 << 20
_LINE = re.compile(r"""^\s*(?:export\s+)?(\w+)\s*=\s*["']?([^"'\s#]+)""", re.MULTILINE)


class ForeignKey(msgspec.Struct, frozen=True):
    """The value stays out of every repr."""

    provider: str
    tool: str
    file: Path
    key: str

    def __repr__(self) -> str:
        return f"ForeignKey({self.provider!r}, {str(self.file)!r})"


def find_foreign_keys(home: Path) -> list[ForeignKey]:
    """`home` is the person's, not the gateway's. A file that is not as expected is passed over."""
    found = []
    for tool, name, read in FILES:
        path = home / name
        try:
            if path.stat().st_size > MAX_BYTES:
                continue
            keys = read(path.read_bytes())
        except (OSError, ValueError, msgspec.DecodeError, AttributeError):
            continue
        found += [
            ForeignKey(provider, tool, path, key.strip())
            for provider, key in keys.items()
            if provider in PRESETS and isinstance(key, str) and key.strip().isprintable() and key.strip()
        ]
    return found


def _by_variable(values: Mapping[str, object]) -> dict[str, object]:
    providers = {preset.api_key_env: name for name, preset in PRESETS.items() if preset.api_key_env}
    return {providers[name]: value for name, value in values.items() if name in providers}


def _codex(data: bytes) -> dict[str, object]:
    return _by_variable(msgspec.json.decode(data, type=dict[str, object]))


def _llm(data: bytes) -> dict[str, object]:
    return msgspec.json.decode(data, type=dict[str, object])


def _opencode(data: bytes) -> dict[str, object]:
    """What it got by a login of its own is not ours to use; only plain keys are."""
    entries = msgspec.json.decode(data, type=dict[str, dict[str, object]])
    return {name: entry.get("key") for name, entry in entries.items() if entry.get("type") == "api"}


def _lines(data: bytes) -> dict[str, object]:
    return _by_variable(dict(_LINE.findall(data.decode("utf-8", "replace"))))


FILES: tuple[tuple[str, str, Callable[[bytes], dict[str, object]]], ...] = (
    ("Codex", ".codex/auth.json", _codex),
    ("llm", ".config/io.datasette.llm/keys.json", _llm),
    ("opencode", ".local/share/opencode/auth.json", _opencode),
    ("Hermes", ".hermes/.env", _lines),
)
