"""What a tiny model is told: how to answer with one JSON object, a few tools, and examples of both.

It reads about a hundred tokens a second, so all of it stays below 700. Only tools that read are offered: a
model of this size calls the wrong one often enough.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from talaria.core.tools import ToolSpec


class _Tool(NamedTuple):
    """What a tiny model is told of a tool, and the one argument that it gives."""

    argument: str
    is_needed: bool
    words: str


# In the order in which the model sees them.
_OFFERED = {
    "list_files": _Tool("path", False, "which files there are, in all or in a folder"),
    "read_file": _Tool("path", True, "what one file says"),
    "search_files": _Tool("pattern", True, "which files contain a word"),
}
_RULES = """\
You see the person's files only through tools. Answer with one JSON object: {"tool": NAME, "arguments": {…}} \
to look into the files, or {"reply": TEXT} to talk. Look when the person names a file or asks about their \
files; when you get a result, reply with what it says. Talk for everything else: greetings, thanks, \
questions about the world, jokes, poems, translations, code."""
_RESULT = "Result of "
_ASKED = "\n\nTell me all that this result says."
RESULT = msgspec.json.encode({"role": "user", "content": _RESULT})[:-2]  # how a chunk with results begins


class _Example(NamedTuple):
    """What a person says and the right answer: words, or the value of a tool's argument; then what the tool
    finds, and what is said of it. A tiny model copies examples word by word, so none of them refuses."""

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


def told(name: str, text: str, failed: str = "") -> str:
    """A tool's result as the person's next words, the last of which ask for an answer."""
    return f"{_RESULT}{name}{failed}:\n{text}{_ASKED}"


def offered(tools: Sequence[ToolSpec]) -> list[ToolSpec]:
    """Those of the session's tools that a tiny model gets."""
    by_name = {spec.name: spec for spec in tools if spec.read_only}
    return [by_name[name] for name in _OFFERED if name in by_name]


def opening(prompt: str, tools: Sequence[ToolSpec]) -> list[dict[str, str]]:
    """The messages before the first of the person; `tools` are those that `offered` left. Examples stand
    there as a conversation, which a tiny model follows better than a description of one."""
    if not tools:
        return [{"role": "system", "content": prompt}]
    names = [spec.name for spec in tools]
    lines = [prompt, "", _RULES, "", "Tools:"]
    lines += [f"- {name}({_OFFERED[name].argument}): {_OFFERED[name].words}" for name in names]
    messages = [{"role": "system", "content": "\n".join(lines)}]
    for example in _EXAMPLES:
        if not example.tool or example.tool in names:
            messages += _shown(example)
    return messages


def _shown(example: _Example) -> Iterator[dict[str, str]]:
    yield {"role": "user", "content": example.said}
    if example.tool:
        arguments = {_OFFERED[example.tool].argument: example.value} if example.value else {}
        yield {"role": "assistant", "content": json.dumps({"tool": example.tool, "arguments": arguments})}
    if example.result:
        yield {"role": "user", "content": told(example.tool, example.result)}
    if example.reply:
        yield {"role": "assistant", "content": json.dumps({"reply": example.reply})}


def answer_schema(tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """What an answer may be: a call of one of these, or a reply."""
    return {"anyOf": [*(_call_schema(spec.name, _OFFERED[spec.name]) for spec in tools), REPLY_SCHEMA]}


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


REPLY_SCHEMA = _object({"reply": {"type": "string"}}, ["reply"])


def _call_schema(name: str, tool: _Tool) -> dict[str, Any]:
    required = [tool.argument] if tool.is_needed else []
    arguments = _object({tool.argument: {"type": "string"}}, required)
    return _object({"tool": {"const": name}, "arguments": arguments}, ["tool", "arguments"])


READ_SCHEMA = _call_schema("read_file", _OFFERED["read_file"])
