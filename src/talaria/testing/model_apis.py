"""The APIs that the model server speaks, by their address: how each is read, answered and refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from talaria.core.messages import TokenUsage
from talaria.testing.answers import error_body, stream_events, whole_answer
from talaria.testing.anthropic_answers import messages_error, stream_message, whole_message
from talaria.testing.anthropic_requests import (
    check_headers,
    read_messages_loosely,
    read_messages_strictly,
)
from talaria.testing.chat_requests import ChatRequest, read_fast, read_leniently, read_strictly
from talaria.testing.responses_answers import stream_response, whole_response
from talaria.testing.responses_requests import read_responses_leniently, read_responses_strictly
from talaria.testing.script import Act


class ModelApi(msgspec.Struct, frozen=True):
    """`read_strictly` and `read_loosely` raise `BadChatRequest`.

    `stream` gives the server-sent events of an act and whether the connection is lost after them, `whole` the
    answer to a request that did not ask for a stream, both from (act, id, model, usage); `refuse` gives an
    error's body from (message, kind). `check_headers` raises `BadChatRequest` too.
    """

    id_prefix: str
    read_strictly: Callable[[bytes], ChatRequest]
    read_loosely: Callable[[bytes], ChatRequest]
    stream: Callable[[Act, str, str, TokenUsage], tuple[list[bytes], bool]]
    whole: Callable[[Act, str, str, TokenUsage], bytes]
    refuse: Callable[[str, str], bytes] = error_body
    check_headers: Callable[[Mapping[str, str]], None] = lambda headers: None


def _read_chat_loosely(body: bytes) -> ChatRequest:
    return read_fast(body) or read_leniently(body)


APIS: Mapping[str, ModelApi] = {
    "/v1/chat/completions": ModelApi(
        "chatcmpl-", read_strictly, _read_chat_loosely, stream_events, whole_answer
    ),
    "/v1/responses": ModelApi(
        "resp_", read_responses_strictly, read_responses_leniently, stream_response, whole_response
    ),
    "/v1/messages": ModelApi(
        "msg_",
        read_messages_strictly,
        read_messages_loosely,
        stream_message,
        whole_message,
        messages_error,
        check_headers,
    ),
}
