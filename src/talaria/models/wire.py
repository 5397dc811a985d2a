"""The common ground of wire formats: the `Wire` protocol, the decoder of answers, and shared encodings.

A wire format is one stateless object (`Wire`). For each answer it makes an `AnswerDecoder`, which owns the
bytes, and an `EventReader`, which knows the events of the format and tells the decoder what they mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from talaria.core.events import ThoughtEnded
from talaria.core.messages import (
    AssistantMessage,
    File,
    Image,
    Message,
    Part,
    Reasoning,
    Text,
    TokenUsage,
    ToolCall,
)
from talaria.core.specs import (
    CallDelta,
    Completion,
    ModelCall,
    ModelDelta,
    Prefix,
    RefusalTextDelta,
    ScoredTextDelta,
    TextDelta,
    ThoughtDelta,
)
from talaria.core.tools import ToolSpec
from talaria.core.units import format_size
from talaria.models.answer_budget import MAX_DOCUMENT_BYTES, MAX_ID, SMALL_DOCUMENT, AnswerBudget
from talaria.models.failures import DECODE_ERRORS, ProviderErrors
from talaria.net.sse import SseDataParser, SseOverflow

# -- the token counts that a provider reports -------------------------------------------------------------


MAX_HIDDEN = 1 << 18
"""Tokens of reasoning that a provider may charge without showing them; no model thinks for longer."""
INPUT_SLACK = 1 << 10
"""Tokens that a provider adds to a request, such as its own instructions about tools."""
IMAGE_TOKENS = 16 << 10
"""No model counts more for one image. A link to an image is short, so bytes say nothing about it."""

_MAX_BYTES = 16 << 10
_LONGEST_COUNT = 1 << 53
_IMAGE_MARKS = (b'"image_url":', b'"type":"image"')
_decode = msgspec.json.Decoder(dict[str, Any] | None).decode


def read_counts(raw: msgspec.Raw) -> dict[str, Any] | None:
    """Return the members of a usage object; None if it is missing, null or unreadable.

    An answer is not thrown away because of its bookkeeping.
    """
    if not 0 < len(raw) <= _MAX_BYTES:
        return None
    try:
        found: dict[str, Any] | None = _decode(raw)
    except DECODE_ERRORS:
        return None
    return found


def count(counts: object, name: str) -> int:
    """Return the member `name` of a decoded object if it is a whole number from 0 on, and 0 otherwise."""
    value = counts.get(name) if isinstance(counts, dict) else None
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or value <= 0:  # a bool is no count
        return 0
    return value if value < _LONGEST_COUNT else _LONGEST_COUNT


def clamp_usage(usage: TokenUsage, body: Iterable[bytes], sent: int, received: int) -> TokenUsage:
    """Return counts that are possible for a call: at most a token for each byte sent and received.

    `sent` is the length of `body`. Images count apart, and so does reasoning that is not shown. A part of a
    sum is not larger than the sum. Usage that is possible is returned unchanged.
    """
    most_input, most_output = sent + INPUT_SLACK, received
    hidden = min(usage.reasoning, usage.output, MAX_HIDDEN)
    if usage.input <= most_input and usage.output <= most_output + hidden:
        shown_input, shown_output = usage.input, usage.output
    else:
        if usage.input > most_input:
            most_input += IMAGE_TOKENS * sum(piece.count(mark) for piece in body for mark in _IMAGE_MARKS)
        shown_input = min(usage.input, most_input)
        shown_output = min(usage.output, most_output + hidden)
    cached = min(usage.cached, shown_input)
    possible = TokenUsage(
        shown_input,
        cached,
        shown_output,
        min(usage.reasoning, shown_output),
        min(usage.stored, shown_input - cached),
    )
    return usage if possible == usage else possible


# -- the common ground of wire formats --------------------------------------------------------------------


_CUTS = frozenset({"length", "content_filter"})  # reasons of answers that are not whole
_encode = msgspec.json.Encoder().encode


class Wire(Protocol):
    """The format in which a provider's API takes a conversation, and in which it answers. The encoding of a
    message does not depend on its position, so that the bytes of a request are a prefix of those of later
    requests."""

    name: str
    path: str  # of calls, below the provider's base URL
    list_path: str = "/models"

    def render_prefix(self, prompt: str, tools: Sequence[ToolSpec]) -> Prefix: ...

    def encode(self, message: Message) -> bytes:
        """Return one or more JSON objects, joined by commas."""
        ...

    def reader(self) -> EventReader:
        """Return a reader for one answer."""
        ...

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers that this API wants; `key` is empty for a provider without one."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    def body(self, call: ModelCall) -> list[bytes]:
        """Return the request body in pieces; their concatenation is one JSON object. The call's chunks are
        among the pieces as they are, so that a request does not hold a second copy of them."""
        ...

    def decoder(
        self, model: str, errors: ProviderErrors, budget: AnswerBudget | None = None
    ) -> AnswerDecoder:
        return AnswerDecoder(model, errors, self.reader(), budget or AnswerBudget(errors))


# -- reading answers ----------------------------------------------------------------------------------------


class EventReader(Protocol):
    """Reads the events of one answer. Every method may raise `answer.errors` and any of `DECODE_ERRORS`."""

    def read_event(self, event: bytes, answer: AnswerDecoder) -> None: ...

    def read_body(self, body: bytes, answer: AnswerDecoder) -> None:
        """Read an answer that is one JSON object instead of a stream."""
        ...

    def finish(self, answer: AnswerDecoder) -> tuple[tuple[ToolCall, ...], tuple[Reasoning, ...]]:
        """Return the tool calls and the reasoning of a complete answer."""
        ...


class AnswerDecoder(msgspec.Struct, eq=False):
    """Decodes one answer as its bytes arrive: a stream of events, or one JSON object.

    - `has_started`: the model has produced text, a thought or a part of a call. Keep-alives do not count.
    - `is_complete`: the model has said that it is finished. A connection that breaks later does no harm.
    - `is_closed`: the provider has said that no more bytes follow.

    The endpoint calls `feed`, `end` and `completion`, which raise `ModelError` and nothing else. It feeds at
    most `SLICE_BYTES` at a time, because `feed` works through all of them at once. The reader calls the other
    methods. `budget` counts what is kept. With `tells_parts` the pieces of tool calls, and
    thoughts that are signed, are told as they come.
    """

    _model: str
    errors: ProviderErrors
    _reader: EventReader
    budget: AnswerBudget
    has_started: bool = False
    is_complete: bool = False
    is_closed: bool = False
    is_refusal: bool = False
    tells_parts: bool = False
    id: str = ""
    stop: str = ""  # in the words of `Completion.stop`; empty for the usual reason
    usage: TokenUsage = TokenUsage()
    _text: list[str] = []
    _length: int = 0
    _measured: int = 0
    _counted: int = 0
    _deltas: list[ModelDelta] = []
    _sse: SseDataParser = msgspec.field(default_factory=partial(SseDataParser, MAX_DOCUMENT_BYTES))
    _plain: list[bytes] | None = None  # the body of an answer that is not a stream
    _saw_first_byte: bool = False

    def feed(self, data: bytes) -> list[ModelDelta]:
        budget = self.budget
        budget.received = received = budget.received + len(data)
        if received >= budget.check_at:
            budget.unread, budget.lines = self._sse.unread, self._sse.lines
            self._check()
        if not self._saw_first_byte:
            if not (data := data.lstrip(b" \t\r\n")):
                return []
            self._saw_first_byte = True
            self._plain = [] if data.startswith(b"{") else None
        if self._plain is not None:
            self._plain.append(data)
            budget.hold(len(data))
            if budget.received > MAX_DOCUMENT_BYTES:
                raise budget.refused(f"is one object of more than {MAX_DOCUMENT_BYTES} bytes")
            return []
        try:
            return self._read(self._sse.feed(data))
        except SseOverflow as error:
            raise budget.refused(f"cannot be taken: {error}") from None

    def end(self) -> list[ModelDelta]:
        """Return the last deltas, after the last byte."""
        if self._plain is None:
            deltas = self._read(self._sse.flush())
            self.budget.unread = 0
            self._check()
            return deltas
        body = b"".join(self._plain)
        self._plain.clear()
        deltas = self._deltas = []
        self.budget.check_document(body)
        try:
            self._reader.read_body(body, self)
        except DECODE_ERRORS as error:
            raise self.errors.malformed(str(error)) from None
        self._check()
        return deltas

    def completion(self) -> Completion:
        """Return the whole answer, after `end`. Raises `ModelUnavailable` if the answer was cut off."""
        if not self.is_complete:
            raise self.errors.cut_off()
        try:
            calls, thoughts = self._reader.finish(self)
        except DECODE_ERRORS as error:
            raise self.errors.malformed(str(error)) from None
        message = AssistantMessage("".join(self._text), calls, thoughts, self._model)
        if self.is_refusal:
            message = msgspec.structs.replace(message, refused=True)
        if self.stop in _CUTS:
            message = msgspec.structs.replace(message, cut=self.stop)
        return Completion(message, self.usage, self.stop or ("tool_calls" if calls else "stop"))

    def output_bytes(self) -> int:
        """Return how many bytes of output arrived so far. All bytes count of an event that did not end, and
        of a whole answer that was not read."""
        if self._plain:
            return self.budget.received
        self._count_text()
        return self.budget.text_bytes() + self._sse.unread

    def _check(self) -> None:
        self._count_text()
        self.budget.check()

    def _count_text(self) -> None:
        """Count the text since the last call. Counting each piece by itself would cost more."""
        if self._counted < len(self._text):
            self.budget.count_texts(self._text[self._counted :])
            self._counted = len(self._text)

    def drop(self) -> None:
        """Let go of everything, after a call that failed. An exception may keep the decoder alive."""
        self._text, self._plain, self._deltas, self._counted = [], None, [], 0
        self._sse = SseDataParser()
        self._reader = type(self._reader)()

    def _read(self, events: list[bytes]) -> list[ModelDelta]:
        deltas = self._deltas = []
        self.budget.pieces += len(events)
        try:
            for event in events:
                if self.is_closed:
                    break
                if len(event) > SMALL_DOCUMENT:
                    self.budget.check_document(event)
                self._reader.read_event(event, self)
        except DECODE_ERRORS as error:
            raise self.errors.malformed(str(error)) from None
        return deltas

    # -- for the reader

    def add_text(self, text: str) -> None:
        self.has_started = True
        self._text.append(text)
        self._deltas.append(TextDelta(text))

    def add_refusal(self, text: str) -> None:
        """Add a text in which the model declines. An answer is one or the other: its first piece decides."""
        self.is_refusal = not self._text or self.is_refusal
        self.add_text(text)
        if self.is_refusal:
            self._deltas[-1] = RefusalTextDelta(text)

    def score_text(self, probability: float) -> None:
        """Add the model's own probability to the last piece of text."""
        self._deltas[-1] = ScoredTextDelta(self._text[-1], probability)

    def tell_call(self, index: int, call_id: str, name: str, arguments: str) -> None:
        self._deltas.append(CallDelta(index, call_id, name, arguments))

    def end_thought(self, raw: str) -> None:
        self._deltas.append(ThoughtEnded(raw))

    def add_thought(self, text: str) -> None:
        self.has_started = True
        self.budget.keep(text)
        self._deltas.append(ThoughtDelta(text))

    def close(self) -> None:
        self.is_complete = self.is_closed = True

    @property
    def text_pieces(self) -> int:
        return len(self._text)

    def text_length(self) -> int:
        """Return the length of the text so far. Only the text since the last call is counted anew."""
        self._length += sum(map(len, self._text[self._measured :]))
        self._measured = len(self._text)
        return self._length

    def with_ids(self, calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
        """Give every call a unique id. A made-up id is a digest, so the same answer gets the same ids."""
        named: dict[str, ToolCall] = {}
        for n, call in enumerate(calls):
            if not call.name:
                raise self.errors.malformed("a tool call without a name")
            self.budget.check_name(call.name)
            if not call.id or call.id in named or len(call.id) > MAX_ID:
                seed = _encode((self.id, n, call.name, call.arguments))
                made = "call_" + hashlib.sha256(seed).hexdigest()[:24]
                call = msgspec.structs.replace(call, id=made)  # noqa: PLW2901
            named[call.id] = call
        return tuple(named.values())


# -- encodings that formats share ---------------------------------------------------------------------------

INTERRUPTED = "[interrupted]"


def part_text(part: Text | File) -> str:
    """Return the text for a part that is not sent as itself: a model is told where a file is."""
    if isinstance(part, Text):
        return part.text
    about = f"file {part.name} ({part.media_type}, {part.size} bytes) at {part.path}"
    if not part.rest:
        return f"[{about}]"
    goes_on = f'read_file("{part.path}", {part.rest}) reads on from here.'
    if part.is_message:
        begun = f"This was the beginning of a message of {part.size} bytes."
        return f"[{begun} All of it is in {part.path}: {goes_on}]"
    return f"[{about} begins:]\n{part.beginning}\n[{goes_on}]"


def attached_text(file: File) -> str:
    """Return what a model that cannot open the file is told: its text, or of a large one the beginning."""
    if file.text:
        return f"[The attached file {file.name} says:]\n{file.text}"
    size, no_tool = format_size(file.size), "there is no tool here to read the rest with"
    if file.is_message:
        return f"[This was the beginning of a message of {size}; {no_tool}.]"
    if file.beginning:
        return f"[The attached file {file.name} has {size}; {no_tool}. It begins:]\n{file.beginning}"
    return f"[file {file.name} ({file.media_type}, {size}): there is no tool here to open it with]"


def answer_text(message: AssistantMessage) -> str:
    """Return the text of an earlier answer, with a mark if it was interrupted."""
    if not message.interrupted:
        return message.text
    return f"{message.text}\n{INTERRUPTED}" if message.text else INTERRUPTED


def separated(chunks: Sequence[bytes]) -> list[bytes]:
    """Return the chunks with commas in between, as pieces of a body."""
    pieces = [b","] * max(0, 2 * len(chunks) - 1)
    pieces[::2] = chunks
    return pieces


def openai_prefix(prompt: str, tools: list[dict[str, Any]]) -> Prefix:
    system = _encode({"role": "system", "content": prompt}) if prompt else b""
    return Prefix(system, _encode(tools) if tools else b"")


def openai_content(
    given: Sequence[Part], text_type: str, image: Callable[[Image], dict[str, Any]], stamp: str = ""
) -> str | list[dict[str, Any]]:
    """Return a text, or a list of parts if there is an image. The time stamp stands first."""
    stamp = f"[{stamp}] " if stamp else ""
    texts = [part_text(part) for part in given if not isinstance(part, Image)]
    if len(texts) == len(given):
        return stamp + "\n".join(texts)
    parts = [
        image(part) if isinstance(part, Image) else {"type": text_type, "text": part_text(part)}
        for part in given
    ]
    if stamp and parts[0]["type"] == text_type:
        parts[0]["text"] = stamp + parts[0]["text"]
    elif stamp:
        parts.insert(0, {"type": text_type, "text": stamp.rstrip()})
    return parts


# -- `Model` and `Models`: the interfaces through which agents call models --------------------------------


class Model(Protocol):
    """An endpoint at which models are called.

    `complete` streams deltas to `sink` and returns the whole answer. It raises `ModelError`, of the kind
    `EndpointResting` if no call was made. When it is cancelled, it closes its connection before it ends.
    Before any exception leaves it, `sink` gets `CallCut` if a byte of the request may have been sent.
    """

    @property
    def max_retries(self) -> int:
        """The number of further tries for a call that failed for a passing reason."""
        ...

    @property
    def retry_within(self) -> float:
        """The seconds after the first try within which every further try must begin its answer."""
        ...

    @property
    def is_resting(self) -> bool:
        """Whether a call would be refused now without being made, because too many have failed in a row."""
        ...

    async def complete(self, call: ModelCall, sink: Callable[[ModelDelta], None]) -> Completion: ...


class Models(Protocol):
    """The models of this process by provider name. Raises `NoModel` for a provider that cannot be used."""

    def wire(self, provider: str) -> Wire:
        """Return the format of the provider's requests, without connecting to it."""
        ...

    @property
    def is_prepared(self) -> bool:
        """Whether `get` may be called on the event loop; if not, call `prepare` first."""
        ...

    async def prepare(self) -> None: ...

    def get(self, provider: str) -> Model: ...

    def credential(self, provider: str) -> str:
        """Return the fingerprint of the provider's current secrets."""
        ...
