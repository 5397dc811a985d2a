"""The model contract, over the scripted model in process and over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from contracts.model_suite import ModelSuite, Subject
from talaria.models.endpoint import Endpoint, EndpointSettings
from talaria.models.openai_chat import OpenAIChat
from talaria.testing.model_server import ModelServer
from talaria.testing.scripted_model import ScriptedModel


class TestScriptedModel(ModelSuite):
    @pytest.fixture
    async def subject(self) -> AsyncIterator[Subject]:
        model = ScriptedModel()

        async def until_busy() -> None:
            while not model.busy:
                await asyncio.sleep(0)

        async def until_idle() -> None:
            assert model.busy == 0

        yield Subject(model, model.wire, until_busy, until_idle)
        assert model.busy == 0


class TestEndpoint(ModelSuite):
    @pytest.fixture
    async def subject(self) -> AsyncIterator[Subject]:
        async with ModelServer() as server:
            endpoint = Endpoint(
                EndpointSettings("scripted", server.base_url, key="sk-test-key"), OpenAIChat()
            )

            async def until_busy() -> None:
                await server.until(lambda: server.requests > 0)

            async def until_idle() -> None:
                assert endpoint.busy == 0
                await server.until(lambda: not server.answering)

            yield Subject(endpoint, endpoint.wire, until_busy, until_idle)
            assert endpoint.busy == 0
            await endpoint.close()
            await server.until(lambda: not server.connections)
