"""The wire format of the built-in models: chat completions, with what small models understand.

The prompt says what the model is and what it cannot do. Tools are not in it: the program finds out what a
request needs (`router`) and calls the tools itself (`answering`), so the model only talks, or fills in the
arguments of one tool. The names of the session's tools are frozen with the prefix and are not sent.

In the history, a call and its result are notes by the program inside messages of the person: small models
know no other roles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import assert_never

import msgspec
from msgspec import UNSET

from talaria.core.messages import (
    AssistantMessage,
    File,
    Image,
    Message,
    Part,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutcome,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.specs import ModelCall, Prefix
from talaria.core.tools import ToolSpec
from talaria.models.failures import DECODE_ERRORS
from talaria.models.local.router import TOOL_OF
from talaria.models.openai_chat import ChatReader, OpenAIChat
from talaria.models.wire import AnswerDecoder, Wire, attached_text

MAX_OUTPUT = 512
MAX_RESULT = 2_000  # characters of one result that a small model is shown
TALK_SLOT = 1
UNSEEN = "[an image, which this model cannot see]"
# Without the penalty a small model may repeat a word to the end of its answer. It also writes notes of the
# program, which would claim what was not done: the answer stops there.
_STOP = b'"temperature":0,"stop":["[The program ","[Result of "]'
_TALK = _STOP + b',"repeat_penalty":1.1'
# The tiny model then also takes a worse word for a fact that was named before, so it is kept from repeating
# whole passages only. Its words come with their probabilities.
SCORED_TALK = _STOP + b',"dry_multiplier":0.8,"dry_allowed_length":4,"logprobs":true,"top_logprobs":1'
_CALLS = "[The program calls "
_PIPED = "[The attached text says:]\n"


class _Source(StrEnum):
    """The `name` of a message that is not in the person's own words."""

    FILE = "file"
    PIPED = "piped"
    CALL = "call"
    RESULT = "result"
    FAILURE = "failure"


_TALKS_ONLY = """\
You are a small language model that runs on the person's own machine, without the internet: a computer \
program, not a person. You can answer questions, explain, translate, and write short texts and code. You \
only talk and have no tools. Answer briefly."""
_TALKS_AND_LOOKS = """\
You are a small language model that runs on the person's own machine, without the internet. The program \
around you looks into the person's files and writes them; notes in brackets tell what it did. Rely on them. \
You cannot browse, look things up, remind, send messages, run programs or remember other conversations. \
Never say that you did such a thing. Work out a sum step by step, then say the result. If you do not know \
something, say so."""

_CHAT = OpenAIChat()
_encode = msgspec.json.Encoder().encode


class OfferedTools(msgspec.Struct, frozen=True):
    """The tools that the program may call for the model, in the place of a tool list."""

    offered: tuple[str, ...]


def is_session(prefix: Prefix) -> bool:
    """Return whether the call is one of a session. A stateless caller brings prompts and tools of its own."""
    return prefix.tools.startswith(b"{")


class LocalChat(Wire):
    """Stateless, as every wire format."""

    name = "built-in"
    path = OpenAIChat.path

    def reader(self) -> LocalReader:
        return LocalReader()

    def render_prefix(self, prompt: str, tools: Sequence[ToolSpec]) -> Prefix:
        known = {spec.name for spec in tools}
        offered = [name for name in TOOL_OF.values() if name in known]
        rules = _TALKS_AND_LOOKS if offered else _TALKS_ONLY
        system = _encode({"role": "system", "content": f"{prompt}\n\n{rules}"})
        return Prefix(system, _encode(OfferedTools(tuple(offered))))

    def encode(self, message: Message) -> bytes:
        match message:
            case UserMessage(parts=parts):
                files = [_file(part) for part in parts if isinstance(part, File) and part.text]
                texts = [_split_piped(part.text) for part in parts if isinstance(part, Text)]
                files += [_note(_Source.PIPED, f"{_PIPED}{piped}") for _, piped in texts if piped]
                words = tuple(Text(UNSEEN) if isinstance(part, Image) else _words(part) for part in parts)
                # A small model repeats the time of a message in its answers, so it is not told.
                said = msgspec.structs.replace(message, parts=words, stamp="")
                return b",".join([*files, _CHAT.encode(said)])
            case AssistantMessage(tool_calls=calls) if calls:
                text = [_CHAT.encode(msgspec.structs.replace(message, tool_calls=()))] if message.text else []
                return b",".join([*text, *map(_call, calls)])
            case ToolResults(results=results):
                return b",".join(map(_result, results))
            case SystemMessage() | AssistantMessage():
                return _CHAT.encode(message)
            case _:
                assert_never(message)

    def body(self, call: ModelCall) -> list[bytes]:
        sampling = call.sampling or _TALK
        if b'"id_slot"' not in sampling:
            sampling += b',"id_slot":%d' % TALK_SLOT
        limit, prefix = min(call.max_output or MAX_OUTPUT, MAX_OUTPUT), call.prefix
        if is_session(prefix):
            prefix = Prefix(prefix.system, b"")
        return _CHAT.body(
            msgspec.structs.replace(call, prefix=prefix, sampling=sampling, max_output=limit, reasoning=None)
        )


class _TokenScore(msgspec.Struct, gc=False):
    logprob: float | None = None


class _Scores(msgspec.Struct, gc=False):
    content: list[_TokenScore] | None = None


class _ScoredChoice(msgspec.Struct, gc=False):
    logprobs: _Scores | None = None


class _ScoredChunk(msgspec.Struct, gc=False):
    choices: list[_ScoredChoice] | None = None


_decode_scores = msgspec.json.Decoder(_ScoredChunk).decode


class LocalReader(ChatReader):
    """Reads the probabilities of tokens too, where a call has asked for them."""

    def read_event(self, event: bytes, answer: AnswerDecoder) -> None:
        before = answer.text_pieces
        super().read_event(event, answer)
        if answer.text_pieces == before or b'"logprobs":{' not in event:
            return
        choices = _decode_scores(event).choices or [_ScoredChoice()]
        scores = choices[0].logprobs.content if choices[0].logprobs is not None else None
        found = [score.logprob for score in scores or () if score.logprob is not None]
        if found:
            answer.score_text(math.exp(min(found)))


def _file(file: File) -> bytes:
    return _note(_Source.FILE, attached_text(file))


def _words(part: Part) -> Part:
    if isinstance(part, File) and part.rest:  # these models cannot read on
        if part.is_message:
            return Text(attached_text(part))
        return msgspec.structs.replace(part, beginning=UNSET, rest=UNSET)
    return Text(_split_piped(part.text)[0]) if isinstance(part, Text) else part


def _split_piped(text: str) -> tuple[str, str]:
    """Return the words of a message, and the text that `talaria ask` has put behind them from its stdin."""
    words, begin, piped = text.partition("\n\n<stdin>\n")
    return (words, piped.removesuffix("\n</stdin>")) if begin and piped.endswith("\n</stdin>") else (text, "")


def _call(call: ToolCall) -> bytes:
    return _note(_Source.CALL, f"{_CALLS}{call.name} {call.arguments or '{}'}]")


def _result(result: ToolResult) -> bytes:
    text, rest = result.text[:MAX_RESULT], len(result.text) - MAX_RESULT
    cut = f"\n[{rest} more characters]" if rest > 0 else ""
    if result.outcome is ToolOutcome.OK:
        return _note(_Source.RESULT, f"[Result of {result.name}:]\n{text}{cut}")
    return _note(_Source.FAILURE, f"[{result.name} failed ({result.outcome}):]\n{text}{cut}")


def _note(source: _Source, text: str) -> bytes:
    return _encode({"role": "user", "name": source, "content": text})


# -- reading the history ------------------------------------------------------------------------------------

_SOURCES = frozenset(map(str, _Source))


class _Told(msgspec.Struct):
    role: str
    content: str = ""
    name: str = ""


class ToolStep(msgspec.Struct, frozen=True):
    """A tool call since the last request, and its result."""

    tool: str
    arguments: dict[str, object]
    text: str
    is_ok: bool


class LastRequest(msgspec.Struct, frozen=True):
    """The person's last words, the number of texts that came with them, and what was done since. `is_piped`:
    one of the texts came through a pipe, so it is not a file."""

    text: str = ""
    attached: int = 0
    steps: tuple[ToolStep, ...] = ()
    is_piped: bool = False

    @property
    def words(self) -> str:
        """The text for the router, which sees no attached text."""
        return f"{self.text} (a text is attached)" if self.attached else self.text


def read_request(chunks: Sequence[bytes]) -> LastRequest:
    """Return the last request of a conversation that `LocalChat.encode` has encoded."""
    calls, results = list[_Told](), list[_Told]()
    for chunk in reversed(chunks):
        told = msgspec.json.decode(b"[%b]" % chunk, type=list[_Told])
        calls[:0] = [each for each in told if each.name == _Source.CALL]
        results[:0] = [each for each in told if each.name in (_Source.RESULT, _Source.FAILURE)]
        words = [each.content for each in told if each.role == "user" and each.name not in _SOURCES]
        if words:
            files = sum(each.name in (_Source.FILE, _Source.PIPED) for each in told)
            steps = tuple(map(_step, calls, results))
            is_piped = any(each.name == _Source.PIPED for each in told)
            return LastRequest(words[-1].strip(), files, steps, is_piped)
    return LastRequest()


def _step(call: _Told, result: _Told) -> ToolStep:
    tool, _, arguments = call.content.removeprefix(_CALLS).removesuffix("]").partition(" ")
    try:
        given = msgspec.json.decode(arguments, type=dict[str, object])
    except DECODE_ERRORS:
        given = {}
    return ToolStep(tool, given, result.content.partition("\n")[2], result.name == _Source.RESULT)
