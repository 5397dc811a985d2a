"""The items of `/v1/responses`: input items as our messages, and messages as output items.

An assistant message of ours is up to three kinds of items in a row: a reasoning item, a message, function
calls. The ids of output items name the turn that made them, so a later request can refer to an item of a
stored response by its id alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from talaria.channels.http.request import invalid_field, quoted
from talaria.channels.http.sealed_reasoning import SealedReasoning, open_reasoning
from talaria.core.errors import BadRequest
from talaria.core.ids import TURN_PREFIX, TurnId
from talaria.core.messages import (
    AssistantMessage,
    Image,
    Message,
    Part,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    ToolResults,
    UserMessage,
)

REASONING, MESSAGE, CALL, OUTPUT = "rs", "msg", "fc", "fco"  # how the ids of items begin
_RESPONSE = "resp_"
_ITEM_ID = re.compile(r"(rs|msg|fc)_([0-9a-z]{26})_([0-9]{1,4})")
_encode = msgspec.json.Encoder().encode

# -- ids --------------------------------------------------------------------------------------------------


def response_id(turn_id: TurnId) -> str:
    return _RESPONSE + turn_id.removeprefix(TURN_PREFIX)


def turn_of(response: str) -> TurnId | None:
    """Return the turn of a response, or None for a text that is no response's id."""
    found = re.fullmatch(r"resp_([0-9a-z]{26})", response)
    return TurnId(TURN_PREFIX + found[1]) if found else None


def item_id(kind: str, turn_id: TurnId, n: int) -> str:
    """Return the id of the turn's output item `n` of this kind."""
    return f"{kind}_{turn_id.removeprefix(TURN_PREFIX)}_{n}"


class ItemRef(NamedTuple):
    """An output item by the parts of its id."""

    kind: str
    turn_id: TurnId
    n: int

    @classmethod
    def parse(cls, text: str | None) -> ItemRef | None:
        found = _ITEM_ID.fullmatch(text or "")
        return cls(found[1], TurnId(TURN_PREFIX + found[2]), int(found[3])) if found else None


# -- input items ------------------------------------------------------------------------------------------


class InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    text: str


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str


class PlainText(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class Refusal(msgspec.Struct, tag_field="type", tag="refusal"):
    refusal: str


class InputImage(msgspec.Struct, tag_field="type", tag="input_image"):
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class InputFile(msgspec.Struct, tag_field="type", tag="input_file"):
    pass


class InputAudio(msgspec.Struct, tag_field="type", tag="input_audio"):
    pass


ContentPart = InputText | OutputText | PlainText | Refusal | InputImage | InputFile | InputAudio
ItemContent = str | list[ContentPart]


class _Kind(msgspec.Struct):
    type: str = "message"
    role: str | None = None


class MessageItem(msgspec.Struct):
    role: Literal["user", "assistant", "system", "developer"]
    content: ItemContent
    id: str | None = None


class CallItem(msgspec.Struct):
    call_id: str
    name: str
    arguments: str


class OutputItem(msgspec.Struct):
    call_id: str
    output: ItemContent


class ThoughtPart(msgspec.Struct):
    text: str


class ReasoningItem(msgspec.Struct):
    id: str | None = None
    summary: list[ThoughtPart] = []
    content: list[ThoughtPart] | None = None
    encrypted_content: str | None = None


class ReferenceItem(msgspec.Struct):
    id: str


InputItem = MessageItem | CallItem | OutputItem | ReasoningItem | ReferenceItem
_DECODERS: Mapping[str, msgspec.json.Decoder[InputItem]] = {
    "message": msgspec.json.Decoder(MessageItem),
    "function_call": msgspec.json.Decoder(CallItem),
    "function_call_output": msgspec.json.Decoder(OutputItem),
    "reasoning": msgspec.json.Decoder(ReasoningItem),
    "item_reference": msgspec.json.Decoder(ReferenceItem),
}
_decode_kind = msgspec.json.Decoder(_Kind).decode


def decode_items(raw_items: Sequence[msgspec.Raw]) -> list[InputItem]:
    """Raise `BadRequest` for an item that is malformed or of a kind that the gateway does not take."""
    items = []
    for n, raw in enumerate(raw_items):
        try:
            kind = _decode_kind(raw).type
            if (decoder := _DECODERS.get(kind)) is None:
                raise BadRequest(
                    f"In the field `input[{n}].type`: items of the type {quoted(kind)} are not taken here.",
                    f"Send {', '.join(_DECODERS)}.",
                )
            items.append(decoder.decode(raw))
        except msgspec.DecodeError as error:
            raise invalid_field(str(error), f"input[{n}]") from None
    return items


def references(items: Sequence[InputItem]) -> list[ItemRef]:
    """Return the output items of stored responses that these items refer to. Raises `BadRequest` for a
    reference that can be none.

    The id of a reasoning item counts as a reference too: the stored thought is whole, and the item is not.
    """
    found = []
    for n, item in enumerate(items):
        match item:
            case ReferenceItem(id=id):
                if (ref := ItemRef.parse(id)) is None:
                    raise no_such_item(n, id)
                found.append(ref)
            case ReasoningItem(id=id):
                if (ref := ItemRef.parse(id)) is not None and ref.kind == REASONING:
                    found.append(ref)
    return found


def referred_size(ref: ItemRef, answer: AssistantMessage) -> int:
    """Return how many characters a reference brings into the conversation."""
    if ref.kind == REASONING:
        return sum(len(thought.raw) for thought in answer.reasoning)
    if ref.kind == MESSAGE:
        return len(answer.text)
    return len(answer.tool_calls[ref.n].arguments) if ref.n < len(answer.tool_calls) else 0


def no_such_item(n: int, item: str) -> BadRequest:
    return BadRequest(
        f"In the field `input[{n}].id`: there is no stored item {quoted(item)}.",
        "Send the item itself; responses with `store: false` are not kept.",
    )


# -- input items as messages ------------------------------------------------------------------------------


class Context:
    """Puts messages together from items, in their order.

    Neighbouring items of the assistant become one message. The outputs of its calls stand right behind it,
    wherever they were among the items. `stored` are the answers of stored responses by turn. `pending` are
    the calls of the response that this input continues; their outputs come first.
    """

    def __init__(
        self,
        items: Sequence[InputItem],
        stored: Mapping[TurnId, AssistantMessage],
        pending: tuple[ToolCall, ...] = (),
    ) -> None:
        self._stored = stored
        self._messages: list[Message] = []
        self._text: list[str] = []
        self._thoughts: list[Reasoning] = []
        self._thinker = ("", "")  # the provider and model of the thoughts, if they are known
        self._calls: list[ToolCall] = []
        self._outputs = _outputs(items)
        if pending:
            self._messages.append(self._results(pending))
        for n, item in enumerate(items):
            self._take(n, item)
        self._flush()
        for n, item in self._outputs.values():
            raise BadRequest(
                f"In the field `input[{n}].call_id`: {item.call_id!r} is no call of this conversation.",
                "Send the function_call item too, or the response that made it as `previous_response_id`.",
            )

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._messages)

    def _take(self, n: int, item: InputItem) -> None:
        match item:
            case MessageItem(role="assistant", content=content):
                self._say(_text(content, n))
            case MessageItem(role="user", content=content):
                self._flush()
                self._messages.append(UserMessage(_parts(content, f"input[{n}].content")))
            case MessageItem(role=role, content=content):
                self._flush()
                self._messages.append(SystemMessage(_text(content, n), role))
            case CallItem():
                self._calls.append(ToolCall(item.call_id, item.name, item.arguments))
            case ReasoningItem():
                self._think(item)
            case ReferenceItem(id=id):
                self._refer(n, id)

    def _say(self, text: str) -> None:
        if self._calls or self._text:
            self._flush()
        self._text.append(text)

    def _think(self, item: ReasoningItem) -> None:
        if self._calls or self._text or self._thoughts:
            self._flush()
        ref = ItemRef.parse(item.id)
        if ref is not None and (answer := self._stored.get(ref.turn_id)) is not None:
            self._recall(answer)
        elif (sealed := open_reasoning(item.encrypted_content)) is not None:
            self._recall(sealed)
        elif text := "\n\n".join(part.text for part in (*item.summary, *(item.content or ()))):
            self._thoughts.append(Reasoning("reasoning_content", text, _encode(text).decode()))

    def _recall(self, answer: AssistantMessage | SealedReasoning) -> None:
        """Take the reasoning of an answer as it was. Another model is not sent it."""
        self._thoughts += answer.reasoning
        self._thinker = (answer.provider, answer.model)

    def _refer(self, n: int, name: str) -> None:
        ref = ItemRef.parse(name)
        answer = self._stored.get(ref.turn_id) if ref is not None else None
        if ref is None or answer is None:
            raise no_such_item(n, name)
        if ref.kind == REASONING and answer.reasoning:
            self._think(ReasoningItem(name))
        elif ref.kind == MESSAGE and answer.text:
            self._say(answer.text)
        elif ref.kind == CALL and ref.n < len(answer.tool_calls):
            self._calls.append(answer.tool_calls[ref.n])
        else:
            raise no_such_item(n, name)

    def _flush(self) -> None:
        """End the assistant's message, if there is one. Thoughts that led to nothing are left out."""
        calls = tuple(self._calls)
        if self._text or calls:
            text, (provider, model) = "".join(self._text), self._thinker
            thoughts = tuple(self._thoughts)
            self._messages.append(AssistantMessage(text, calls, thoughts, model, provider=provider))
        if calls:
            self._messages.append(self._results(calls))
        self._text, self._thoughts, self._calls, self._thinker = [], [], [], ("", "")

    def _results(self, calls: tuple[ToolCall, ...]) -> ToolResults:
        results = []
        for call in calls:
            if (found := self._outputs.pop(call.id, None)) is None:
                raise BadRequest(
                    f"In the field `input`: the function call {call.id!r} ({call.name}) has no output.",
                    "Send one function_call_output item for each call.",
                )
            n, item = found
            results.append(ToolResult.of(call.id, call.name, _parts(item.output, f"input[{n}].output")))
        return ToolResults(tuple(results))


def _outputs(items: Sequence[InputItem]) -> dict[str, tuple[int, OutputItem]]:
    outputs: dict[str, tuple[int, OutputItem]] = {}
    for n, item in enumerate(items):
        if isinstance(item, OutputItem):
            if item.call_id in outputs:
                raise BadRequest(
                    f"In the field `input[{n}].call_id`: {item.call_id!r} has its output already.",
                    "Send one function_call_output item for each call.",
                )
            outputs[item.call_id] = (n, item)
    return outputs


def last_user_parts(items: Sequence[InputItem]) -> tuple[Part, ...]:
    """Return the last user message, which is all that a session takes. Raises `BadRequest` without one."""
    for n in range(len(items) - 1, -1, -1):
        item = items[n]
        if isinstance(item, MessageItem) and item.role == "user":
            parts = _parts(item.content, f"input[{n}].content")
            if not any(not isinstance(part, Text) or part.text.strip() for part in parts):
                raise BadRequest(f"In the field `input[{n}].content`: it is empty.", "Write something.")
            return parts
    raise BadRequest(
        "In the field `input`: there is no message with the role user.",
        "With X-Talaria-Session the last user message is what the session is sent.",
    )


def spoken_before(items: Sequence[InputItem]) -> Iterator[UserMessage | str]:
    """Yield the messages of the user and the texts of the assistant before the last message of the user."""
    spoken = [(n, item) for n, item in enumerate(items) if isinstance(item, MessageItem)]
    last = max(n for n, item in spoken if item.role == "user")
    for n, item in spoken:
        if n < last and item.role == "user":
            yield UserMessage(_parts(item.content, f"input[{n}].content"))
        elif n < last and item.role == "assistant":
            yield _text(item.content, n)


def _text(content: ItemContent, n: int) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for i, part in enumerate(content):
        match part:
            case InputText(text=text) | OutputText(text=text) | PlainText(text=text) | Refusal(refusal=text):
                texts.append(text)
            case _:
                raise BadRequest(
                    f"In the field `input[{n}].content[{i}]`: only text can stand here.",
                    "Images belong into a message with the role user.",
                )
    return "\n".join(texts)


def _parts(content: ItemContent, field: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),)
    return tuple(_part(part, f"{field}[{i}]") for i, part in enumerate(content))


def _part(part: ContentPart, field: str) -> Part:
    match part:
        case InputText(text=text) | OutputText(text=text) | PlainText(text=text) | Refusal(refusal=text):
            return Text(text)
        case InputImage(image_url=str(url)) if url.startswith(("https:", "data:image/")):
            return Image(url, part.detail)
        case InputImage():
            raise BadRequest(
                f"In the field `{field}.image_url`: it is neither https: nor data:image/….",
                "Send the image itself as a data: URL.",
            )
        case InputFile():
            raise BadRequest(f"In the field `{field}`: input_file is not taken here.", "Send its text.")
        case InputAudio():
            raise BadRequest(f"In the field `{field}`: input_audio is not taken here.", "Send text.")


# -- messages as items ------------------------------------------------------------------------------------


def output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def refusal_part(text: str) -> dict[str, Any]:
    return {"type": "refusal", "refusal": text}


def message_item(
    id: str, text: str, status: str = "completed", *, is_refusal: bool = False
) -> dict[str, Any]:
    content = [refusal_part(text) if is_refusal else output_text(text)]
    return {"type": "message", "id": id, "status": status, "role": "assistant", "content": content}


def reasoning_item(id: str, text: str) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": text}]
    return {"type": "reasoning", "id": id, "summary": summary, "encrypted_content": None}


def call_item(id: str, call: ToolCall, status: str = "completed") -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": id,
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": status,
    }


def thought_text(message: AssistantMessage) -> str:
    return "".join(thought.text for thought in message.reasoning)


def output_items(
    message: AssistantMessage, turn_id: TurnId, status: str = "completed"
) -> list[dict[str, Any]]:
    """Return the items of an answer: reasoning, message, calls. The text of an answer without calls is a
    message even if it is empty."""
    items = []
    if thought := thought_text(message):
        items.append(reasoning_item(item_id(REASONING, turn_id, 0), thought))
    if message.text or not message.tool_calls:
        id, is_refusal = item_id(MESSAGE, turn_id, 0), message.refused is True
        items.append(message_item(id, message.text, status, is_refusal=is_refusal))
    for n, call in enumerate(message.tool_calls):
        items.append(call_item(item_id(CALL, turn_id, n), call))
    return items


def input_items(messages: Sequence[Message], turn_id: TurnId) -> list[dict[str, Any]]:
    """Return the items of a stored input, oldest first."""
    items: list[dict[str, Any]] = []

    def name(kind: str) -> str:
        return f"{item_id(kind, turn_id, len(items))}i"

    for message in messages:
        match message:
            case SystemMessage(text=text, role=role):
                content = [{"type": "input_text", "text": text}]
                items.append({"type": "message", "id": name(MESSAGE), "role": role, "content": content})
            case UserMessage(parts=parts):
                content = list(map(_content, parts))
                items.append({"type": "message", "id": name(MESSAGE), "role": "user", "content": content})
            case AssistantMessage():
                if thought := thought_text(message):
                    items.append(reasoning_item(name(REASONING), thought))
                if message.text or not message.tool_calls:
                    items.append(message_item(name(MESSAGE), message.text))
                for call in message.tool_calls:
                    items.append(call_item(name(CALL), call))
            case ToolResults(results=results):
                for result in results:
                    output = list(map(_content, result.parts)) if result.parts else result.text
                    items.append(
                        {
                            "type": "function_call_output",
                            "id": name(OUTPUT),
                            "call_id": result.call_id,
                            "status": "completed",
                            "output": output,
                        }
                    )
    return items


def _content(part: Part) -> dict[str, Any]:
    match part:
        case Text(text=text):
            return {"type": "input_text", "text": text}
        case Image(url=url, detail=detail):
            return {"type": "input_image", "image_url": url, "detail": detail or "auto"}
        case _:
            return {"type": "input_text", "text": f"[file {part.name}]"}
