"""Loading the settings: config.toml, then the environment over it, then every check, in one go."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from talaria.channels.telegram.settings import find_token, webhook_secret
from talaria.config.environment import graft, read_overrides
from talaria.config.home import open_mode
from talaria.config.later import set_aside
from talaria.config.report import Fault, Remark, Report, dotted, nearest, quoted
from talaria.config.settings import Settings
from talaria.config.shape import Shaper
from talaria.core.errors import ConfigError
from talaria.models.local.manifest import MANIFEST
from talaria.models.presets import LOCAL, PRESETS, SCRIPTED
from talaria.models.prices import Prices

FILE_NAME = "config.toml"
_TWICE = re.compile(r"Cannot (?:declare|overwrite|mutate immutable namespace) (\('.*'\,?\))(?: twice)?")
_PLACE = re.compile(r"(?P<what>.*?) \(at (?P<where>.*)\)", re.DOTALL)


class Loaded(msgspec.Struct, frozen=True):
    """Settings that can be run. `path` is None without a file; `secrets` are for the redactor only."""

    settings: Settings
    remarks: tuple[Remark, ...]
    path: Path | None
    secrets: frozenset[str] = frozenset()

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(remark.text for remark in self.remarks)

    def __repr__(self) -> str:
        return f"Loaded(path={self.path!r}, {len(self.warnings)} warnings, {len(self.secrets)} secrets)"


def load(home: Path, environ: Mapping[str, str]) -> Loaded:
    """Read the settings of the home. Changes nothing on the disk.

    Raises `ConfigError` with one line per problem: the file's, the environment's, all of them at once.
    """
    return load_text(home, read_config(home / FILE_NAME), environ)


def load_text(home: Path, text: str | None, environ: Mapping[str, str]) -> Loaded:
    """The settings that the home would have with this text as its file. Raises `ConfigError`."""
    path = home / FILE_NAME
    tree = _parse(path, text) if text else {}
    overrides = read_overrides(environ, tree)
    report = Report(path, text or "", overrides)
    grafted = graft(tree, overrides)
    set_aside(grafted, report)
    settings = Shaper(report, Settings).build(Settings, grafted)
    _check_model(settings, grafted, report)
    _check_providers(settings, report, environ)
    _check_prices(settings, report)
    _check_telegram(settings, report, environ)
    report.raise_problems(settings)
    remarks = (*report.warnings, *_open_secrets(path, tree))
    return Loaded(settings, remarks, path if text is not None else None, _secrets(settings, home, environ))


def read_config(path: Path) -> str | None:
    """None without a file. Raises `ConfigError`."""
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


def _check_model(settings: Settings, tree: Mapping[str, Any], report: Report) -> None:
    """The model's parts fit together. Says nothing about a part that has been reported already."""
    model, providers = settings.model, tree.get("providers", {})
    configured = providers if isinstance(providers, dict) else {}
    known = list(dict.fromkeys((*configured, *PRESETS, LOCAL)))
    if model.provider and model.provider not in known:
        near = nearest(model.provider, known)
        names = ", ".join(quoted(name) for name in known)
        expected = f"a table under [providers] or a known provider ({names})"
        hint = f" (did you mean {near}?)" if near else ""
        report.wrong(("model", "provider"), model.provider, expected + hint)
    for fallback in model.fallback:
        if fallback.provider not in known:
            near = nearest(fallback.provider, known)
            meant = f" Did you mean {near}?" if near else f" Add [providers.{fallback.provider}]."
            text = f"model.fallback names {quoted(fallback.provider)}, which is no provider, and skips it."
            report.warn(("model", "fallback"), text + meant)
    is_built_in = model.provider == LOCAL and LOCAL not in configured
    if is_built_in and model.name and model.name not in (weights.name for weights in MANIFEST):
        names = ", ".join(quoted(weights.name) for weights in MANIFEST)
        report.wrong(("model", "name"), model.name, f"a built-in model ({names})")
    needs_name = model.provider not in ("", SCRIPTED) and not is_built_in
    if needs_name and not model.name:
        report.missing(("model",), "name", 'the model\'s name, such as "gpt-5"', model.provider)
    if model.name and not model.provider:
        report.warn(("model", "name"), "model.name has no effect without model.provider.")


def _check_providers(settings: Settings, report: Report, environ: Mapping[str, str]) -> None:
    for name, provider in settings.providers.items():
        path = ("providers", name)
        if not provider.base_url and name not in PRESETS:
            report.missing(path, "base_url", 'an address such as "https://openrouter.ai/api/v1"')
        if provider.api_key_env and not provider.api_key and not environ.get(provider.api_key_env):
            report.empty((*path, "api_key_env"), provider.api_key_env)


def _check_telegram(settings: Settings, report: Report, environ: Mapping[str, str]) -> None:
    telegram, path = settings.channels.telegram, ("channels", "telegram")
    if telegram.mode == "webhook" and not telegram.webhook_url:
        report.problem(
            (*path, "mode"),
            'channels.telegram.mode is "webhook": expected channels.telegram.webhook_url beside it.',
        )
    variable = telegram.token_env
    if variable and not (telegram.token or telegram.token_file or environ.get(variable)):
        report.empty((*path, "token_env"), variable)


def _check_prices(settings: Settings, report: Report) -> None:
    for name, price in settings.prices.items():
        for key in ("input", "output"):
            if getattr(price, key) is None:
                report.missing(("prices", name), key, "dollars for a million tokens, such as 2.5, or 0")
    model, budgets = settings.model, settings.budgets
    is_capped = budgets.per_day_usd or budgets.per_session_usd or budgets.per_user_daily_usd
    if is_capped and model.name and Prices(settings.prices).find(model.provider, model.name) is None:
        table = dotted(("prices", f"{model.provider}/{model.name}"))
        text = f"budgets caps spending, so the model is refused until [{table}] is set."
        report.warn(("budgets",), text, table, Fault.NO_PRICE)


def _open_secrets(path: Path, tree: Mapping[str, Any]) -> Iterable[Remark]:
    """A file that holds a key is nobody else's to read."""
    providers, channels = tree.get("providers"), tree.get("channels")
    tables = [*providers.values()] if isinstance(providers, dict) else []
    tables += channels.values() if isinstance(channels, dict) else ()
    if not any(isinstance(table, dict) and (table.get("api_key") or table.get("token")) for table in tables):
        return
    if mode := open_mode(path):
        text = f"{path.name} holds a secret and is open to other users (mode {mode})."
        yield Remark(0, f"{text} Close it with: chmod 600 {path}", (), fault=Fault.OPEN)


def _secrets(settings: Settings, home: Path, environ: Mapping[str, str]) -> frozenset[str]:
    """Every secret that the settings hold or name, and those that known providers would use."""
    found = set()
    for provider in (*settings.providers.values(), *PRESETS.values()):
        found.add(provider.api_key)
        found.add(environ.get(provider.api_key_env, ""))
        found.add(urlsplit(provider.base_url).password or "")
    if settings.channels.telegram.is_on:
        with suppress(ConfigError):  # said where the channel is opened
            token = find_token(settings.channels.telegram, home, environ)
            found |= {token, webhook_secret(token)}
    return frozenset(found - {""})
