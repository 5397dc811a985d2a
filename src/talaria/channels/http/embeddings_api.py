"""`/v1/embeddings`: passed through to the provider of the model."""

from __future__ import annotations

import asyncio

import msgspec

from talaria.channels.http.api_calls import ApiCalls, check_utf8
from talaria.channels.http.request import ClientDisconnected, Request
from talaria.channels.http.response import Response
from talaria.core.errors import BadRequest, OverBudget
from talaria.core.tasks import stop, wait_first

_encode = msgspec.json.Encoder().encode


class EmbeddingRequest(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    input: msgspec.Raw


class EmbeddingApi:
    def __init__(self, calls: ApiCalls) -> None:
        self._gateway = calls.gateway
        self._agent_name = calls.agent_name
        self._max_body = calls.max_body

    async def create(self, request: Request) -> Response:
        """Answer with the provider's own answer. The call ends if the client leaves.

        Raises `BadRequest` for a model without embeddings, and `OverBudget` while a cap is set: the prices of
        embeddings are not known, so their costs could not be counted.
        """
        body, rest = await request.json_and_rest(EmbeddingRequest, self._max_body)
        check_utf8((body.input, *rest.values()))
        gateway = self._gateway
        choice = gateway.catalog.resolve(body.model)
        if body.model == self._agent_name or not gateway.providers.has_embeddings(choice.provider):
            raise BadRequest(
                f"In the field `model`: {body.model[:100]} makes no embeddings.",
                "Name a model for embeddings as provider/model, of a provider with an API of OpenAI's form.",
                param="model",
            )
        if gateway.budgets.caps:
            raise OverBudget(
                "Embeddings are refused while a cap of [budgets] is set: their costs are not counted.",
                "Call the provider directly.",
            )
        sent = _encode({"model": choice.model, "input": body.input, **rest})
        call = asyncio.ensure_future(gateway.providers.embed(choice.provider, choice.model, sent))
        try:
            await wait_first(asyncio.wait((call,)), request.wait_disconnect())
            if not call.done():
                raise ClientDisconnected
            return Response(call.result())
        finally:
            await stop(call)
