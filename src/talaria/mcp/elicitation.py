"""Questions of servers to a person. A handler never waits for a person, so a call that a server asks during
ends, and the same call, made again, puts the question first and gives the server the answer.

A form is an object of texts, numbers, booleans and choices. An answer that does not fit it is asked for
again, with the reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any, Final, Literal, TypeAlias

import msgspec

from talaria.core.ids import SessionId
from talaria.core.limits import BoundedDict
from talaria.core.questions import QuestionDraft, QuestionKind
from talaria.core.text import visible_text
from talaria.mcp.texts import clean_line

MOST_KEPT = 100
_MAX_CHOICES = 8
_MAX_CHOICE = 60  # characters
_MAX_SHOWN = 200  # of a description
_MAX_FIELDS = 20
_MAX_SCHEMA_BYTES = 16 << 10
DECLINE = "decline"
_WORDS = {"yes": True, "true": True, "no": False, "false": False}
_KINDS: Final = {
    "string": "text", "integer": "a whole number", "number": "a number", "boolean": "yes or no",
}  # fmt: skip
_FORMATS: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "email": ("an e-mail address", re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+").fullmatch),
    "uri": ("an address with a scheme", re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+").fullmatch),
    "date": ("a date such as 2026-12-24", date.fromisoformat),
    "date-time": ("a time such as 2026-12-24T18:00:00Z", datetime.fromisoformat),
}


class WrongAnswer(ValueError):
    """An answer does not fit the form. The text says why."""


class Reply(msgspec.Struct, frozen=True):
    """The answer of a person as the server gets it; `cancel` if there is none yet."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


class Asked(msgspec.Struct, frozen=True):
    """A question of a server, and the JSON schema of its answer. `problem` says what was wrong with the last
    answer."""

    message: str
    schema: dict[str, Any]
    problem: str = ""

    def draft(self, server: str) -> QuestionDraft:
        """Return what the person is asked."""
        fields = _fields(self.schema)
        # Each line of the server is marked, so that none looks like a line of the gateway.
        said = [*self.message.splitlines(), *(field.line(alone=len(fields) == 1) for field in fields)]
        quoted = "\n".join(f"> {visible_text(line)}" for line in said)
        how = [f"The last answer did not fit: {self.problem}"] if self.problem else []
        if len(fields) > 1:
            how.append("Answer with one line for each, such as:")
            how += [f"{clean_line(field.name, _MAX_CHOICE)}: …" for field in fields]
        elif fields and fields[0].is_many:
            how.append("Answer with one or more of them, with commas in between.")
        lines = [f"The MCP server {server} asks:", quoted, *how, f"Answer `{DECLINE}` to refuse."]
        return QuestionDraft(QuestionKind.ANSWER, "\n".join(lines), choices=_choices(fields))

    def read(self, answer: str) -> Reply:
        """Return the answer as the server wants it. Raises `WrongAnswer`."""
        fields = _fields(self.schema)
        if answer.strip().lower() == DECLINE:
            return Reply("decline")
        if not fields:
            if _WORDS.get(answer.strip().lower(), True):
                return Reply("accept", {})
            return Reply("decline")
        told = {fields[0].name: answer} if len(fields) == 1 else _lines(answer, fields)
        values = {field.name: field.value(told.get(field.name, "")) for field in fields}
        return Reply("accept", {name: value for name, value in values.items() if value is not None})

    def is_again(self, other: Asked) -> bool:
        """Return whether another question is the same one."""
        return (self.message, self.schema) == (other.message, other.schema)


class _Option(msgspec.Struct):
    const: str | int | float
    title: str = ""


class _Values(msgspec.Struct, rename="camel"):
    """The allowed values of a field, in the forms that the protocol knows."""

    enum: list[str | int | float] = []
    enum_names: list[str] = []
    one_of: list[_Option] = []
    any_of: list[_Option] = []

    @property
    def options(self) -> dict[str, Any]:
        """Return the values by the words that the person reads."""
        names = [*self.enum_names, *map(str, self.enum[len(self.enum_names) :])]
        told = {each.title or str(each.const): each.const for each in (*self.one_of, *self.any_of)}
        return {**dict(zip(names, self.enum, strict=False)), **told}


class _Field(_Values):
    """The JSON schema of a field, as far as it is read."""

    type: Literal["string", "integer", "number", "boolean", "array"] = "string"
    title: str = ""
    description: str = ""
    default: Any = None
    format: str = ""
    minimum: int | float = -math.inf
    maximum: int | float = math.inf
    min_length: int = 0
    max_length: int | float = math.inf
    min_items: int = 0
    max_items: int | float = math.inf
    items: _Values = msgspec.field(default_factory=_Values)
    name: str = ""  # not of the schema
    is_required: bool = False

    @property
    def is_many(self) -> bool:
        return self.type == "array"

    @property
    def options(self) -> dict[str, Any]:
        return self.items.options if self.is_many else super().options

    def line(self, *, alone: bool) -> str:
        """Return what the person reads about the field."""
        need = "required" if self.is_required else "optional"
        if self.default is not None:
            need += f", {self._shown(self.default)} if left out"
        told = ": ".join(clean_line(text, _MAX_SHOWN) for text in (self.title, self.description) if text)
        name = "" if alone else f"{clean_line(self.name, _MAX_CHOICE)} "
        return f"{name}({self._wanted()}; {need}){f': {told}' if told else ''}"

    def _wanted(self) -> str:
        if options := self.options:
            names = ", ".join(clean_line(each, _MAX_CHOICE) for each in options)
            return f"any of {names}" if self.is_many else f"one of {names}"
        limits = (
            ("at least {}", self.minimum, -math.inf),
            ("at most {}", self.maximum, math.inf),
            ("at least {} characters", self.min_length, 0),
            ("at most {} characters", self.max_length, math.inf),
        )
        kind, _ = self._format() or (_KINDS[self.type], bool)
        return ", ".join((kind, *(text.format(limit) for text, limit, none in limits if limit != none)))

    def _format(self) -> tuple[str, Callable[[str], object]] | None:
        """Return the format of a text in words, and its check."""
        return _FORMATS.get(self.format) if self.type == "string" else None

    def _shown(self, value: Any) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        names = {str(each): name for name, each in self.options.items()}
        values = map(str, value if isinstance(value, list) else [value])
        return clean_line(", ".join(names.get(each, each) for each in values), _MAX_CHOICE)

    def value(self, text: str) -> Any:
        """Return a text as the value that is wanted; None for an optional field that is left out. Raises
        `WrongAnswer`."""
        text = text.strip()
        if not text:
            if self.is_required and self.default is None:
                raise self._wrong("it is missing")
            return self.default
        if self.is_many:
            found = [*dict.fromkeys(self._option(each) for each in text.split(",") if each.strip())]
            if not self.min_items <= len(found) <= self.max_items:
                most = min(self.max_items, len(self.options))
                raise self._wrong(f"choose {self.min_items} to {most} of them")
            return found
        if self.options:
            return self._option(text)
        if self.type == "boolean":
            if (word := _WORDS.get(text.lower())) is None:
                raise self._wrong("answer yes or no")
            return word
        try:
            return self._text(text) if self.type == "string" else self._number(text)
        except ValueError:
            raise self._wrong(f"{clean_line(text, _MAX_CHOICE)!r} is not {self._wanted()}") from None

    def _option(self, text: str) -> Any:
        text = text.strip()
        for name, value in self.options.items():
            if text.lower() in (name.lower(), str(value).lower()):
                return value
        raise self._wrong(f"{clean_line(text, _MAX_CHOICE)!r} is not {self._wanted()}")

    def _number(self, text: str) -> int | float:
        number = int(text) if self.type == "integer" else float(text)
        if not math.isfinite(number) or not self.minimum <= number <= self.maximum:
            raise ValueError
        return number

    def _text(self, text: str) -> str:
        _, check = self._format() or ("", bool)
        if not self.min_length <= len(text) <= self.max_length or not check(text):
            raise ValueError
        return text

    def _wrong(self, why: str) -> WrongAnswer:
        return WrongAnswer(f"{clean_line(self.name, _MAX_CHOICE)}: {why}.")


def _fields(schema: dict[str, Any]) -> list[_Field]:
    """Return the fields of a form. Raises `msgspec.ValidationError` for one that cannot be shown."""
    found = []
    for name, wanted in schema.get("properties", {}).items():
        field = msgspec.convert(wanted, _Field)
        field.name, field.is_required = name, name in schema.get("required", ())
        if field.is_many and not field.options:
            raise msgspec.ValidationError(f"{name} has no values")
        found.append(field)
    return found


def _lines(answer: str, fields: list[_Field]) -> dict[str, str]:
    """Return the texts of an answer with a line for each field, by the names of the fields."""
    names = {field.name.strip().lower(): field.name for field in fields}
    told: dict[str, str] = {}
    for line in answer.splitlines():
        name, colon, value = line.partition(":")
        if colon and (known := names.get(name.strip().lower())) is not None:
            told[known] = value
    if not told:
        raise WrongAnswer("no line begins with the name of a field and a colon.")
    return told


def _choices(fields: list[_Field]) -> tuple[str, ...]:
    """Return the buttons of a question: for a form with one field, its values."""
    if not fields:
        return ("yes", DECLINE)
    field = fields[0]
    if len(fields) > 1 or field.is_many:
        return ()
    if field.options:
        names = [clean_line(each, _MAX_CHOICE) for each in field.options]
        return (*dict.fromkeys(names[: _MAX_CHOICES - 1]), DECLINE)
    return ("yes", "no", DECLINE) if field.type == "boolean" else ()


def form_problem(schema: dict[str, Any]) -> str:
    """Return why a person cannot be shown this form, which is kept until they have answered; empty if it is
    fine."""
    if len(msgspec.json.encode(schema)) > _MAX_SCHEMA_BYTES:
        return f"The schema of the form has more than {_MAX_SCHEMA_BYTES >> 10} KiB."
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return "The schema of the form is wrong at properties or required."
    if len(properties) > _MAX_FIELDS:
        return f"A form has at most {_MAX_FIELDS} fields."
    if not all(isinstance(name, str) for name in required):
        return "The schema of the form is wrong at required."
    try:
        _fields(schema)
    except msgspec.ValidationError as error:
        return f"The schema of the form is wrong: {clean_line(str(error), _MAX_SHOWN)}."
    return ""


CallKey: TypeAlias = tuple[SessionId, str, bytes]
"""A call of a tool: the session, the tool's name, and the arguments as canonical JSON."""
OpenQuestions: TypeAlias = BoundedDict[CallKey, Asked]
"""The questions that calls ended with, until the same call is made again. The oldest go first."""


def call_key(session_id: SessionId, tool: str, arguments: dict[str, Any]) -> CallKey:
    return session_id, tool, msgspec.json.encode(arguments, order="sorted")
