"""Literal keys in the settings of MCP servers: finding them, and moving them to `secrets.env`."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from talaria.cli.mcp_paste import PastedServer
from talaria.core.redaction import password_of

_SECRET_NAME = re.compile(
    r"(?:^|[_\-.\s])(?:api[_-]?key|key|token|secret|passw(?:or)?d|pass|pat|credentials?|auth(?:orization)?|"
    r"cookie|bearer|dsn|database_url|connection_string)s?(?:$|[_\-.\s])|apikey|accesskey",
    re.IGNORECASE,
)
_KNOWN = re.compile(
    r"(?:sk-|sk_|pk_|rk_|ghp_|gho_|ghs_|ghu_|github_pat_|glpat-|xox[abeprs]-|AKIA|ASIA|AIza|ya29\.|eyJ|hf_|"
    r"ntn_|secret_|lin_api_|dop_v1_|npm_|pypi-|SG\.|tvly-|fc-|BSA|gsk_|r8_|sbp_|xai-)[A-Za-z0-9_\-.=]{8,}"
)
_RANDOM = re.compile(r"(?=.*[0-9])(?=.*[a-z])(?=.*[A-Z])[A-Za-z0-9+_=-]{20,}|(?=.*[0-9])[0-9a-f-]{32,}")
_SCHEME = re.compile(r"((?:Bearer|Basic|Token|ApiKey|Api-Key)\s+)(\S.*)", re.IGNORECASE)
_OPTION = re.compile(r"(--?[A-Za-z][\w-]*)=(.*)", re.DOTALL)
_HEADER_LINE = re.compile(r"([A-Za-z][\w-]*)(:\s*)(.+)", re.DOTALL)
_PLACEHOLDER = re.compile(
    r"<[^<>]+>|\[[^\[\]]*(?:key|token)[^\[\]]*\]|(?:.*[^A-Za-z])?(?:your|insert|replace|enter|paste)[-_ ].*|"
    r"\*{3,}|x{4,}|\.{3}|…|changeme|(?:api|access)?[-_ ]?(?:key|token)[-_ ]?here",
    re.IGNORECASE,
)
_NO_NAME = re.compile(r"[^A-Z0-9]+")
_HARMLESS = re.compile(r"\$\{|^$|^(?:true|false|yes|no|on|off|none|null|\d{1,6})$", re.IGNORECASE)


class MovedKeys(msgspec.Struct, frozen=True):
    """A server whose literal keys are references to `secrets.env`, and the keys by their names there."""

    server: PastedServer
    keys: dict[str, str]


def is_placeholder(value: str) -> bool:
    """Return whether a README's text stands where a key belongs."""
    scheme = _SCHEME.fullmatch(value)
    return _PLACEHOLDER.fullmatch((scheme[2] if scheme else value).strip()) is not None


def move_keys(server: PastedServer, known: Mapping[str, str] = {}) -> MovedKeys:
    """Take the literal keys out of variables, headers and arguments. A name that is `known` with another
    value is not used: the key of another server would be replaced, or sent to this one."""
    keys: dict[str, str] = {}

    def moved(place: str, value: str) -> str:
        name = _secret_name(server.name, place)
        number = 1
        while keys.get(name, value) != value or known.get(name, value) != value:
            number += 1
            name = f"{_secret_name(server.name, place)}_{number}"
        keys[name] = value
        return f"${{{name}}}"

    def in_value(place: str, value: str) -> str:
        if "\n" in value or _HARMLESS.search(value) or not looks_secret(place, value):
            return value
        scheme = _SCHEME.fullmatch(value)
        return scheme[1] + moved(place, scheme[2]) if scheme else moved(place, value)

    def in_word(word: str, before: str) -> str:
        if option := _OPTION.fullmatch(word):
            return f"{option[1]}={in_value(option[1].lstrip('-'), option[2])}"
        line = _HEADER_LINE.fullmatch(word)
        if line and "://" not in word and before.lstrip("-").lower() in ("header", "h"):
            return line[1] + line[2] + in_value(line[1], line[3])
        if word.startswith("-"):
            return word
        return in_value(before.lstrip("-") if before.startswith("-") else "", word)

    pairs = zip(server.command[1:], server.command, strict=False)
    changed = msgspec.structs.replace(
        server,
        command=(*server.command[:1], *(in_word(word, before) for word, before in pairs)),
        env={name: in_value(name, value) for name, value in server.env.items()},
        headers={name: in_value(name, value) for name, value in server.headers.items()},
    )
    return MovedKeys(changed, keys)


def looks_secret(place: str, value: str) -> bool:
    """Return whether the value of an option, a variable or a header is probably a key."""
    if is_path_or_plain_url(value):
        return False
    is_named = bool(place) and _SECRET_NAME.search(place) is not None
    words = _SCHEME.fullmatch(value)
    bare = words[2] if words else value
    is_key = _KNOWN.match(bare) or _RANDOM.fullmatch(bare) or password_of(bare)
    return bool(is_key) or (is_named and len(bare) >= 6)


def is_path_or_plain_url(value: str) -> bool:
    return value.startswith(("/", "./", "../", "~", "@")) or ("://" in value and not password_of(value))


def _secret_name(server: str, place: str) -> str:
    prefix, rest = (_NO_NAME.sub("_", text.upper()).strip("_") for text in (server, place or "key"))
    return f"MCP_{rest}" if rest.startswith(f"{prefix}_") else f"MCP_{prefix}_{rest}"
