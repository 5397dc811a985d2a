"""Resources: a path's methods and the boundary where every exception becomes an answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from starlette.types import Receive, Scope, Send

from talaria.channels.http.answers import Answer, Reply, error_answer, refusal
from talaria.channels.http.calls import Call
from talaria.channels.http.errors import INTERNAL, ClientGone, Refused
from talaria.core.errors import ErrorInfo, StoreError, TalariaError
from talaria.gateway import Webhook
from talaria.observe.metrics import Metrics

_log = logging.getLogger("talaria.http")
_GONE = 499
_FORGED = ErrorInfo("forbidden", "This address is for a chat platform only.")

Endpoint = Callable[[Call], Awaitable[Reply]]


class Resource:
    """An ASGI app for one route; `pattern` is its name in the metrics. Methods that `endpoints` does not name
    go to `otherwise`, or are refused."""

    def __init__(
        self,
        pattern: str,
        endpoints: Mapping[str, Endpoint],
        metrics: Metrics,
        otherwise: Endpoint | None = None,
    ) -> None:
        self._pattern = pattern
        self._otherwise = otherwise
        self._endpoints = dict(endpoints)
        if "GET" in endpoints:
            self._endpoints["HEAD"] = endpoints["GET"]
        self._allow = ", ".join(sorted(self._endpoints)).encode()
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call: Call = scope["call"]
        try:
            status = await self._answer(call)
        except ClientGone:
            status = _GONE
        except asyncio.CancelledError:
            # The server stops and does not wait any longer: the connection is closed already.
            status = _GONE
        self._metrics.request_answered(self._pattern, status)

    async def _answer(self, call: Call) -> int:
        reply: Reply
        try:
            reply = await self._endpoint(call)(call)
            await reply.respond(call)
        except ClientGone:
            raise
        except Exception as error:
            if isinstance(error, StoreError) or not isinstance(error, TalariaError):
                _log.exception("%s %s failed", call.method, self._pattern)
            reply = refusal(error) if isinstance(error, TalariaError) else error_answer(INTERNAL)
            if not call.has_started:  # else the stream ends here, visibly cut
                await reply.respond(call)
        return reply.status

    def _endpoint(self, call: Call) -> Endpoint:
        endpoint = self._endpoints.get(call.method, self._otherwise)
        if endpoint is None:
            raise Refused(
                405,
                "wrong_method",
                f"{call.scope['path']} does not know {call.method}.",
                f"It knows {self._allow.decode()}.",
                ((b"allow", self._allow),),
            )
        return endpoint


def webhook_endpoint(hook: Webhook) -> Endpoint:
    """Return the endpoint for a platform's webhook. It answers 200 once the hook has taken the request."""

    async def receive(call: Call) -> Reply:
        if not hook.is_genuine(call.headers):
            return error_answer(_FORGED, 403)
        await hook.receive(await call.body(hook.max_body))
        return Answer(b"{}")

    return receive


async def not_found(call: Call) -> Reply:
    raise Refused(
        404,
        "not_found",
        f"There is nothing at {call.scope['path']}.",
        "docs/http-api.md lists what there is.",
    )


async def not_yet(call: Call) -> Reply:
    raise Refused(
        501,
        "not_implemented",
        f"{call.scope['path']} is not in this version yet.",
        "docs/http-api.md lists what there is.",
    )
