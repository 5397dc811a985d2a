"""The APIs that the model server speaks, by their address: how each is read, answered and refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from talaria.core.messages import TokenUsage, ToolCall
from talaria.testing.anthropic_answers import messages_error, tell_message, whole_message
from talaria.testing.anthropic_requests import check_headers, read_messages
from talaria.testing.chat_answers import DONE, error_body, tell_completion, whole_completion, write_chunk
from talaria.testing.chat_requests import read_loosely, read_strictly
from talaria.testing.model_requests import ChatRequest
from talaria.testing.responses_answers import tell_response, whole_response, write_numbered
from talaria.testing.responses_requests import read_responses
from talaria.testing.script import Act, Fault
from talaria.testing.telling import Event, Telling, write_event

_BROKEN = b'data: {"choices":[{"index":0,"delta":{"content":"oh\n\n'
_HALF = ToolCall("call_half", "terminal", '{"comm')


class ModelApi(msgspec.Struct, frozen=True):
    """`tell` and `whole` give an answer from (act, id, model, usage): as events, and to a request that did
    not ask for a stream. `refuse` gives an error's body from (message, kind). The readers and `check_headers`
    raise `BadChatRequest`; a request is read loosely for benchmarks."""

    id_prefix: str
    read: Callable[[bytes], ChatRequest]
    tell: Callable[[Act, str, str, TokenUsage], Telling]
    whole: Callable[[Act, str, str, TokenUsage], bytes]
    write: Callable[[Event, int], bytes] = write_event
    end: bytes = b""
    refuse: Callable[[str, str], bytes] = error_body
    check_headers: Callable[[Mapping[str, str]], None] = lambda headers: None
    read_loosely: Callable[[bytes], ChatRequest] | None = None

    def stream(self, act: Act, answer_id: str, model: str, usage: TokenUsage) -> tuple[list[bytes], bool]:
        """The server-sent events of `act`, and whether the connection is lost after them."""
        if act.fault is Fault.HALF_CALL:
            act = msgspec.structs.replace(act, calls=(*act.calls, _HALF))
        telling = self.tell(act, answer_id, model, usage)
        events, end = telling.opening, b""
        match act.fault:
            case Fault.MALFORMED:
                end = _BROKEN
            case Fault.ERROR_IN_STREAM:
                events = [*events, telling.error]
            case Fault.CUT:
                events = [*events, *telling.body_with(act.cut_after)]
            case Fault.HALF_CALL:
                events = [*events, *telling.body_with_all_pieces()]
            case _:
                events, end = [*events, *telling.body, *telling.closing], self.end
        written = [self.write(event, n) for n, event in enumerate(events)]
        return [*written, end] if end else written, act.fault in (Fault.CUT, Fault.HALF_CALL)


APIS: Mapping[str, ModelApi] = {
    "/v1/chat/completions": ModelApi(
        "chatcmpl-",
        read_strictly,
        tell_completion,
        whole_completion,
        write_chunk,
        DONE,
        read_loosely=read_loosely,
    ),
    "/v1/responses": ModelApi("resp_", read_responses, tell_response, whole_response, write_numbered),
    "/v1/messages": ModelApi(
        "msg_",
        read_messages,
        tell_message,
        whole_message,
        refuse=messages_error,
        check_headers=check_headers,
    ),
}
