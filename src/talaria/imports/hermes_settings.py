"""Settings of hermes-agent: the model, its fallbacks and endpoints, the persona, and people who are allowed.

Keys and tokens are listed by name and never copied. A setting that this home has already is not replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from talaria.config.edit import set_keys
from talaria.config.home import Home
from talaria.config.load import load_text, read_config
from talaria.core.access import Person
from talaria.core.errors import TalariaError
from talaria.core.settings import KeyPath, Parts
from talaria.core.text import clean_line
from talaria.imports.hermes_home import HermesHome, table
from talaria.imports.item import ImportItem, ImportKind, ImportState
from talaria.imports.target import Planned, Target
from talaria.jobs.schedules import is_zone
from talaria.models.settings import PRESETS

_SECRET: Final = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_NAME: Final = re.compile(r"[^a-z0-9_-]+")
_PLATFORMS: Final = ("telegram", "discord", "slack", "whatsapp", "signal", "matrix", "email")
_DEFAULT_SOUL: Final = "You are Hermes Agent, an intelligent AI assistant created by Nous Research"
_NO_SECRETS: Final = "Secrets are not copied. Set it where the gateway runs, or use `talaria connect`."
_READ: Final = {
    "model",
    "fallback_model",
    "fallback_providers",
    "custom_providers",
    "timezone",
    "mcp_servers",
}


async def plan_people(home: HermesHome, target: Target, channels: frozenset[str]) -> list[Planned]:
    """Return an item for each person who is approved or on an allow list. They are paired here."""
    paired = {
        (each.person.channel, each.person.user_id) for each in (await target.store.pairings.listing()).paired
    }
    found: list[Planned] = []
    for channel, user, name in dict.fromkeys(_people(home)):
        item = ImportItem(
            f"person:{channel}:{clean_line(user)}",
            ImportKind.PERSON,
            clean_line(name) or user,
            ImportState.PLANNED,
        )
        if user == "*":
            found.append(
                (item.skip("It allows everyone. Decide here who may write: see docs/access.md."), None)
            )
        elif channel not in channels:
            found.append((item.skip(f"There is no channel {channel} here that people are paired on."), None))
        elif (channel, user) in paired:
            found.append((item.skip("They are paired already."), None))
        else:
            found.append((item, partial(_pair, target, item, Person(channel, user, name))))
    return found


async def _pair(target: Target, item: ImportItem, person: Person) -> ImportItem:
    if await target.store.import_person(person) is None:
        return item.skip("They are paired already.")
    return item.done()


def _people(home: HermesHome) -> Iterator[tuple[str, str, str]]:
    """Yield the channel, the id and the name of each person. Pending requests are not read."""
    names: dict[tuple[str, str], str] = {}
    for folder in ("pairing", "platforms/pairing"):
        for platform in _PLATFORMS:
            for user, known in table(home.json(f"{folder}/{platform}-approved.json")).items():
                names[platform, user] = clean_line(str(table(known).get("user_name") or ""), 60)
    environ = home.environ()
    for platform in _PLATFORMS:
        for user in environ.get(f"{platform.upper()}_ALLOWED_USERS", "").split(","):
            if user.strip():
                names.setdefault((platform, user.strip()), "")
    yield from ((platform, user, name) for (platform, user), name in names.items())


# -- settings ---------------------------------------------------------------------------------------------


def plan_settings(home: HermesHome, target: Target, parts: Parts) -> list[Planned]:
    """Return an item for each setting that is set here, and one for each that is not imported."""
    config = home.config()
    found: list[Planned] = []
    for path, value in _wanted(home, config).items():
        item = ImportItem(
            f"setting:{'.'.join(path)}",
            ImportKind.SETTING,
            f"{'.'.join(path)} = {_shown(value)}",
            ImportState.PLANNED,
            ".".join(path),
        )
        present = _present(target, path)
        if present == value:
            found.append((item.skip("It is set already."), None))
        elif present:
            found.append((item.conflict(f"{item.target} is set to another value here."), None))
        elif path != ("model",) and (problem := _refusal(target, parts, path, value)) is not None:
            found.append((item.skip(problem), None))
        else:
            found.append((item, partial(_set, target, parts, item, path, value)))
    return found + [(item, None) for item in _left(home, config)]


async def _set(target: Target, parts: Parts, item: ImportItem, path: KeyPath, value: object) -> ImportItem:
    """Set the key, unless config.toml would be broken then: a model needs its provider."""
    if (problem := _refusal(target, parts, path, value)) is not None:
        return item.skip(problem)
    set_keys(Home(target.home).config, path[:-1], {path[-1]: value})
    return item.done()


def _wanted(home: HermesHome, config: Mapping[str, Any]) -> dict[KeyPath, Any]:
    """Return the settings that hermes-agent has, by their keys here."""
    found: dict[KeyPath, Any] = {}
    providers: dict[str, dict[str, str]] = {}
    model = config.get("model")
    given = {"default": model} if isinstance(model, str) else table(model)
    main = _model(given, given.get("default") or given.get("model"), providers)
    if main is not None:
        found["model",] = main
    known = config.get("fallback_providers") or config.get("fallback_model") or []
    fallbacks = [
        _model(table(each), table(each).get("model"), providers)
        for each in (known if isinstance(known, list) else [known])
    ]
    if main is not None and (others := [each for each in fallbacks if each is not None]):
        main["fallback"] = others
    found |= {("providers", name): each for name, each in providers.items()}
    if is_zone(zone := str(config.get("timezone") or "")):
        found["agent", "timezone"] = zone
    texts = [(home.text(name) or "").strip() for name in ("SOUL.md", "AGENTS.md")]
    if texts := [text for text in texts if text and not text.startswith(_DEFAULT_SOUL)]:
        found["agent", "prompt"] = "\n\n".join(texts).replace("\0", "\ufffd")
    return dict(sorted(found.items(), key=lambda pair: pair[0] == ("model",)))  # after its provider


def _model(
    given: Mapping[str, Any], name: object, providers: dict[str, dict[str, str]]
) -> dict[str, Any] | None:
    """Return a model as `[model]` has it, and add its endpoint to `providers` if it is not a known one."""
    provider, address = str(given.get("provider") or "").lower(), str(given.get("base_url") or "")
    if not name:
        return None
    if address or provider not in PRESETS:
        if not address:
            return None
        provider = _NAME.sub("-", provider).strip("-") or "custom"
        if provider in PRESETS:
            provider = f"{provider}-own"
        providers[provider] = {"base_url": address}
    return {"provider": provider, "name": str(name)}


def _present(target: Target, path: KeyPath) -> object:
    """Return what config.toml has under the key; an empty value if it has nothing."""
    import tomllib  # noqa: PLC0415

    value: Any = tomllib.loads(read_config(Home(target.home).config) or "")
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _refusal(target: Target, parts: Parts, path: KeyPath, value: object) -> str | None:
    """Return why the setting cannot be written; None if it can."""
    from talaria.config.edit import edited  # noqa: PLC0415

    config = Home(target.home).config
    try:
        text = edited(config, read_config(config) or "", path[:-1], {path[-1]: value})
        load_text(target.home, text, {}, parts)
    except TalariaError as error:
        return f"It is not a value for {'.'.join(path)} here: {error.user_text}"
    return None


def _left(home: HermesHome, config: Mapping[str, Any]) -> Iterator[ImportItem]:
    """Yield the settings, servers and secrets that are not imported."""
    for name in table(config.get("mcp_servers")):
        reason = "Add it with `talaria mcp add`, which checks its keys and what it may reach."
        yield _skipped(f"mcp_servers.{name}", reason)
    model = table(config.get("model"))
    if config.get("model") and _model(model or {}, model.get("default") or config.get("model"), {}) is None:
        yield _skipped("model", "Its provider is not known here. Choose one with `talaria setup`.")
    if (home.text("SOUL.md") or "").strip().startswith(_DEFAULT_SOUL):
        yield _skipped("SOUL.md", "It is the text that hermes-agent brings.")
    for name in ("model", "custom_providers", "fallback_providers", "fallback_model"):
        entries = config.get(name)
        if any(table(each).get("api_key") for each in (entries if isinstance(entries, list) else [entries])):
            yield _skipped(f"{name}.api_key", _NO_SECRETS)
    for name in config:
        if name not in _READ and not str(name).startswith("_"):
            yield _skipped(str(name), "It has no counterpart here, or its default is right.")
    for name in home.environ():
        if name.endswith("_ALLOWED_USERS"):
            continue
        is_secret = _SECRET.search(name) is not None
        yield _skipped(f".env.{name}", _NO_SECRETS if is_secret else "Settings in .env are not imported.")


def _skipped(name: str, reason: str) -> ImportItem:
    name = clean_line(name)
    return ImportItem(f"setting:{name}", ImportKind.SETTING, name, ImportState.SKIPPED, reason=reason)


def _shown(value: object) -> str:
    return clean_line(", ".join(map(str, value.values())) if isinstance(value, dict) else str(value), 60)
