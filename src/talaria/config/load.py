"""Loading the settings: config.toml, then the environment over it, then every check, in one go."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from talaria.config.decoder import SettingsDecoder, SettingValue, values_of
from talaria.config.home import Home, check_trusted, home_environ, open_mode
from talaria.config.issues import (
    Issue,
    IssueCollector,
    Override,
    apply_overrides,
    dotted,
    quoted,
    read_overrides,
)
from talaria.config.settings import Settings, settings_type
from talaria.core.errors import ConfigError
from talaria.core.problems import Action, Do, Severity
from talaria.core.redaction import ApiAddress, Secret, password_of
from talaria.core.settings import KeyPath, Mark, Parts, holds_secret, template_variables
from talaria.core.text import did_you_mean, nearest
from talaria.models.known import Prices
from talaria.models.local.weights import MANIFEST
from talaria.models.settings import LOCAL, PRESETS, SCRIPTED

FILE_NAME = "config.toml"
_TWICE = re.compile(r"Cannot (?:declare|overwrite|mutate immutable namespace) (\('.*'\,?\))(?: twice)?")
_PLACE = re.compile(r"(?P<what>.*?) \(at (?P<where>.*)\)", re.DOTALL)


class Loaded(msgspec.Struct, frozen=True):
    """Settings that a gateway can start with. `issues` are warnings only. `path` is None without a file;
    `secrets` are for the redactor only."""

    settings: Settings
    issues: tuple[Issue, ...]
    path: Path | None
    secrets: frozenset[Secret] = frozenset()

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(issue.text for issue in self.issues)

    def __repr__(self) -> str:
        return f"Loaded(path={self.path!r}, {len(self.issues)} warnings, {len(self.secrets)} secrets)"


def load(home: Path, environ: Mapping[str, str], parts: Parts) -> Loaded:
    """Read the settings of a gateway with these parts. Changes nothing on the disk.

    Raises `ConfigError` with one line for each problem of the file and of the environment, all at once, and
    `UntrustedHome` if another user controls the home.
    """
    check_trusted(Home(home))
    return load_text(home, read_config(home / FILE_NAME), environ, parts)


def load_text(home: Path, text: str | None, environ: Mapping[str, str], parts: Parts) -> Loaded:
    """Return the settings that the home would have with this text as its file. Raises `ConfigError`."""
    path, kind = home / FILE_NAME, settings_type(parts)
    environ = home_environ(home, environ)
    tree = _parse(path, text) if text else {}
    overrides = read_overrides(environ, tree)
    issues = IssueCollector(path, text or "", overrides)
    applied = apply_overrides(tree, overrides)
    settings = SettingsDecoder(kind, issues, environ, parts).decode(kind, applied)
    _check_model(settings, applied, issues)
    _check_providers(settings, issues)
    _check_prices(settings, issues)
    _check_references(settings, issues)
    issues.raise_problems(settings)
    warnings = (*issues.warnings, *_open_secrets(path, settings, overrides))
    presets = {preset.api_key_env for preset in PRESETS.values()}
    keys = {Secret(name, environ[name].strip()) for name in presets if environ.get(name, "").strip()}
    stored = {Secret(name, value) for name, value in environ.stored().items()}
    secrets = read_secrets(settings, home, environ) | keys | stored
    return Loaded(settings, warnings, path if text is not None else None, secrets)


def read_config(path: Path) -> str | None:
    """Return the text of the file, or None without one. Raises `ConfigError`."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"{path.name} line {line}: not valid UTF-8.", f"Save {path} in the encoding UTF-8."
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror or error}.",
            "Make it a file that this user can read, or remove it to run on defaults.",
        ) from error


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        found = _PLACE.fullmatch(str(error))
        where, what = (found["where"], found["what"]) if found else ("", str(error))
        what = _TWICE.sub(lambda match: f"{dotted(ast.literal_eval(match[1]))} stands there twice", what)
        if where == "end of document":
            where = f"line {text.rstrip().count(chr(10)) + 1}, at the end of the file"
        raise ConfigError(
            f"{path.name} {where}: not valid TOML: {what[:1].lower()}{what[1:]}.".replace(" :", ":"),
            f'Correct that line in {path}; texts stand in quotes (name = "text"), each key stands once.',
        ) from error


# -- checks of several tables against each other


def _check_model(settings: Settings, tree: Mapping[str, Any], issues: IssueCollector) -> None:
    """Check that the model and the providers fit. A provider that was refused counts as known here, so that
    one mistake is reported once."""
    model, providers = settings.model, tree.get("providers", {})
    configured = providers if isinstance(providers, dict) else {}
    known = list(dict.fromkeys((*configured, *PRESETS, LOCAL)))
    if model.provider and model.provider not in known:
        near = nearest(model.provider, known)
        names = ", ".join(quoted(name) for name in known)
        expected = f"a table under [providers] or a known provider ({names})"
        issues.wrong_value(("model", "provider"), model.provider, expected, near)
    for fallback in model.fallback:
        if fallback.provider not in known:
            hint = did_you_mean(fallback.provider, known, f"Add [providers.{fallback.provider}].")
            text = f"model.fallback names {quoted(fallback.provider)}, which is not a provider, and skips it."
            issues.warn(("model", "fallback"), f"{text} {hint}")
    is_built_in = model.provider == LOCAL and LOCAL not in configured
    if is_built_in and model.name and model.name not in (weights.name for weights in MANIFEST):
        names = ", ".join(quoted(weights.name) for weights in MANIFEST)
        issues.wrong_value(("model", "name"), model.name, f"a built-in model ({names})")
    needs_name = model.provider not in ("", SCRIPTED) and not is_built_in
    if needs_name and not model.name:
        issues.missing(("model",), "name", 'the model\'s name, such as "gpt-5"', model.provider)
    is_alone = model.name and not model.provider and model.name.partition("/")[0] not in known
    if is_alone and not issues.is_misspelt(("model", "provider")):
        text = "model.name needs model.provider; without either, the built-in model answers."
        issues.warn(("model", "name"), text)


def _check_providers(settings: Settings, issues: IssueCollector) -> None:
    for name, provider in settings.providers.items():
        if not provider.base_url and name not in PRESETS:
            expected = 'an address such as "https://openrouter.ai/api/v1"'
            issues.missing(("providers", name), "base_url", expected, name)


def _check_prices(settings: Settings, issues: IssueCollector) -> None:
    for name, price in settings.prices.items():
        for key in ("input", "output"):
            if getattr(price, key) is None:
                issues.missing(("prices", name), key, "dollars for a million tokens, such as 2.5, or 0")
    model, budgets = settings.model, settings.budgets
    if budgets.caps and model.name and Prices(settings.prices).find(model.provider, model.name) is None:
        table = dotted(("prices", f"{model.provider}/{model.name}"))
        text = f"budgets caps spending, so the model is refused until [{table}] is set."
        issues.warn(("budgets",), text, action=Action(Do.SET_KEY, table))


def _check_references(settings: Settings, issues: IssueCollector) -> None:
    is_own = own_secrets(settings)
    for path, value, marks in values_of(settings):
        for variable in template_variables(str(value)) if Mark.TEMPLATE in marks else ():
            if is_own(variable):
                text = f"{dotted(path)} names {variable}, a secret of the gateway, which no MCP server gets."
                issues.warn(path, f"{text} Export a second variable, and name that one.")


# -- secrets


def _open_secrets(path: Path, settings: Settings, overrides: Mapping[KeyPath, Override]) -> Iterator[Issue]:
    """Warn if the file holds a secret and other users can read it."""
    if any(each not in overrides for each in held_secrets(settings)) and (mode := open_mode(path)):
        text = f"{path.name} holds a secret and is open to other users (mode {mode})."
        text += f" Close it with: chmod 600 {path}"
        yield Issue(text, "", Action(Do.CLOSE_FILE, str(path)), Severity.WARN, "config", bare=text)


def read_secrets(settings: msgspec.Struct, home: Path, environ: Mapping[str, str]) -> frozenset[Secret]:
    """Return every secret that the settings, or a table of them, hold or name. Each has the name of its
    variable, or else of its key."""
    found = set()
    for path, value, marks in values_of(settings):
        if not isinstance(value, str):
            continue
        name = dotted(path)
        if not marks.isdisjoint({Mark.COMMAND_VALUE, Mark.TEMPLATE}):
            found |= {Secret(each, environ.get(each, "")) for each in template_variables(value)}
            if holds_secret(value, marks):
                found.add(Secret(path[-1], value))
        elif Mark.SECRET in marks:
            found.add(Secret(name, value))
        elif Mark.SECRET_VARIABLE in marks:
            found.add(Secret(value, environ.get(value, "").strip()))
        elif Mark.SECRET_FILE in marks:
            with suppress(OSError, UnicodeDecodeError):  # the part says so when it is opened
                text = (home / value).read_text(encoding="utf-8").strip() if value else ""
                found.add(Secret(name, text))
        elif isinstance(value, ApiAddress):
            found |= {Secret(name, secret) for secret in value.secrets}
        else:
            found.add(Secret(name, password_of(value)))
    return frozenset(secret for secret in found if secret.value)


def held_secrets(settings: Settings) -> list[KeyPath]:
    """Return the keys that hold a secret."""
    return [each.path for each in values_of(settings) if _holds_secret(each)]


def _holds_secret(each: SettingValue) -> bool:
    if isinstance(each.value, ApiAddress):
        return bool(each.value.secrets)
    if holds_secret(each.value, each.marks):
        return True
    return isinstance(each.value, str) and bool(password_of(each.value))


def named_variables(settings: Settings) -> list[str]:
    """Return the environment variables that the settings name for secrets."""
    marks = {Mark.COMMAND_VALUE, Mark.TEMPLATE}
    values = [str(each.value) for each in values_of(settings) if not each.marks.isdisjoint(marks)]
    named = (name for value in values for name in template_variables(value))
    return [*_marked(settings, Mark.SECRET_VARIABLE), *named]


def own_secrets(settings: Settings) -> Callable[[str], bool]:
    """Return a function that tells whether a variable holds one of the gateway's own secrets, which no MCP
    server gets: every `TALARIA_…` variable, the keys of known providers, the password of PostgreSQL, and the
    variables that a setting `…_env` names, also one of a plug-in."""
    named = (each.value for each in values_of(settings) if each.path[-1].endswith("_env"))
    marked = _marked(settings, Mark.SECRET_VARIABLE)
    own = {"PGPASSWORD", *marked, *(preset.api_key_env for preset in PRESETS.values()), *map(str, named)}
    return lambda name: name in own or name.upper().startswith("TALARIA_")


def secret_files(settings: Settings) -> list[str]:
    """Return the files that the settings name for secrets, relative to the home."""
    return _marked(settings, Mark.SECRET_FILE)


def _marked(settings: Settings, mark: Mark) -> list[str]:
    return [str(each.value) for each in values_of(settings) if mark in each.marks and each.value]
