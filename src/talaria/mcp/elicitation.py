"""Questions of servers to a person. A handler never waits for a person, so a call that a server asks during
ends, and the same call, made again, puts the question first and gives the server the answer."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from talaria.core.ids import SessionId
from talaria.core.limits import BoundedDict
from talaria.core.questions import QuestionDraft, QuestionKind
from talaria.core.text import visible_text
from talaria.mcp.texts import clean_line

MOST_KEPT = 100
_MAX_CHOICES = 8
_MAX_CHOICE = 60  # characters
_MAX_FIELDS = 20
_MAX_SCHEMA_BYTES = 16 << 10
DECLINE = "decline"
_WORDS = {"yes": True, "true": True, "no": False, "false": False}


class Asked(msgspec.Struct, frozen=True):
    """A question of a server, and the JSON schema of its answer: an object of texts, numbers and booleans."""

    message: str
    schema: dict[str, Any]

    def draft(self, server: str) -> QuestionDraft:
        """Return what the person is asked."""
        names = list(self._properties())
        how = ""
        if len(names) > 1:
            lines = ", ".join(f"{clean_line(name, 60)}: …" for name in names)
            how = f"\nAnswer with one line for each: {lines}"
        # Each line of the server is marked, so that none looks like a line of the gateway.
        quoted = "\n".join(f"> {visible_text(line)}" for line in self.message.splitlines())
        text = f"The MCP server {server} asks:\n{quoted}{how}\nAnswer `{DECLINE}` to give it no answer."
        return QuestionDraft(QuestionKind.ANSWER, text, choices=self._choices())

    def read(self, answer: str) -> dict[str, Any] | None:
        """Return the answer as the server wants it; None if the person declined, or it cannot be read."""
        properties = self._properties()
        if answer.strip().lower() == DECLINE:
            return None
        if not properties:
            return {}
        if len(properties) == 1:
            ((name, wanted),) = properties.items()
            value = _value(answer, wanted)
            return None if value is None else {name: value}
        found = {}
        for line in answer.splitlines():
            name, colon, value = line.partition(":")
            if colon and name.strip() in properties:
                found[name.strip()] = _value(value, properties[name.strip()])
        required = self.schema.get("required", ())
        is_whole = all(found.get(name) is not None for name in required)
        return {name: value for name, value in found.items() if value is not None} if is_whole else None

    def _properties(self) -> dict[str, Any]:
        found = self.schema.get("properties")
        return found if isinstance(found, dict) else {}

    def _choices(self) -> tuple[str, ...]:
        properties = self._properties()
        if len(properties) > 1:
            return ()
        wanted = next(iter(properties.values()), {"type": "boolean"})
        named = wanted.get("enum") if isinstance(wanted, dict) else None
        if isinstance(named, list):
            texts = [clean_line(str(each), _MAX_CHOICE) for each in named[: _MAX_CHOICES - 1]]
            return (*dict.fromkeys(texts), DECLINE)
        return ("yes", "no", DECLINE) if isinstance(wanted, dict) and wanted.get("type") == "boolean" else ()


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
    is_named = all(isinstance(name, str) for name in required)
    return "" if is_named else "The schema of the form is wrong at required."


def _value(text: str, wanted: Any) -> Any:
    """Return the text as the type that is wanted; None if it is no such value."""
    text = text.strip()
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    named = wanted.get("enum") if isinstance(wanted, dict) else None
    if isinstance(named, list):
        return next((each for each in named if str(each) == text), None)
    if kind == "boolean":
        return _WORDS.get(text.lower())
    if kind in ("integer", "number"):
        try:
            return int(text) if kind == "integer" else float(text)
        except ValueError:
            return None
    return text


CallKey: TypeAlias = tuple[SessionId, str, bytes]
"""A call of a tool: the session, the tool's name, and the arguments as canonical JSON."""
OpenQuestions: TypeAlias = BoundedDict[CallKey, Asked]
"""The questions that calls ended with, until the same call is made again. The oldest go first."""


def call_key(session_id: SessionId, tool: str, arguments: dict[str, Any]) -> CallKey:
    return session_id, tool, msgspec.json.encode(arguments, order="sorted")
