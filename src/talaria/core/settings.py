"""Declaring settings and parts of the gateway: marks, checks, and the descriptor of a part."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable
from urllib.parse import urlsplit

import msgspec

from talaria.core.problems import Problem
from talaria.core.redaction import SHORTEST

KeyPath = tuple[str, ...]
Rule = Callable[[Any], str | None]


class Mark(Enum):
    """On a table a mark counts for every key in it."""

    LIVE = auto()  # a running gateway takes a change up at once; other keys wait for the next start
    SECRET = auto()  # the value is a secret
    SECRET_VARIABLE = auto()  # the value is the name of the environment variable that holds a secret
    SECRET_FILE = auto()  # the value is the path, relative to the home, of a file that holds a secret
    COMMAND_VALUE = auto()  # the value is `${NAME}`, for a variable that holds a secret, or a secret itself
    TEMPLATE = auto()  # the value may have `${NAME}` in it, for a variable or a key that holds a secret
    TOOL_PARTS = auto()  # the value names tool parts; unknown ones are left out, with a warning


@dataclass(frozen=True, slots=True)
class Check:
    """The value must pass `rule`, which returns None if it is good, else what was expected instead. On the
    key type of a dict it checks the names. `suggest` returns the value that a wrong one probably means."""

    rule: Rule
    suggest: Rule | None = None


@dataclass(frozen=True, slots=True)
class Unset:
    """The meaning of an empty key in a few words, and the `value` that counts then, if there is one.

    If the key `other` of the same table is set, the key means `beside` instead.
    """

    meaning: str
    value: str = ""
    other: str = ""
    beside: str = ""


@runtime_checkable
class CheckedSettings(Protocol):
    """A settings struct that checks its keys against each other."""

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield the key and the problem, a sentence that begins behind the name of the key."""
        ...


SECRET_MARKS = (Mark.SECRET, Mark.COMMAND_VALUE, Mark.TEMPLATE)  # on keys that hold a secret, or may hold one
_SECRET_KEY = re.compile(  # such as api_key, botToken and password, but not token_env
    r"(?:^|[_-]|(?<=[a-z])(?=[A-Z]))(?i:(?:api|access|secret|private|auth)[_-]?key|key|token|secret|"
    r"passw(?:or)?d|credentials?|auth(?:orization)?)$"
)
_WORD = re.compile("[A-Za-z]{1,12}")  # such as production: hidden, it would be missing in every text
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# Such as "Bearer 3kd8-x7", and neither a path, an address, a media type nor a word.
_TOKEN = re.compile(r"(?:(?:Bearer|Basic|Token) )?(?=\S*\d)(?![/.~]|\S*://)[\w.~+/=-]+", re.ASCII)


def referenced_variable(value: str) -> str:
    """Return NAME if the value is `${NAME}`; an empty text for any other value."""
    found = _REFERENCE.fullmatch(value)
    return found[1] if found else ""


def template_variables(value: str) -> list[str]:
    """Return each NAME of which the value has `${NAME}` in it."""
    return _REFERENCE.findall(value)


def fill_template(value: str, values: Mapping[str, str]) -> str:
    """Return the value with each `${NAME}` replaced. Raises `KeyError` with a name that is missing."""
    return _REFERENCE.sub(lambda found: values[found[1]], value)


def holds_secret(value: object, marks: Collection[Mark]) -> bool:
    """Return whether the value of a key with these marks is a secret itself."""
    if not isinstance(value, str) or not value:
        return False
    if Mark.COMMAND_VALUE in marks:
        return len(value) >= SHORTEST and not referenced_variable(value) and not _WORD.fullmatch(value)
    if Mark.TEMPLATE in marks:
        return len(value) >= SHORTEST and "${" not in value and _TOKEN.fullmatch(value) is not None
    return Mark.SECRET in marks


def is_secret_key(name: str, value: str) -> bool:
    """Return whether a key without marks, as tables of plug-ins have them, probably holds a secret itself and
    not the name of a variable or a file."""
    return not template_variables(value) and _SECRET_KEY.search(name) is not None


# -- rules that several packages use


def matching(pattern: str, expected: str) -> Rule:
    whole = re.compile(pattern)
    return lambda text: None if whole.fullmatch(text) else expected


def web_address(url: str) -> str | None:
    """A rule for the root of an API."""
    expected = 'an address such as "https://openrouter.ai/api/v1"'
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return expected
    return None if is_usable and not re.search(r"\s", url) else expected


def command_value(value: str) -> str | None:
    """A rule for the value of a variable that commands get."""
    if "\0" in value or ("${" in value and not referenced_variable(value)):
        return 'a variable of the gateway, such as "${GITHUB_TOKEN}", with nothing around it'
    return None


def template(value: str) -> str | None:
    """A rule for a value that may have variables in it."""
    if re.search(r"[\0\r\n]", value) or value.count("${") != len(template_variables(value)):
        return 'a text on one line; a key is named in it as in "Bearer ${DOCS_TOKEN}"'
    return None


variable_name = matching(
    "([A-Za-z_][A-Za-z0-9_]*)?",
    "the name of a variable of the environment, such as OPENROUTER_API_KEY, not its value",
)
# For names that are written in chats and in the names of variables.
short_name = matching("[A-Za-z0-9._-]{1,64}", "1 to 64 letters, digits, dots, underscores or dashes")


# -- the descriptors of the gateway's parts, which the program can read without opening a part ------------


S = TypeVar("S", bound=msgspec.Struct)
Status: TypeAlias = Mapping[str, Any]  # the answer of `GET /api/status`


@dataclass(frozen=True, slots=True)
class Examination(Generic[S]):
    """The arguments of a part's checks in `talaria doctor`. `status` is None if no gateway runs. A running
    gateway has environment variables of its own, which this shell may not have. `shared` is the folder of
    `store.files`."""

    home: Path
    settings: S
    environ: Mapping[str, str]
    status: Status | None = None
    shared: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPart(Generic[S]):
    """A part of the gateway: a folder of the program, and a line in the list `talaria.parts`.

    `settings` is the struct of its table in config.toml, whose path is `table`. The fields say how they are
    checked, which of them change live and which secrets they hold or name: see `core.setting_marks`.
    `findings` are the checks of `talaria doctor`. The gateway does not start without a required part, which
    is opened once; any other part is opened again when its settings change.

    Importing a part must be cheap: heavy modules are imported when the part is opened or examined.
    """

    name: str
    table: KeyPath = ()
    settings: type[S]
    is_required: bool = False
    findings: Callable[[Examination[S]], AsyncIterator[Problem]] | None = None


class NoSettings(msgspec.Struct, frozen=True):
    """The settings of a part without a table."""


Parts: TypeAlias = Sequence[GatewayPart[Any]]
