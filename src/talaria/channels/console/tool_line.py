"""One line about a tool call: its name and the argument that says most."""

from __future__ import annotations

import msgspec

from talaria.channels.console.clean import clean_line

_TELLING = ("path", "command", "url", "query", "pattern", "task", "action", "question")
_LONGEST = 72


def describe_call(name: str, arguments: str) -> str:
    detail = _detail(arguments)
    return f"{clean_line(name, _LONGEST)} {detail}".rstrip()


def _detail(arguments: str) -> str:
    """Broken arguments are shown as the model wrote them: that is what a person wants to see then."""
    try:
        fields = msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return clean_line(arguments, _LONGEST)
    if not isinstance(fields, dict):
        return clean_line(arguments, _LONGEST)
    texts = {key: value for key, value in fields.items() if isinstance(value, str) and value}
    found = next((texts[key] for key in _TELLING if key in texts), None)
    return clean_line(found if found is not None else next(iter(texts.values()), ""), _LONGEST)
