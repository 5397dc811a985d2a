"""The scripted model's answers. Marks in the last user message decide them, and nothing else does.

A message without marks is echoed: "You said: …". Marks are read from left to right:

  [[reply TEXT]]              answer with TEXT
  [[call NAME {"a": 1}]]      call a tool; one step. Arguments that are not JSON are sent unchanged
  [[call A {} + call B {}]]   two calls in one step; [[call A {}]]+[[call B {}]] means the same
  [[refuse TEXT]]             decline with TEXT (chat completions)
  [[finish WORD]]             say WORD as the reason of the end (chat completions)
  [[think TEXT]]              think TEXT first
  [[words N]]                 answer with N words
  [[chunks N]]                send the answer in N pieces
  [[delay S]]                 wait S seconds before the first byte
  [[chunk-delay S]]           wait S seconds before each piece
  [[usage IN CACHED OUT THOUGHT]]   report these token counts
  [[empty]]                   answer with nothing
  [[system]]                  answer with the SHA-256 of the system message
  [[history]]                 answer with the number of messages in the request
  [[status 503]]              fail with this HTTP status; [[retry-after S]] adds the header, [[code WORD]]
                              names the kind of the error
  [[hang]]                    take the request and never answer
  [[cut N]]                   lose the connection after N pieces
  [[malformed]]               send a piece that is no JSON
  [[error-in-stream]]         send an error object after the first piece
  [[half-call]]               lose the connection in the middle of a tool call
  [[hostile NAME BYTES]]      play an attack of `talaria.testing.hostile_answers`, about so many bytes long
  [[first N FAULT]]           the fault for the first N attempts only: [[first 2 status 503]]

Calls are steps: the model calls the first, sees its results, calls the next, and after the last one answers
with [[reply …]] or with a summary of the results. All other marks belong to the step they are written in:
those before a call to that call's step, those after the last call to the final answer.

A side call (a summary, a title) is answered with the beginning of its text, or as marks in its instructions
say.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from talaria.agent.side_calls import SIDE_TASK
from talaria.core.messages import TokenUsage, ToolCall

_OPEN = re.compile(r"\[\[([a-z][a-z-]*)\s*")
_JOIN = re.compile(r"\s*\+\s*")
_NAME = re.compile(r"(?:call\s+)?([^\s\]{+]+)\s*")
_SHOWN_IMAGE = "[image 1 from "  # the beginning of a message with images of tool results
_NOTE = "[Note: "  # the beginning of a message that no person wrote, such as the end of a process
_STAMP = re.compile(r"\[[^\[\]]*\] ")
_FOLDED = re.compile(r"\[Note: the steps e(\d+) to e(\d+) of this turn")
_ASIDE_CHARS = 200
_scan_json = json.JSONDecoder().raw_decode


class ScriptedFault(StrEnum):
    STATUS = "status"
    HANG = "hang"
    CUT = "cut"
    MALFORMED = "malformed"
    ERROR_IN_STREAM = "error-in-stream"
    HALF_CALL = "half-call"
    HOSTILE = "hostile"


def _attack(argument: str) -> tuple[str, int]:
    name, size = argument.split()
    return name, int(size)


_FAULTS = frozenset(ScriptedFault)
_FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "think": ("thought", str),
    "chunks": ("chunks", int),
    "finish": ("finish", str),
    "delay": ("delay", float),
    "chunk-delay": ("chunk_delay", float),
    "retry-after": ("retry_after", str),
    "usage": ("usage", lambda numbers: TokenUsage(*map(int, numbers.split()))),
    "status": ("status", int),
    "code": ("code", str),
    "cut": ("cut_after", int),
    "hostile": ("hostile", _attack),
}
MARKS = (
    "call",
    "reply",
    "refuse",
    "words",
    "empty",
    "system",
    "history",
    "first",
    *sorted({*_FIELDS, *_FAULTS}),
)


class ScriptedAnswer(msgspec.Struct, frozen=True):
    """An answer: its content, how it is sent, and what goes wrong."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    thought: str = ""
    refuses: bool = False
    finish: str = ""
    chunks: int = 0
    delay: float = 0.0
    chunk_delay: float = 0.0
    usage: TokenUsage | None = None
    fault: ScriptedFault | None = None
    status: int = 0
    code: str = ""
    retry_after: str = ""
    cut_after: int = 0
    hostile: tuple[str, int] = ("", 0)  # the name of an attack, and its size

    def pieces(self) -> list[str]:
        """Cut the text for streaming: into `chunks` pieces, or into at most 8 of about 20 characters."""
        count = self.chunks or min(8, len(self.text) // 20 + 1)
        size = -(-len(self.text) // count) or 1
        return [self.text[start : start + size] for start in range(0, len(self.text), size)]

    def usage_after(self, body_bytes: int) -> TokenUsage:
        """Return the scripted token counts, or else count four bytes as a token."""
        if self.usage is not None:
            return self.usage
        said = len(self.text) + sum(len(call.arguments) for call in self.calls)
        thought = len(self.thought)
        return TokenUsage(body_bytes // 4 + 1, 0, (said + thought) // 4 + 1, thought // 4)


class ScriptContext(msgspec.Struct, frozen=True):
    """The part of a conversation that the script depends on.

    `steps` counts the model's tool-calling messages since the last user message; `results` are the results of
    the last one. `length` counts all messages of the request.
    """

    user: str
    steps: int = 0
    results: tuple[str, ...] = ()
    system: str = ""
    length: int = 0


def read_context(messages: Sequence[dict[str, Any]]) -> ScriptContext:
    """Read the context from messages in the format of OpenAI chat completions."""
    start = next((n for n in range(len(messages) - 1, -1, -1) if _asks(messages, n)), -1)
    system = next((m for m in messages if m.get("role") in ("system", "developer")), {})
    user = _text_of(messages[start]) if start >= 0 else ""
    steps, results = read_steps(messages[start + 1 :])
    return ScriptContext(user, steps, results, _text_of(system), len(messages))


def _asks(messages: Sequence[dict[str, Any]], n: int) -> bool:
    """Return whether the message is to be answered. Images of results and notes are user messages too."""
    if messages[n].get("role") != "user":
        return False
    text = _text_of(messages[n])
    follows_results = n > 0 and messages[n - 1].get("role") == "tool"
    is_note = (_STAMP.sub("", text, count=1) if _STAMP.match(text) else text).startswith(_NOTE)
    return not is_note and not (follows_results and text.startswith(_SHOWN_IMAGE))


def read_steps(messages: Sequence[dict[str, Any]]) -> tuple[int, tuple[str, ...]]:
    """Return how many of these messages called tools, and the results of the last one."""
    steps = 0
    results: list[str] = []
    for message in messages:
        if message.get("role") == "assistant" and message.get("tool_calls"):
            steps += 1
            results.clear()
        elif message.get("role") == "tool":
            results.append(_text_of(message))
        elif folded := _FOLDED.match(_text_of(message)):  # each step is two entries
            steps += (int(folded[2]) - int(folded[1]) + 1) // 2
    return steps, tuple(results)


def decide(context: ScriptContext, earlier_attempts: int = 0) -> ScriptedAnswer:
    """Return the answer to a request that was made `earlier_attempts` times before."""
    if context.system.startswith(SIDE_TASK):
        return _answer_aside(context)
    text = _STAMP.sub("", context.user, count=1) if _STAMP.match(context.user) else context.user
    if "[[" not in text:
        return ScriptedAnswer(f"You said: {text}")
    parser = _ScriptParser(text)
    parser.parse()
    if parser.unknown:
        known = ", ".join(MARKS)
        return ScriptedAnswer(f"I do not know the mark [[{parser.unknown}]]. I know: {known}.")
    last = len(parser.steps) - 1
    step = parser.steps[min(context.steps, last)]
    if step.calls:
        seed = hashlib.sha256(f"{context.steps}\0{context.user}".encode()).hexdigest()[:12]
        calls = tuple(ToolCall(f"call_{seed}_{n}", name, args) for n, (name, args) in enumerate(step.calls))
        return step.answer(text=step.reply or "", calls=calls, earlier_attempts=earlier_attempts)
    return step.answer(
        text=_final_text(step, context, parser.rest), calls=(), earlier_attempts=earlier_attempts
    )


def _answer_aside(context: ScriptContext) -> ScriptedAnswer:
    """Return the answer to a side call. Marks count in its instructions; its text is material."""
    parser = _ScriptParser(context.system)
    parser.parse()
    lines = context.user.splitlines()
    text = f"In short ({len(context.user)} characters): {' '.join(context.user.split())[:_ASIDE_CHARS]}"
    if len(lines) > 1 and all(line.startswith("- ") for line in lines):
        text = "\n".join(lines[::2])  # of a list, every other line
    reply = parser.steps[-1].reply
    return parser.steps[-1].answer(text=text if reply is None else reply, calls=(), earlier_attempts=0)


class AttemptCounter:
    """Counts requests with the same context, for marks that fail the first attempts only. Bounded."""

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._counts: dict[ScriptContext, int] = {}

    def count(self, context: ScriptContext) -> int:
        """Count one more attempt. Returns the number of earlier ones."""
        if "[[first" not in context.user:
            return 0
        earlier = self._counts.get(context, 0)
        if len(self._counts) >= self._limit:
            self._counts.clear()
        self._counts[context] = earlier + 1
        return earlier


def _final_text(step: _Step, context: ScriptContext, rest: str) -> str:
    if step.reply is not None:
        return step.reply
    if step.wants == "system":
        return hashlib.sha256(context.system.encode()).hexdigest()
    if step.wants == "history":
        return str(context.length)
    if context.steps:
        return "Tool results: " + "; ".join(result[:400] for result in context.results)
    return f"You said: {rest}"


class _Step:
    """The marks of one step."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.reply: str | None = None
        self.wants = ""
        self.fields: dict[str, Any] = {}
        self.faulty_attempts: int | None = None  # None: all attempts

    def answer(self, text: str, calls: tuple[ToolCall, ...], earlier_attempts: int) -> ScriptedAnswer:
        fields = dict(self.fields)
        if self.faulty_attempts is not None and earlier_attempts >= self.faulty_attempts:
            fields.pop("fault", None)
        return ScriptedAnswer(text=text, calls=calls, **fields)


class _ScriptParser:
    """Parses marks from left to right. The last of `steps` is the final answer."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.steps = [_Step()]
        self.rest = ""
        self.unknown = ""

    def parse(self) -> None:
        between = []
        while match := _OPEN.search(self._text, self._at):
            between.append(self._text[self._at : match.start()])
            self._at = match.end()
            word = match[1]
            joined = between[-1].strip() == "+" and len(self.steps) > 1
            if word == "call":
                if not joined or self._touched():
                    self.steps.append(_Step())
                self._read_calls(self.steps[-2])
            else:
                end = self._text.find("]]", self._at)
                argument = self._text[self._at : end if end >= 0 else None].strip()
                self._at = end + 2 if end >= 0 else len(self._text)
                self._take(word, argument)
        between.append(self._text[self._at :])
        self.rest = " ".join(part.strip() for part in between if part.strip())

    def _touched(self) -> bool:
        """Return whether the step after the last call has marks already. Then a `+` joins nothing."""
        step = self.steps[-1]
        return bool(step.fields or step.wants or step.reply is not None)

    def _read_calls(self, step: _Step) -> None:
        while name := _NAME.match(self._text, self._at):
            self._at = name.end()
            step.calls.append((name[1], self._read_arguments()))
            join = _JOIN.match(self._text, self._at)
            if not join:
                break
            self._at = join.end()
        end = self._text.find("]]", self._at)
        self._at = end + 2 if end >= 0 else len(self._text)

    def _read_arguments(self) -> str:
        """Return the arguments as written: JSON, which may contain `]]` and `+`, or text up to `]]`."""
        start = self._at
        if self._text.startswith(("]]", "+"), start):
            return "{}"
        try:
            _, self._at = _scan_json(self._text, start)
        except ValueError:
            end = self._text.find("]]", start)
            self._at = end if end >= 0 else len(self._text)
        return self._text[start : self._at].strip()

    def _take(self, word: str, argument: str) -> None:
        try:
            self._apply(self.steps[-1], word, argument)
        except (ValueError, TypeError, IndexError):
            self.unknown = f"{word} {argument}".strip()

    def _apply(self, step: _Step, word: str, argument: str) -> None:
        match word:
            case "reply":
                step.reply = argument
            case "refuse":
                step.reply, step.fields["refuses"] = argument, True
            case "empty":
                step.reply = ""
            case "words":
                step.reply = " ".join(f"word{n}" for n in range(1, int(argument) + 1))
            case "system" | "history":
                step.wants = word
            case "first":
                count, fault, *rest = argument.split()
                if fault not in _FAULTS:
                    raise ValueError(fault)
                step.faulty_attempts = int(count)
                self._apply(step, fault, " ".join(rest))
            case _:
                if word in _FIELDS:
                    field, read = _FIELDS[word]
                    step.fields[field] = read(argument)
                if word in _FAULTS:
                    step.fields["fault"] = ScriptedFault(word)
                elif word not in _FIELDS:
                    raise ValueError(word)


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if isinstance(part.get("text"), str))
    return ""
