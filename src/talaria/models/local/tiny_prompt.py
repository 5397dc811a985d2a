"""The prompt of a tiny model, and the answers that it may give next.

It is told to answer with one JSON object, with a few tools and examples of both. It reads about a hundred
tokens a second, so all of that stays below 700 tokens. Only tools that read are offered: a model of this size
often calls the wrong one. For the same reason each call is limited to the answers that make sense there. The
limit goes behind the conversation; the prefix stays as it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from talaria.core.tools import ToolSpec


class _OfferedTool(NamedTuple):
    """The description of a tool for a tiny model, and the only argument that it gives."""

    argument: str
    is_needed: bool
    words: str


# In the order in which the model sees them.
_OFFERED = {
    "list_files": _OfferedTool("path", False, "which files there are, in all or in a folder"),
    "read_file": _OfferedTool("path", True, "what one file says"),
    "search_files": _OfferedTool("pattern", True, "which files contain a word"),
}
_RULES = """\
You see the person's files only through tools. Answer with one JSON object: {"tool": NAME, "arguments": {…}} \
to look into the files, or {"reply": TEXT} to talk. Look when the person names a file or asks about their \
files; when you get a result, reply with what it says. Talk for everything else: greetings, thanks, \
questions about the world, jokes, poems, translations, code."""
_RESULT = "Result of "
_ASKED = "\n\nTell me all that this result says."
RESULT = msgspec.json.encode({"role": "user", "content": _RESULT})[:-2]  # how an encoded result begins


class _Example(NamedTuple):
    """A message of a person and the right answer: a reply, or a call with its result and a reply.

    A tiny model copies examples word by word, so none of them is a refusal.
    """

    said: str
    reply: str
    tool: str = ""
    value: str = ""
    result: str = ""


_EXAMPLES = (
    _Example("Good morning!", "Good morning! What can I do for you?"),
    _Example(
        "When is lunch in plan.md?", "plan.md says: lunch at 13:15.", "read_file", "plan.md", "Lunch at 13:15"
    ),
    _Example("Who are you?", "I am a small model that runs on your own machine. I make mistakes."),
    _Example("What is the capital of Norway?", "The capital of Norway is Oslo."),
    _Example("What files do I have?", "", "list_files"),
    _Example("Where did I write about Lisbon?", "", "search_files", "Lisbon"),
    _Example("Write one line about autumn.", "Leaves let go, and the wind keeps them company."),
    _Example("Are there pictures in holiday?", "", "list_files", "holiday"),
    _Example("I slept badly.", "That sounds hard. I hope that tonight is better."),
)


def result_text(name: str, text: str, failed: str = "") -> str:
    """Return a tool's result as a message of the person that ends with a request to tell it."""
    return f"{_RESULT}{name}{failed}:\n{text}{_ASKED}"


def offered_tools(tools: Sequence[ToolSpec]) -> list[ToolSpec]:
    """Return those of the session's tools that a tiny model gets."""
    by_name = {spec.name: spec for spec in tools if spec.read_only}
    return [by_name[name] for name in _OFFERED if name in by_name]


def opening_messages(prompt: str, tools: Sequence[ToolSpec]) -> list[dict[str, str]]:
    """Return the messages before the first one of the person; `tools` come from `offered_tools`.

    The examples are a conversation, which a tiny model follows better than a description of one.
    """
    if not tools:
        return [{"role": "system", "content": prompt}]
    names = [spec.name for spec in tools]
    lines = [prompt, "", _RULES, "", "Tools:"]
    lines += [f"- {name}({_OFFERED[name].argument}): {_OFFERED[name].words}" for name in names]
    messages = [{"role": "system", "content": "\n".join(lines)}]
    for example in _EXAMPLES:
        if not example.tool or example.tool in names:
            messages += _example_messages(example)
    return messages


def _example_messages(example: _Example) -> Iterator[dict[str, str]]:
    yield {"role": "user", "content": example.said}
    if example.tool:
        arguments = {_OFFERED[example.tool].argument: example.value} if example.value else {}
        yield {"role": "assistant", "content": json.dumps({"tool": example.tool, "arguments": arguments})}
    if example.result:
        yield {"role": "user", "content": result_text(example.tool, example.result)}
    if example.reply:
        yield {"role": "assistant", "content": json.dumps({"reply": example.reply})}


def answer_schema(tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """Return the schema of all answers: a call of one of these tools, or a reply."""
    return {"anyOf": [*(_call_schema(spec.name, _OFFERED[spec.name]) for spec in tools), REPLY_SCHEMA]}


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


REPLY_SCHEMA = _object({"reply": {"type": "string"}}, ["reply"])


def _call_schema(name: str, tool: _OfferedTool) -> dict[str, Any]:
    required = [tool.argument] if tool.is_needed else []
    arguments = _object({tool.argument: {"type": "string"}}, required)
    return _object({"tool": {"const": name}, "arguments": arguments}, ["tool", "arguments"])


READ_SCHEMA = _call_schema("read_file", _OFFERED["read_file"])


# -- which answers are allowed ------------------------------------------------------------------------------

_CALLS_IN_A_ROW = 2
_REPLY = msgspec.json.encode(REPLY_SCHEMA)
_READ = msgspec.json.encode(READ_SCHEMA)
_READ_OR_REPLY = b'{"anyOf":[%b,%b]}' % (_READ, _REPLY)
_WAS_READ = RESULT + b"read_file:"
_WAS_FOUND = (RESULT + b"list_files:", RESULT + b"search_files:")
_FILE = re.compile(
    rb"[\w-]\.(cfg|conf|css|csv|docx?|html?|ini|java|js|json|log|md|pdf|py|rs|rst|sh|sql|tex|toml|ts|tsv|txt"
    rb"|xlsx?|xml|ya?ml)\b",
    re.IGNORECASE,
)
_THEIR_FILES = re.compile(
    rb"\b((my|this|these|every|which)\s+(files?|folders?|notes|documents|directory)|the\s+(folder|directory))\b",
    re.IGNORECASE,
)


def allowed_answers(schema: bytes, chunks: Sequence[bytes]) -> bytes:
    """Return the part of `schema` that the next answer is limited to; `chunks` are the encoded messages.

    - After a file was read, or after two results in a row: a reply.
    - After files were found: a reply, or reading one of them.
    - After a failure: anything.
    - After words that name a file, or speak of the person's files: a tool.
    - After other words: anything.
    """
    last = chunks[-1] if chunks else b""
    if last.startswith(_WAS_READ) or _has_looked_enough(chunks):
        return _REPLY
    if last.startswith(_WAS_FOUND):
        return _READ_OR_REPLY if _READ in schema else _REPLY
    if last.startswith(RESULT):
        return schema
    wants_a_look = _FILE.search(last) or _THEIR_FILES.search(last)
    return schema.replace(b"," + _REPLY, b"") if wants_a_look else schema


def _has_looked_enough(chunks: Sequence[bytes]) -> bool:
    return len(chunks) >= 2 * _CALLS_IN_A_ROW and all(
        chunk.startswith(RESULT) for chunk in chunks[-1 : -2 * _CALLS_IN_A_ROW : -2]
    )
