"""What `talaria setup` can choose from, and what a choice becomes in config.toml."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from talaria.config.edit import check_change, edited, file_only, replace_config
from talaria.config.home import Home
from talaria.config.load import read_config
from talaria.config.settings import Settings
from talaria.core.errors import ModelError
from talaria.models.finder import find
from talaria.models.local.manifest import MANIFEST
from talaria.models.presets import LOCAL, PRESETS
from talaria.models.probes import read_models
from talaria.models.providers import Providers
from talaria.models.settings import ProviderSettings

MAX_BYTES = 1 << 20  # of another tool's file
_LINE = re.compile(r"""^\s*(?:export\s+)?(\w+)\s*=\s*["']?([^"'\s#]+)""", re.MULTILINE)
BUILT_IN_MODELS = tuple(weights.name for weights in MANIFEST)


class Candidate(msgspec.Struct, frozen=True):
    """A provider that could be used. `base_url` is empty for a known one at its own address. `key` is one
    that stands in no variable; it is written only when `is_kept` says so, and never shown."""

    provider: str
    where: str = ""
    base_url: str = ""
    key_env: str = ""
    key: str = ""
    is_kept: bool = False
    is_refused: bool = False
    models: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Candidate({self.provider!r}, {self.where!r})"

    @classmethod
    def given(cls, provider: str, base_url: str | None, key_env: str | None, settings: Settings) -> Candidate:
        """From options; what they leave open is as configured, or as the known provider has it."""
        configured = settings.providers.get(provider, ProviderSettings())
        preset = PRESETS.get(provider, ProviderSettings())
        # A known provider's key goes to that provider's address only.
        own = preset.api_key_env if not (base_url or configured.base_url) else ""
        return cls(
            provider,
            base_url=base_url or configured.base_url,
            key_env=key_env or configured.api_key_env or own,
            key=configured.api_key,
        )

    @property
    def is_built_in(self) -> bool:
        return self.provider == LOCAL and not self.base_url

    @property
    def is_known(self) -> bool:
        return self.provider in PRESETS and not self.base_url

    def without_key(self) -> Candidate:
        """After it was refused: wherever it came from, it is asked for."""
        return msgspec.structs.replace(self, where="", key="", is_kept=False, is_refused=True)

    def settings(self) -> ProviderSettings:
        variable = "" if self.key else self.key_env
        return ProviderSettings(base_url=self.base_url, api_key=self.key, api_key_env=variable, max_retries=0)

    def providers(self, environ: Mapping[str, str]) -> Providers:
        return Providers({self.provider: self.settings()}, environ)


async def find_candidates(environ: Mapping[str, str]) -> list[Candidate]:
    """Keys in the environment, servers on this machine, keys in files of other tools."""
    candidates = []
    for found in await find(environ):
        if found.env:
            candidates.append(Candidate(found.provider, f"key in {found.env}", key_env=found.env))
        else:
            is_preset = found.provider in PRESETS
            url = "" if is_preset and PRESETS[found.provider].base_url == found.base_url else found.base_url
            where = f"{found.name} at {found.base_url}, {len(found.models)} models"
            candidates.append(Candidate(found.provider, where, base_url=url, models=found.models))
    return [*candidates, *find_foreign_keys(Path(environ.get("HOME") or "/"))]


async def list_models(candidate: Candidate, environ: Mapping[str, str]) -> list[str]:
    """What the provider lists; empty when it lists nothing. Raises `ModelError` when it refuses the key."""
    if candidate.models or candidate.is_built_in:
        return list(candidate.models or BUILT_IN_MODELS)
    async with candidate.providers(environ) as providers:
        try:
            return list(read_models(await providers.list_models(candidate.provider)))
        except ModelError as error:
            if error.status in (401, 403) or error.status is None:
                raise
            return []
        except (msgspec.DecodeError, UnicodeDecodeError):
            return []


def write(home: Home, candidate: Candidate, model: str, environ: Mapping[str, str]) -> list[str]:
    """Write the choice, checked first, and answer with the lines that are new. Raises `ConfigError`."""
    before = read_config(home.config) or ""
    text = edited(home.config, before, ("model",), {"provider": candidate.provider, "name": model})
    keys: dict[str, object | None] = {}
    if candidate.base_url:
        keys["base_url"] = candidate.base_url
    if candidate.is_kept:
        keys |= {"api_key": candidate.key, "api_key_env": None}
    elif candidate.key_env and not candidate.is_known:
        keys |= {"api_key_env": candidate.key_env}
    if keys:
        text = edited(home.config, text, ("providers", candidate.provider), keys)
    touched = (("model",), ("providers", candidate.provider))
    check_change(home.path, touched, before, text, file_only(environ))
    home.prepare()
    replace_config(home.path, text, is_secret=candidate.is_kept)
    old = set(before.splitlines())
    shown = [line for line in text.splitlines() if line.strip() and line not in old]
    return [line.replace(candidate.key, "(not shown)") if candidate.key else line for line in shown]


# -- keys of other tools


def find_foreign_keys(home: Path) -> list[Candidate]:
    """Keys in well-known files of other tools. They are only read, and only here; which file is always said.
    One that is not as expected is passed over. `home` is the person's, not the gateway's."""
    found = []
    for tool, name, read in FILES:
        path = home / name
        try:
            if path.stat().st_size > MAX_BYTES:
                continue
            keys = read(path.read_bytes())
        except (OSError, ValueError, msgspec.DecodeError, AttributeError):
            continue
        where = f"key of {tool} in ~/{name}"
        found += [
            Candidate(provider, where, key_env=PRESETS[provider].api_key_env, key=key.strip())
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
