"""What a tiny model is told: how to answer with one JSON object, a few tools, and examples of both.

It reads about a hundred tokens a second, so all of it stays below 700. Only tools that read are offered: a
model of this size calls the wrong one often enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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
files. Talk for everything else: greetings, thanks, questions about the world, jokes, poems, translations, \
code. You cannot write, delete or send anything."""
# The tool that an example is about, what a person says, and the right answer.
_EXAMPLES: tuple[tuple[str, str, str], ...] = (
    ("", "Good morning!", '{"reply": "Good morning! What can I do for you?"}'),
    ("read_file", "When is lunch in plan.md?", '{"tool": "read_file", "arguments": {"path": "plan.md"}}'),
    ("", "What is the capital of Norway?", '{"reply": "The capital of Norway is Oslo."}'),
    ("list_files", "What files do I have?", '{"tool": "list_files", "arguments": {}}'),
    (
        "search_files",
        "Where did I write about Lisbon?",
        '{"tool": "search_files", "arguments": {"pattern": "Lisbon"}}',
    ),
    ("", "Write one line about autumn.", '{"reply": "Leaves let go, and the wind keeps them company."}'),
    (
        "list_files",
        "Are there pictures in holiday?",
        '{"tool": "list_files", "arguments": {"path": "holiday"}}',
    ),
    ("", "Please delete old.txt.", '{"reply": "I cannot delete files; I can only look at them."}'),
)


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
    for tool, said, answer in _EXAMPLES:
        if not tool or tool in names:
            messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
    return messages


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
