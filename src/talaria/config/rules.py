"""Which values may stand where, beyond their type: each rule answers what it expected, or None.

Plain ranges stand as `msgspec.Meta` in the packages' own settings; here is what needs more than that.
"""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from talaria.config.positions import KeyPath
from talaria.config.report import nearest
from talaria.core.units import DURATION_FORMS, parse_duration
from talaria.tools.settings import FAMILIES
from talaria.turns.settings import FOREVER

Rule = Callable[[Any], str | None]


def known_zone(name: str) -> str | None:
    """Empty is the machine's."""
    if not name:
        return None
    try:
        zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        zones = zoneinfo.available_timezones()
        if not zones:
            return "an empty text, because this machine has no time zone database (install tzdata)"
        by_small = {zone.lower(): zone for zone in zones}
        near = nearest(name, by_small)
        return 'a time zone such as "Europe/Berlin"' + (f" (did you mean {by_small[near]}?)" if near else "")
    return None


def web_address(url: str) -> str | None:
    """The root of a provider's API."""
    expected = 'an address such as "https://openrouter.ai/api/v1"'
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return expected
    return None if is_usable and not re.search(r"\s", url) else expected


def public_address(url: str) -> str | None:
    """Where a platform calls us; empty is none."""
    if not url or (web_address(url) is None and urlsplit(url).path.endswith("/hooks/telegram")):
        return None
    return 'an address such as "https://talaria.example.org/hooks/telegram"'


def matching(pattern: str, expected: str) -> Rule:
    whole = re.compile(pattern)
    return lambda text: None if whole.fullmatch(text) else expected


def reachable_hosts(hosts: Sequence[str]) -> str | None:
    host_port = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")
    if all(host_port.fullmatch(host) and int(host.rpartition(":")[2]) <= 65_535 for host in hosts):
        return None
    return 'texts of the form "name:port", such as "talaria.example.org:443"'


def known_families(families: Sequence[str]) -> str | None:
    if all(family in FAMILIES for family in families):
        return None
    return "names out of " + ", ".join(f'"{family}"' for family in FAMILIES)


def time_or_forever(text: str) -> str | None:
    if text == FOREVER:
        return None
    try:
        return None if parse_duration(text) > timedelta() else f'"forever" or {DURATION_FORMS}, above zero'
    except ValueError:
        return f'"forever" or {DURATION_FORMS}'


# Of a provider or an alias: it is written in chats and in the names of variables.
short_name = matching("[A-Za-z0-9._-]{1,64}", "1 to 64 letters, digits, dots, underscores or dashes")
variable_name = matching(
    "([A-Za-z_][A-Za-z0-9_]*)?",
    "the name of a variable of the environment, such as OPENROUTER_API_KEY, not its value",
)
provider_and_model = matching("(?s:[^/]+/.+)", 'a provider and a model, such as "openai/gpt-5" or "mine/*"')

VALUES: dict[KeyPath, Rule] = {
    ("agent", "timezone"): known_zone,
    ("aliases", "*"): matching(r"(?s:.*\S.*)", "some text"),
    ("providers", "*", "base_url"): web_address,
    ("providers", "*", "api_key_env"): variable_name,
    ("http", "host"): matching(
        "[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+", 'a host name or address such as "127.0.0.1", without a port'
    ),
    ("http", "hosts"): reachable_hosts,
    ("http", "token_env"): variable_name,
    ("store", "url"): matching(
        "(?s:(sqlite:///.+)?)", 'an empty text for talaria.db in the home, or "sqlite:///PATH"'
    ),
    ("retention", "ended_sessions"): time_or_forever,
    ("channels", "telegram", "api_url"): web_address,
    ("channels", "telegram", "token_env"): variable_name,
    ("channels", "telegram", "webhook_url"): public_address,
    ("tools", "enabled"): known_families,
}
NAMES: dict[KeyPath, Rule] = {
    ("aliases",): short_name,
    ("providers",): short_name,
    ("prices",): provider_and_model,
    ("models",): provider_and_model,
}


def broken(path: KeyPath, value: object) -> str | None:
    """What the rule for `path` expected, if there is one and `value` breaks it."""
    rule = VALUES.get(path)
    if rule is None and len(path) > 1:
        rule = VALUES.get((path[0], "*", *path[2:]))
    return rule(value) if rule else None
