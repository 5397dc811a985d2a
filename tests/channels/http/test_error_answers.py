"""The status, the headers and the body of each error, and of each way in which a turn ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.gateway import Api
from talaria.channels.http.errors import error_response, nothing_at, status_of, turn_error
from talaria.channels.http.request import HttpError
from talaria.channels.http.response import json_response
from talaria.core.errors import BadRequest, ErrorInfo, NotFound, Overloaded
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.core.turns import Inbound, Sender, Turn, TurnState

CHAT = ChatKey("agent:main:http:api:one")


@pytest.mark.parametrize(
    ("info", "status"),
    [
        (ErrorInfo("not_found", "x"), 404),
        (ErrorInfo("unheard_of", "x"), 500),
        (ErrorInfo("model_refused", "x"), 502),
        (ErrorInfo("model_refused", "x", status=429), 429),
        (ErrorInfo("model_refused", "x", status=402), 402),
        (ErrorInfo("model_refused", "x", status=401), 502),
        (ErrorInfo("model_refused", "x", status=403), 502),
        (ErrorInfo("model_unavailable", "x", status=500), 503),
        (ErrorInfo("model_refused", "x", code="insufficient_quota"), 429),
        (ErrorInfo("model_unavailable", "x", code="insufficient_quota"), 503),
    ],
)
def test_the_status_follows_from_the_type_or_from_the_provider(info: ErrorInfo, status: int) -> None:
    assert status_of(info) == status


@pytest.mark.parametrize(
    ("error", "status", "kind", "wait"),
    [
        (BadRequest("Wrong.", "Mend it."), 400, "bad_request", None),
        (NotFound("Gone."), 404, "not_found", None),
        (Overloaded("Busy.", "Wait.", retry_after=2.4), 503, "overloaded", b"3"),
        (Overloaded("Busy.", "Wait.", retry_after=0.1), 503, "overloaded", b"1"),
        (ValueError("secret words"), 500, "internal", None),
    ],
)
def test_an_error_becomes_an_answer(error: Exception, status: int, kind: str, wait: bytes | None) -> None:
    answer = error_response(error)
    body = json.loads(answer.body)["error"]
    assert (answer.status, body["type"]) == (status, kind)
    assert dict(answer.headers).get(b"retry-after") == wait
    assert body["hint"]
    assert "secret" not in body["message"]
    assert answer.body.endswith(b"\n")


def test_an_error_with_its_own_status_and_headers_keeps_them() -> None:
    error = HttpError("wrong_method", "No.", "It knows GET.", ((b"allow", b"GET"),))
    answer = error_response(error)
    assert (answer.status, answer.headers) == (405, ((b"allow", b"GET"),))
    assert json_response({"a": 1}, 201, ((b"x", b"y"),)).headers == ((b"x", b"y"),)
    assert json_response({"a": 1}, 201).body == b'{"a":1}\n'


class Asked:
    """A request as far as its path and its host go."""

    def __init__(self, path: str) -> None:
        self.path = path

    def header(self, name: bytes) -> str:
        return "h:1" if name == b"host" else ""


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/nothing", "docs/http-api.md lists what there is."),
        ("/chat/completions", "ends in /v1 here: set base_url to http://h:1/v1."),
        ("/v1/v1/models", "The path has /v1 twice"),
        ("/v1/audio/speech", "Here are chat/completions, responses, messages, models and embeddings"),
        ("/v1/completions", "Send the prompt as a message to /v1/chat/completions"),
        ("/v1/files/1", "POST /api/files"),
    ],
)
def test_an_unknown_path_says_what_was_probably_meant(path: str, hint: str) -> None:
    request: Any = Asked(path)
    error = nothing_at(request)
    assert error.user_text == f"There is nothing at {path}."
    assert hint in error.hint


@pytest.mark.parametrize(
    ("state", "error", "kind"),
    [
        (TurnState.DONE, None, None),
        (TurnState.FAILED, ErrorInfo("empty_answer", "Empty."), None),
        (TurnState.FAILED, ErrorInfo("model_refused", "No."), "model_refused"),
        (TurnState.FAILED, None, "internal"),
        (TurnState.CANCELLED, None, "cancelled"),
        (TurnState.RUNNING, None, "draining"),
    ],
)
def test_a_turn_without_an_answer_says_why(
    state: TurnState, error: ErrorInfo | None, kind: str | None
) -> None:
    turn = Turn(
        TurnId("turn_1"), CHAT, SessionId("ses_1"), state, Inbound(CHAT, Sender("7"), ()), 0.0, error=error
    )
    found = turn_error(turn, ((b"x", b"y"),))
    assert (found and found.info().type) == kind
    if found is not None:
        assert (b"x", b"y") in found.headers
        assert found.user_text


async def test_clients_that_look_for_oauth_get_a_404(api: Api) -> None:
    """After a 401 MCP clients look at these places, and take another 401 for a broken server."""
    for path in ("oauth-protected-resource", "oauth-authorization-server/mcp", "openid-configuration"):
        url = f"{api.url}/.well-known/{path}"
        async with api.client.get(url, headers={"Authorization": ""}) as response:
            assert response.status == 404
