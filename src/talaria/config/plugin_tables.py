"""The tables of plug-ins, `[plugins.NAME]`: any keys, which a plug-in reads as a struct of its own.

Each wrong table concerns its plug-in only, so the gateway's own settings are good whatever is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec

from talaria.config.decoder import SettingsDecoder
from talaria.config.issues import BadConfig, IssueCollector, dotted
from talaria.core.errors import ConfigError
from talaria.core.setting_marks import Check, KeyPath, matching

S = TypeVar("S", bound=msgspec.Struct)

PLUGIN_TABLES: Final[KeyPath] = ("plugins",)
ENABLED: Final = "enabled"  # in every table; false leaves the plug-in out
PLUGIN_NAME: Final = "[a-z][a-z0-9_-]{0,39}"
PluginName = Annotated[
    str,
    Check(matching(PLUGIN_NAME, "1 to 40 small letters, digits, underscores or dashes, first a letter")),
]


def read_table(kind: type[S], table: Mapping[str, Any]) -> S:
    """Return the table as the plug-in's struct. A wrong value counts as its default."""
    return _decode(kind, table, (), {})[0]


def check_table(
    name: str,
    kind: type[S],
    table: Mapping[str, Any],
    environ: Mapping[str, str],
    warn: Callable[[str], None],
) -> S:
    """Return the table as the plug-in's struct. Raises `ConfigError` for a wrong value. An unknown key, or a
    variable that is not set, is a warning."""
    path = (*PLUGIN_TABLES, name)
    try:
        settings, issues = _decode(kind, table, path, environ)
    except TypeError as error:
        raise ConfigError(
            f"The settings of the plug-in have a field without a default ({error}).",
            "Give each field of the struct a default.",
        ) from error
    try:
        issues.raise_problems()
    except BadConfig as error:
        texts = " ".join(issue.bare for issue in error.issues)  # the line is not known here
        raise ConfigError(texts, f"Correct [{dotted(path)}] in config.toml.") from None
    for issue in issues.warnings:
        warn(issue.bare)
    return settings


def _decode(
    kind: type[S], table: Mapping[str, Any], path: KeyPath, environ: Mapping[str, str]
) -> tuple[S, IssueCollector]:
    issues = IssueCollector(Path("config.toml"), "", {})
    own = {key: value for key, value in table.items() if key != ENABLED}
    return SettingsDecoder(kind, issues, environ, ()).decode(kind, own, path), issues
