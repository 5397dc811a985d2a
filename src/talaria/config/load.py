"""Loading the settings: config.toml, then the environment over it, then every check, in one go."""

from __future__ import annotations

import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from talaria.config.environment import graft, read_overrides
from talaria.config.later import set_aside
from talaria.config.report import Report, dotted, nearest, quoted
from talaria.config.settings import Settings
from talaria.config.shape import Shaper
from talaria.core.errors import ConfigError
from talaria.models.presets import PRESETS, SCRIPTED

FILE_NAME = "config.toml"
_PLACE = re.compile(r"(?P<what>.*?) \(at (?P<where>.*)\)", re.DOTALL)


class Loaded(msgspec.Struct, frozen=True):
    """Settings that can be run. `path` is None without a file; `secrets` are for the redactor only."""

    settings: Settings
    warnings: tuple[str, ...]
    path: Path | None
    secrets: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"Loaded(path={self.path!r}, {len(self.warnings)} warnings, {len(self.secrets)} secrets)"


def load(home: Path, environ: Mapping[str, str]) -> Loaded:
    """Read the settings of the home. Changes nothing on the disk.

    Raises `ConfigError` with one line per problem: the file's, the environment's, all of them at once.
    """
    path = home / FILE_NAME
    text = _read(path)
    tree = _parse(path, text) if text else {}
    overrides = read_overrides(environ, tree)
    report = Report(path, text or "", overrides)
    grafted = graft(tree, overrides)
    set_aside(grafted, report)
    settings = Shaper(report, Settings).build(Settings, grafted)
    _check_model(settings, grafted, report)
    _check_providers(settings, report, environ)
    report.raise_problems()
    warnings = (*report.warnings, *_open_secrets(path, tree))
    return Loaded(settings, warnings, path if text is not None else None, _secrets(settings, environ))


def _read(path: Path) -> str | None:
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
    known = [*configured, *(name for name in PRESETS if name not in configured)]
    if model.provider and model.provider not in known:
        near = nearest(model.provider, known)
        names = ", ".join(quoted(name) for name in known)
        expected = f"a table under [providers] or a known provider ({names})"
        hint = f" (did you mean {near}?)" if near else ""
        report.wrong(("model", "provider"), model.provider, expected + hint)
    needs_name = model.provider not in ("", SCRIPTED)
    if needs_name and not model.name and not report.has_problem(("model", "name")):
        report.problem(("model",), 'model.name is missing: expected the model\'s name, such as "gpt-5".')
    if model.name and not model.provider:
        report.warn(("model", "name"), "model.name has no effect without model.provider.")


def _check_providers(settings: Settings, report: Report, environ: Mapping[str, str]) -> None:
    for name, provider in settings.providers.items():
        path = ("providers", name)
        if not provider.base_url and name not in PRESETS and not report.has_problem((*path, "base_url")):
            report.problem(
                path,
                f'{dotted(path)}.base_url is missing: expected an address such as "https://openrouter.ai/api/v1".',
            )
        if provider.api_key_env and not provider.api_key and not environ.get(provider.api_key_env):
            report.warn(
                (*path, "api_key_env"),
                f"{dotted(path)}.api_key_env names {provider.api_key_env}, which is not set.",
            )


def _open_secrets(path: Path, tree: Mapping[str, Any]) -> Iterable[str]:
    """A file that holds a key is nobody else's to read."""
    providers = tree.get("providers")
    tables = providers.values() if isinstance(providers, dict) else ()
    if not any(isinstance(table, dict) and table.get("api_key") for table in tables):
        return
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield (
            f"{path.name} holds a secret and is open to other users (mode {mode:04o}). "
            f"Close it with: chmod 600 {path}"
        )


def _secrets(settings: Settings, environ: Mapping[str, str]) -> frozenset[str]:
    """Every secret that the settings hold or name, and those that known providers would use."""
    found = set()
    for provider in (*settings.providers.values(), *PRESETS.values()):
        found.add(provider.api_key)
        found.add(environ.get(provider.api_key_env, ""))
        found.add(urlsplit(provider.base_url).password or "")
    return frozenset(found - {""})
