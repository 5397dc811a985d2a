"""Settings, secrets, MCP servers and people of other programs. A setting that this home has already is not
replaced, and no secret is copied unless a person has agreed to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from talaria.config.edit import edited, set_keys
from talaria.config.home import SECRETS_FILE, Home, home_environ, write_secrets_file
from talaria.config.load import load_text, read_config
from talaria.core.access import Person
from talaria.core.errors import TalariaError
from talaria.core.redaction import ApiAddress
from talaria.core.settings import KeyPath, Parts
from talaria.core.text import clean_line
from talaria.imports.item import ImportItem, ImportKind, ImportState
from talaria.imports.target import FoundSettings, Planned, ServerPlan, Source, SourceSecret, Target
from talaria.models.settings import PRESETS

NOT_CONFIRMED: Final = "Secrets are copied only if you agree: add --secrets."
_NAME: Final = re.compile(r"[^a-z0-9_-]+")
_PERSON_ID: Final = {"slack": re.compile(r"[UW][A-Z0-9]{2,40}")}
_NUMBER: Final = re.compile(r"[0-9]{1,20}")
_SECRETS_OF: Final = {
    "telegram": {"token": "TELEGRAM_BOT_TOKEN"},
    "discord": {"token": "DISCORD_BOT_TOKEN"},
    "slack": {"bot_token": "SLACK_BOT_TOKEN", "app_token": "SLACK_APP_TOKEN"},
}


# -- people -----------------------------------------------------------------------------------------------


async def plan_people(source: Source, target: Target) -> list[Planned]:
    """Return an item for each person who is approved or on an allow list. They are paired here."""
    listing = await target.store.pairings.listing()
    paired = {(each.person.channel, each.person.user_id) for each in listing.paired}
    names: dict[tuple[str, str], str] = {}
    for channel, user, name in source.people():
        names[channel, user] = names.get((channel, user)) or clean_line(name, 60)
    found: list[Planned] = []
    for (channel, user), name in names.items():
        title = name or clean_line(user)
        where = f"{clean_line(channel)}:{clean_line(user)}"
        note = f"They may write to the agent ({where})."
        item = ImportItem(f"person:{where}", ImportKind.PERSON, title, ImportState.PLANNED, note=note)
        if user == "*":
            item = item.skip("It allows everyone. Decide here who may write: see docs/access.md.")
        elif channel not in target.channels:
            item = item.skip(f"There is no channel {clean_line(channel)} here that people are paired on.")
        elif _PERSON_ID.get(channel, _NUMBER).fullmatch(user) is None:
            item = item.skip(
                "It is not a person's id. A name can pass to another person: `talaria pair` the person."
            )
        elif (channel, user) in paired:
            item = item.skip("They are paired already.")
        is_planned = item.state is ImportState.PLANNED
        step = partial(_pair, target, item, Person(channel, user, name)) if is_planned else None
        found.append((item, step))
    return found


async def _pair(target: Target, item: ImportItem, person: Person) -> ImportItem:
    if await target.store.import_person(person) is None:
        return item.skip("They are paired already.")
    return item.done()


# -- settings ---------------------------------------------------------------------------------------------


def plan_settings(source: Source, target: Target, parts: Parts, *, with_secrets: bool) -> Iterator[Planned]:
    """Yield an item for each setting, MCP server and secret, and one for each that is not imported."""
    found = source.settings()
    # A model comes after its provider.
    for path, value in sorted(found.values.items(), key=lambda pair: pair[0] == ("model",)):
        yield _plan_setting(target, parts, found, path, value)
    for name, server in found.servers.items():
        yield _plan_server(target, found, name, server, with_secrets=with_secrets)
    for name, secret in found.secrets.items():
        yield _plan_secret(target, parts, name, secret, with_secrets=with_secrets)
    for name, reason in found.left.items():
        title = clean_line(name)
        item = ImportItem(f"setting:{title}", ImportKind.SETTING, title, ImportState.SKIPPED, reason=reason)
        yield item, None


def _plan_setting(
    target: Target, parts: Parts, found: FoundSettings, path: KeyPath, value: object
) -> Planned:
    key = ".".join(path)
    item = ImportItem(
        f"setting:{key}", ImportKind.SETTING, f"{key} = {_shown(value)}", ImportState.PLANNED, key
    )
    present = _present(target, path)
    # A provider may have got its key since.
    if present == ({**present, **value} if isinstance(present, dict) and isinstance(value, dict) else value):
        return item.skip("It is set already."), None
    if present:
        return item.conflict(f"{key} is set to another value here."), None
    providers = [(each, given) for each, given in found.values.items() if each[0] == "providers"]
    # A model's provider is not written yet.
    needed = providers if path == ("model",) else []
    if (problem := _refusal(target, parts, (*needed, (path, value)))) is not None:
        return item.skip(problem), None
    return item, partial(_set, target, parts, item, path, value)


async def _set(target: Target, parts: Parts, item: ImportItem, path: KeyPath, value: object) -> ImportItem:
    """Set the key, unless config.toml would be broken then: a model needs its provider."""
    if (problem := _refusal(target, parts, ((path, value),))) is not None:
        return item.skip(problem)
    set_keys(Home(target.home).config, path[:-1], {path[-1]: value})
    return item.done()


def _present(target: Target, path: KeyPath) -> object:
    """Return what config.toml has under the key; an empty value if it has nothing."""
    import tomllib  # noqa: PLC0415

    value: Any = tomllib.loads(read_config(Home(target.home).config) or "")
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _refusal(target: Target, parts: Parts, values: tuple[tuple[KeyPath, object], ...]) -> str | None:
    """Return why the settings cannot be written; None if they can."""
    config = Home(target.home).config
    text = read_config(config) or ""
    try:
        for path, value in values:
            text = edited(config, text, path[:-1], {path[-1]: value})
        load_text(target.home, text, {}, parts)
    except TalariaError as error:
        return f"It is not a value for {'.'.join(values[-1][0])} here: {error.user_text}"
    return None


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(_shown(each) for each in list(value.values())[:4])
    if isinstance(value, list):
        return f"{len(value)} values"
    return clean_line(str(ApiAddress(value)) if isinstance(value, str) and "://" in value else str(value), 60)


# -- MCP servers ------------------------------------------------------------------------------------------


def _plan_server(
    target: Target, found: FoundSettings, name: str, server: Mapping[str, Any], *, with_secrets: bool
) -> Planned:
    name = clean_line(name)
    item = ImportItem(f"server:{name}", ImportKind.SERVER, name, ImportState.PLANNED, f"mcp.servers.{name}")
    if _present(target, ("mcp", "servers", name)):
        return item.skip("There is an MCP server with this name already."), None
    planning = partial(target.plan_server, name, server, found.environ)
    try:
        plan = planning()
    except TalariaError as error:
        return item.skip(f"{error.user_text} {error.hint}".strip()), None
    if plan.is_secret and not with_secrets:
        return item.skip(NOT_CONFIRMED), None
    told = "are copied to" if with_secrets else "are not copied: set them in"
    keys = [f"Its keys {told} {SECRETS_FILE} ({', '.join(plan.keys)})."] if plan.keys else []
    item = msgspec.structs.replace(item, note=" ".join((*plan.notes, *keys)))
    return item, partial(_add_server, item, planning, with_secrets=with_secrets)


async def _add_server(
    item: ImportItem, planning: Callable[[], ServerPlan], *, with_secrets: bool
) -> ImportItem:
    """Plan the server again, because config.toml has changed since, and add it."""
    try:
        planning().add(with_secrets)
    except TalariaError as error:
        return item.skip(f"{error.user_text} {error.hint}".strip())
    return item.done()


# -- secrets ----------------------------------------------------------------------------------------------


def _plan_secret(
    target: Target, parts: Parts, name: str, secret: SourceSecret, *, with_secrets: bool
) -> Planned:
    item = ImportItem(f"secret:{name}", ImportKind.SECRET, name, ImportState.PLANNED, SECRETS_FILE)
    known = home_environ(target.home, target.environ)
    is_set = all(_present(target, path) == value for path, value in secret.settings.items())
    if is_set and all(known.get(each) == value for each, value in secret.values.items()):
        return item.skip("It is set already."), None
    pairs = [(_present(target, path), value) for path, value in secret.settings.items()]
    pairs += [(known.get(each), value) for each, value in secret.values.items()]
    if any(present and present != value for present, value in pairs):
        return item.conflict("It is set to another value here."), None
    if any("\n" in value or "\r" in value for value in secret.values.values()):
        return item.skip("Its value has several lines."), None
    if not with_secrets:
        return item.skip(NOT_CONFIRMED), None
    return item, partial(_copy_secret, target, parts, item, secret)


async def _copy_secret(target: Target, parts: Parts, item: ImportItem, secret: SourceSecret) -> ImportItem:
    """Write the values first: a setting that names a variable without a value would stop the gateway."""
    if (problem := _refusal(target, parts, tuple(secret.settings.items()))) is not None:
        return item.skip(problem)
    write_secrets_file(target.home, secret.values)
    for place in {path[:-1] for path in secret.settings}:
        keys = {path[-1]: value for path, value in secret.settings.items() if path[:-1] == place}
        set_keys(Home(target.home).config, place, keys)
    return item.done()


def channel_secrets(values: Mapping[str, str]) -> dict[str, SourceSecret]:
    """Return the secrets of each channel that has all of its secrets, by the names of their variables."""
    found = {}
    for channel, names in _SECRETS_OF.items():
        given = {name: values[name] for name in names.values() if values.get(name)}
        settings: dict[KeyPath, str] = {
            ("channels", channel, f"{key}_env"): name for key, name in names.items()
        }
        if len(given) == len(names):
            found[channel] = SourceSecret(given, settings)
    return found


# -- models -----------------------------------------------------------------------------------------------


class FoundModels:
    """Collects models, and the providers that they need."""

    def __init__(self, found: FoundSettings) -> None:
        self._found = found

    def add(
        self, provider: str, name: str, address: str = "", key: str = "", api: str = ""
    ) -> dict[str, Any] | None:
        """Return a model as `[model]` has it, and add its provider if it is not a known one; None for a
        provider that is not known and has no address."""
        provider = provider.lower()
        preset = PRESETS.get(provider)
        if not name or (preset is None and not address):
            return None
        if str(ApiAddress(address)) != address:
            self._found.left[f"{provider}.base_url"] = "The address contains a secret, so it is not copied."
            return None
        if address and (preset is None or address.rstrip("/") != str(preset.base_url).rstrip("/")):
            provider = _NAME.sub("-", provider).strip("-") or "custom"
            provider = f"{provider}-own" if provider in PRESETS else provider
            self._found.values["providers", provider] = {"base_url": address, **({"api": api} if api else {})}
            preset = None
        if key:
            self.add_key(provider, key)
        return {"provider": provider, "name": name}

    def add_key(self, provider: str, key: str) -> None:
        """Add the key of a provider. A preset names the variable that has it."""
        preset = PRESETS.get(provider)
        variable = preset.api_key_env if preset is not None else ""
        settings: dict[KeyPath, str] = {}
        if not variable:
            variable = re.sub(r"[^A-Z0-9]+", "_", f"{provider}_API_KEY".upper()).lstrip("_0123456789")
            settings = {("providers", provider, "api_key_env"): variable}
        self._found.secrets.setdefault(variable, SourceSecret({variable: key}, settings))
