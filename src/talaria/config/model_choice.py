"""A model that a person chooses: its provider and key, one call that tries it, and how config.toml gets it.
`talaria setup` and the page use it."""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from talaria.config.decoder import is_marked
from talaria.config.edit import check_change, edited, replace_config
from talaria.config.home import Home
from talaria.config.issues import dotted
from talaria.config.load import read_config
from talaria.config.settings import Settings, settings_type
from talaria.core.errors import ModelError
from talaria.core.messages import Text, UserMessage
from talaria.core.redaction import ApiAddress
from talaria.core.settings import SECRET_MARKS, KeyPath, Parts, web_address
from talaria.core.specs import ModelCall
from talaria.core.spending import cost, show_usd
from talaria.models.catalog import ModelChoice
from talaria.models.discovery import DetectedProvider, is_near_host, read_models
from talaria.models.failures import StatusKind, status_kind
from talaria.models.known import Prices
from talaria.models.local.weights import MANIFEST
from talaria.models.providers import Providers
from talaria.models.settings import LOCAL, PRESETS, ProviderSettings

TRIAL_QUESTION = "Answer with the word: ready"
TRIAL_TOKENS = 64  # reasoning models need some before they answer


def is_like_address(text: str) -> bool:
    return text == "localhost" or bool(re.search(r"[:/.]", text))


def read_address(text: str) -> str:
    """Return the address with a scheme: http for this machine and private networks, else https.

    Returns an empty string if the text is not an address.
    """
    address = text.strip().rstrip("/")
    try:
        if "://" not in address:
            near = is_near_host(urlsplit(f"//{address}").hostname or "")
            address = f"{'http' if near else 'https'}://{address}"
        return "" if web_address(address) else address
    except ValueError:
        return ""


def name_for(address: str) -> str:
    """Return a provider name such as `local-9999`, `192-168-0-7-8000` or `example`.

    It is never the name of a known provider, which has another address.
    """
    parts = urlsplit(address)
    host, port = parts.hostname or "", f"-{parts.port}" if parts.port else ""
    if host in ("localhost", "::1") or host.startswith("127."):
        return f"local{port or '-server'}"
    whole = re.sub(r"[^a-z0-9]+", "-", host).strip("-") + port
    is_number = ":" in host or host[-1:].isdigit()
    short = whole if is_number or "." not in host or is_near_host(host) else host.split(".")[-2]
    return whole if short in PRESETS else short


async def try_model(providers: Providers, choice: ModelChoice, prices: Prices) -> str:
    """Make one small call. Returns the result as a sentence. Raises `NoModel` and `ModelError`."""
    endpoint = providers.get(choice.provider)
    wire = endpoint.wire
    call = ModelCall(
        model=choice.model,
        prefix=wire.render_prefix("", ()),
        chunks=[wire.encode(UserMessage((Text(TRIAL_QUESTION),)))],
        max_output=TRIAL_TOKENS,
    )
    began = time.monotonic()
    usage = (await endpoint.complete(call, lambda delta: None)).usage
    seconds = time.monotonic() - began
    price = prices.find(choice.provider, choice.model)
    if price is None:
        paid = "its price is not known"
    else:
        paid = show_usd(cost(usage, price)) if cost(usage, price) else "free"
    used = f"{usage.input} tokens in, {usage.output} out"
    return f"{choice} answered in {seconds:.1f} s (one call: {used}, {paid})."


BUILT_IN_MODELS = tuple(weights.name for weights in MANIFEST)


class Candidate(msgspec.Struct, frozen=True):
    """A provider that could be used, and its `model` if that is decided.

    `base_url` is empty for a known provider at its usual address. `key` is a key that no variable holds; it
    is written to config.toml only if `is_kept` is set, and never shown. `is_refused` means that the provider
    refused the key, `is_keyless` that the person said there is none.
    """

    provider: str
    where: str = ""
    base_url: str = ""
    key_env: str = ""
    key: str = ""
    is_kept: bool = False
    is_refused: bool = False
    is_keyless: bool = False
    models: tuple[str, ...] = ()
    model: str = ""
    api: Literal["openai-chat", "openai-responses", "anthropic-messages"] | None = None

    def __repr__(self) -> str:
        return f"Candidate({self.provider!r}, {self.where!r})"

    @classmethod
    def given(cls, provider: str, base_url: str | None, key_env: str | None, settings: Settings) -> Candidate:
        """Make a candidate from options, completed from the configuration and the known providers."""
        configured = settings.providers.get(provider, ProviderSettings())
        preset = PRESETS.get(provider, ProviderSettings())
        # The key of a known provider is sent to the address of that provider only.
        own = preset.api_key_env if not (base_url or configured.base_url) else ""
        return cls(
            provider,
            base_url=base_url or configured.address.whole,
            key_env=key_env or configured.api_key_env or own,
            key="" if key_env else configured.api_key,
            is_kept=bool(configured.api_key and not key_env),
            api=configured.api,
        )

    @classmethod
    def now_used(cls, settings: Settings) -> Candidate | None:
        model = settings.model
        if not model.provider:
            return None
        given = cls.given(model.provider, None, None, settings)
        return msgspec.structs.replace(given, where="(now used)", model=model.name)

    @classmethod
    def at(cls, address: str) -> Candidate:
        """Return the known provider at this address, or a new one with a name made from the address."""
        for name, preset in PRESETS.items():
            if preset.base_url == address:
                return cls(name, key_env=preset.api_key_env)
        return cls(name_for(address), base_url=address)

    @property
    def label(self) -> str:
        return f"{self.provider}/{self.model}" if self.model else self.provider

    @property
    def is_foreign(self) -> bool:
        """Whether the key is of another program."""
        return bool(self.key and self.where and not self.is_kept)

    @property
    def is_named_only(self) -> bool:
        """Whether it is not a known provider, and has no address."""
        return not (self.provider in PRESETS or self.base_url or self.is_built_in)

    @property
    def is_built_in(self) -> bool:
        return self.provider == LOCAL and not self.base_url

    @property
    def is_known(self) -> bool:
        return self.provider in PRESETS and not self.base_url

    @property
    def is_own_variable(self) -> bool:
        """Whether the key is in the usual variable of a known provider."""
        return self.is_known and self.key_env == PRESETS[self.provider].api_key_env

    @property
    def lacks_version(self) -> bool:
        """Whether the address has no version, such as /v1."""
        return bool(self.base_url) and not re.search(r"/v\d", urlsplit(self.base_url).path)

    def without_key(self) -> Candidate:
        """Return the candidate after its key was refused, so that the person is asked for another."""
        return msgspec.structs.replace(self, where="", key="", is_kept=False, is_refused=True)

    def settings(self) -> ProviderSettings:
        variable = "" if self.key else self.key_env
        return ProviderSettings(self.base_url, self.api, self.key, variable, max_retries=0)

    def providers(self, environ: Mapping[str, str]) -> Providers:
        return Providers({self.provider: self.settings()}, environ)


def detected_candidate(found: DetectedProvider) -> Candidate:
    if found.env:
        return Candidate(found.provider, f"key in {found.env}", key_env=found.env)
    is_preset = found.provider in PRESETS
    url = "" if is_preset and PRESETS[found.provider].base_url == found.base_url else found.base_url
    models = f"{len(found.models)} model{'s' * (len(found.models) != 1)}"
    where = f"{found.name} at {found.base_url}, {models}"
    return Candidate(found.provider, where, base_url=url, models=found.models)


async def list_models(candidate: Candidate, environ: Mapping[str, str]) -> tuple[Candidate, list[str]]:
    """Return the models that the provider lists, and the candidate with the address that listed them: an
    address without /v1 is also tried with it. The list is empty if the provider has none. Raises `ModelError`
    if the key is refused or no server answers."""
    listed = await _list(candidate, environ)
    if not listed and candidate.lacks_version:
        parts = urlsplit(candidate.base_url)
        address = parts._replace(path=f"{parts.path.rstrip('/')}/v1").geturl()
        longer = msgspec.structs.replace(candidate, base_url=address)
        if listed := await _list(longer, environ):
            return longer, listed
    return candidate, listed


async def _list(candidate: Candidate, environ: Mapping[str, str]) -> list[str]:
    if candidate.models or candidate.is_built_in:
        return list(candidate.models or BUILT_IN_MODELS)
    async with candidate.providers(environ) as providers:
        try:
            listed = read_models(await providers.list_models(candidate.provider))
            return [name for name in listed if name.isprintable()]
        except ModelError as error:
            if error.status is None or status_kind(error.status) is StatusKind.BAD_KEY:
                raise
            return []
        except (msgspec.DecodeError, UnicodeDecodeError):
            return []


def write(
    home: Home,
    candidate: Candidate,
    model: str,
    environ: Mapping[str, str],
    parts: Parts,
    *,
    cap: float | None = None,
) -> list[str]:
    """Check the choice, write it, and return the keys that changed. `cap` is a new spend cap, 0 for none.
    Raises `ConfigError`."""
    before = text = read_config(home.config) or ""
    tables: dict[KeyPath, dict[str, object | None]] = {
        ("model",): {"provider": candidate.provider, "name": model},
        ("providers", candidate.provider): _provider_keys(candidate),
        ("budgets",): {} if cap is None else {"per_day_usd": cap or None},
    }
    lines = []
    for table, keys in tables.items():
        old = _find_table(before, table)
        changed = {key: value for key, value in keys.items() if value != old.get(key)}
        if changed:
            text = edited(home.config, text, table, changed)
        lines += [_line((*table, key), value, parts) for key, value in changed.items()]
    if lines:
        check_change(home.path, tuple(tables), (before, text), environ, parts)
        home.prepare()
        replace_config(home.path, text, is_secret=candidate.is_kept)
    return lines


def _provider_keys(candidate: Candidate) -> dict[str, object | None]:
    """Return the keys that make later calls the same as the call that was tried."""
    keys: dict[str, object | None] = {}
    if candidate.base_url or candidate.is_known:
        keys["base_url"] = candidate.base_url or None
    if candidate.is_kept:
        keys |= {"api_key": candidate.key, "api_key_env": None}
    elif candidate.key_env:
        keys |= {"api_key": None, "api_key_env": None if candidate.is_own_variable else candidate.key_env}
    return keys


def _find_table(text: str, path: KeyPath) -> Mapping[str, Any]:
    try:
        tree: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}  # `edited` says what is wrong with it
    for name in path:
        tree = tree.get(name, {}) if isinstance(tree, dict) else {}
    return tree if isinstance(tree, dict) else {}


def _line(path: KeyPath, value: object | None, parts: Parts) -> str:
    if value is None:
        return f"{dotted(path)} (removed)"
    shown = "(not shown)" if is_marked(settings_type(parts), path, *SECRET_MARKS) else value
    shown = str(ApiAddress(shown)) if isinstance(shown, str) and "://" in shown else shown
    return f"{dotted(path)} = {msgspec.json.encode(shown).decode()}"
