"""The providers that `talaria setup` can offer, and how a choice is written to config.toml."""

from __future__ import annotations

import os
import re
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import click
import msgspec

from talaria.cli.text import ask_hidden, count
from talaria.config.decoder import is_marked
from talaria.config.edit import check_change, edited, replace_config
from talaria.config.home import Home
from talaria.config.issues import dotted
from talaria.config.load import read_config
from talaria.config.settings import Settings, settings_type
from talaria.core.errors import ModelError, NoModel
from talaria.core.messages import Text, UserMessage
from talaria.core.redaction import ApiAddress
from talaria.core.settings import SECRET_MARKS, KeyPath, web_address
from talaria.core.specs import ModelCall
from talaria.core.spending import cost, show_usd
from talaria.core.text import nearest
from talaria.models.catalog import ModelChoice
from talaria.models.discovery import DetectedProvider, detect_providers, is_near_host, read_models
from talaria.models.failures import StatusKind, status_kind
from talaria.models.known import Prices
from talaria.models.local.weights import MANIFEST
from talaria.models.providers import Providers
from talaria.models.settings import LOCAL, PRESETS, SCRIPTED, ProviderSettings
from talaria.parts import PARTS

# -- model servers for `setup` and `doctor`: addresses as people type them, and a trial call --------------


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
    short = whole if is_near_host(host) or host[-1:].isdigit() else host.split(".")[-2]
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


# -- the providers that `talaria setup` can offer, and how a choice is written to config.toml -------------


MAX_BYTES = 1 << 20  # of another tool's file
_LINE = re.compile(r"""^\s*(?:export\s+)?(\w+)\s*=\s*["']?([^"'\s#]+)""", re.MULTILINE)
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


async def find_candidates(environ: Mapping[str, str]) -> list[Candidate]:
    """Return candidates from keys in the environment, servers on this machine, and files of other tools."""
    candidates = [detected_candidate(found) for found in await detect_providers(environ)]
    return [*candidates, *find_foreign_keys(Path(environ.get("HOME") or "/"))]


def detected_candidate(found: DetectedProvider) -> Candidate:
    if found.env:
        return Candidate(found.provider, f"key in {found.env}", key_env=found.env)
    is_preset = found.provider in PRESETS
    url = "" if is_preset and PRESETS[found.provider].base_url == found.base_url else found.base_url
    where = f"{found.name} at {found.base_url}, {count(len(found.models), 'model')}"
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
    home: Home, candidate: Candidate, model: str, environ: Mapping[str, str], cap: float | None = None
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
        lines += [_line((*table, key), value) for key, value in changed.items()]
    if lines:
        check_change(home.path, tuple(tables), (before, text), environ, PARTS)
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


def _line(path: KeyPath, value: object | None) -> str:
    if value is None:
        return f"{dotted(path)} (removed)"
    shown = "(not shown)" if is_marked(settings_type(PARTS), path, *SECRET_MARKS) else value
    shown = str(ApiAddress(shown)) if isinstance(shown, str) and "://" in shown else shown
    return f"{dotted(path)} = {msgspec.json.encode(shown).decode()}"


# -- keys of other tools


def find_foreign_keys(home: Path) -> list[Candidate]:
    """Return keys from well-known files of other tools. The files are only read, and the person is told
    which. A file in another format is ignored. `home` is the person's home folder, not the gateway's."""
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
    """Return the plain keys. Credentials of its own login are left alone."""
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


# -- the questions of `talaria setup` ---------------------------------------------------------------------


MOST_SHOWN = 15
DAILY_CAP = 5.0  # USD
KNOWN = [name for name in PRESETS if name != SCRIPTED]
BUILT_IN = Candidate(LOCAL, "the built-in model: small, private, offline; no key", models=BUILT_IN_MODELS)


def ask_choice(found: Sequence[Candidate]) -> Candidate:
    offered = [*found, BUILT_IN, Candidate("other", "another provider, or an address of your own")]
    width = max(len(each.label) for each in offered)
    for number, each in enumerate(offered, 1):
        click.echo(f"  {number}  {each.label.ljust(width)}  {each.where}")
    # No default for a key of another program: the person must choose it.
    default = None if offered[0].is_foreign else 1
    number = click.prompt("Which one", default=default, value_proc=_number_up_to(len(offered)))
    return offered[number - 1] if number < len(offered) else _ask_provider()


def _number_up_to(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text) if str(text).strip().isdecimal() else 0
        if not 1 <= number <= most:
            raise click.UsageError(f"Type a number from 1 to {most}, or Ctrl-C.")
        return number

    return read


def _ask_provider() -> Candidate:
    click.echo(f"Known providers: {', '.join(KNOWN)}.")
    click.echo("Or an address of your own, such as http://127.0.0.1:8000/v1.")
    name = str(click.prompt("Provider")).strip()
    if is_like_address(name):
        return named_by_address(taken_address(name))
    near = None if name in PRESETS else nearest(name, KNOWN)
    return Candidate(near if near and click.confirm(f"Did you mean {near}?", default=True) else name)


def named_by_address(address: str) -> Candidate:
    candidate = Candidate.at(address)
    click.echo(f"It is called {candidate.provider} here.")
    return candidate


def complete(candidate: Candidate) -> Candidate:
    """Return the candidate with an address and a key, if it needs them. Raises `NoModel` without a key."""
    if candidate.is_built_in:
        return candidate
    if candidate.is_named_only:
        candidate = ask_address(candidate)
    if candidate.key:
        return candidate
    preset = PRESETS.get(candidate.provider)
    if candidate.key_env and os.environ.get(candidate.key_env) and not candidate.is_refused:
        return candidate
    if preset is not None and not preset.api_key_env and not candidate.is_refused:
        return candidate
    answers_without = candidate.models or candidate.is_keyless or (candidate.model and not candidate.key_env)
    return candidate if answers_without and not candidate.is_refused else _with_key(candidate)


def ask_address(candidate: Candidate) -> Candidate:
    """Ask for the address, until it is one. The present address is the default."""
    address = click.prompt(
        f"Address of {candidate.provider}, up to /v1",
        default=candidate.base_url or None,
        show_default=not ApiAddress(candidate.base_url).secrets,
        value_proc=taken_address,
    )
    return msgspec.structs.replace(candidate, base_url=address, models=())


def taken_address(text: str) -> str:
    """Return the complete address, and tell the person what was added."""
    address = read_address(text)
    if not address:
        raise click.UsageError(f"expected an address such as http://127.0.0.1:8000/v1, not {text}.")
    if "://" not in text:
        click.echo(f"Taken as {address}")
    return address


def ask_model(candidate: Candidate, listed: Sequence[str], default: str = "") -> str:
    if candidate.provider == SCRIPTED:
        return SCRIPTED
    if listed:
        shown = ", ".join(listed[:MOST_SHOWN])
        more = f" and {len(listed) - MOST_SHOWN} more" if len(listed) > MOST_SHOWN else ""
        click.echo(f"Models of {candidate.provider}: {shown}{more}")
    if len(listed) == 1 or candidate.is_built_in:
        default = listed[0]
    return str(click.prompt("Which model", default=default or None)).strip()


def _with_key(candidate: Candidate) -> Candidate:
    variable = candidate.key_env or (PRESETS[candidate.provider].api_key_env if candidate.is_known else "")
    none = "" if candidate.is_refused or variable else "; empty: none"
    question = f"Key of {candidate.provider} (not shown{none})"
    key = ask_hidden(question, may_be_empty=True)
    if not key:
        if candidate.is_refused or variable:
            raise NoModel(f"{candidate.provider} wants a key.", "Choose again, or press Ctrl-C to leave.")
        return msgspec.structs.replace(candidate, is_keyless=True)
    name = variable or f"{candidate.provider.upper().replace('-', '_').replace('.', '_')}_API_KEY"
    return msgspec.structs.replace(candidate, where="", key=key, key_env=name)


def ask_cap() -> float:
    """Ask how much all calls of a day may cost; 0 is no cap."""
    click.echo("This model costs money. With a cap, calls that would cost more than that are refused.")
    return float(
        click.prompt("Spend cap in USD a day (0: none)", default=DAILY_CAP, value_proc=_read_dollars)
    )


def _read_dollars(text: str | float) -> float:
    try:
        dollars = float(str(text).strip().removeprefix("$"))
    except ValueError:
        dollars = -1.0
    if not 0 <= dollars <= 1_000_000:
        raise click.UsageError("Type a number of dollars, such as 5, or 0 for no cap.")
    return dollars


def ask_kept(candidate: Candidate) -> Candidate:
    """Ask whether to write a key that works and that no variable holds to config.toml."""
    if not candidate.key or candidate.is_kept:
        return candidate
    if candidate.is_foreign:
        click.echo(f"That is the {candidate.where}. Talaria reads no file of another program when it runs.")
    question = f"Write the key into config.toml, readable for you only? (No: you set {candidate.key_env})"
    return msgspec.structs.replace(candidate, is_kept=click.confirm(question, default=False))
