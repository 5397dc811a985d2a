"""The model contract, over the scripted model in process and over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from contracts.model_suite import ModelSuite, Subject
from support.scripted_model import ScriptedModel
from support.waiting import until
from talaria.core.specs import TextDelta, ThoughtDelta
from talaria.models.anthropic_messages import AnthropicMessages
from talaria.models.endpoint import Endpoint
from talaria.models.openai_chat import OpenAIChat
from talaria.models.openai_responses import OpenAIResponses
from talaria.models.settings import ProviderSettings
from talaria.models.wire import Wire
from talaria.testing.model_server import ModelServer


class TestScriptedModel(ModelSuite):
    @pytest.fixture
    async def subject(self) -> AsyncIterator[Subject]:
        model = ScriptedModel()

        async def until_busy() -> None:
            await until(lambda: model.busy, pause=0)

        async def until_idle() -> None:
            assert model.busy == 0

        yield Subject(model, model.wire, until_busy, until_idle)
        assert model.busy == 0


class TestEndpoint(ModelSuite):
    wire: Wire = OpenAIChat()

    @pytest.fixture
    async def subject(self) -> AsyncIterator[Subject]:
        async with ModelServer() as server:
            endpoint = Endpoint(
                "scripted", ProviderSettings(server.base_url, api_key="sk-test-key"), self.wire
            )

            async def until_busy() -> None:
                await server.until(lambda: server.requests > 0)

            async def until_idle() -> None:
                assert endpoint.reading().busy == 0
                await server.until(lambda: not server.answering)

            yield Subject(endpoint, endpoint.wire, until_busy, until_idle)
            assert endpoint.reading().busy == 0
            await endpoint.close()
            await server.until(lambda: not server.connections)


class TestResponses(TestEndpoint):
    wire = OpenAIResponses()

    async def test_thoughts_come_apart_from_the_text(self, subject: Subject) -> None:
        completion, deltas = await subject.complete("[[think hmm]] [[reply yes]]")
        assert deltas == [ThoughtDelta("hmm"), TextDelta("yes")]
        assert [thought.text for thought in completion.message.reasoning] == ["hmm", ""]


class TestAnthropic(TestEndpoint):
    wire = AnthropicMessages()

    async def test_thoughts_come_apart_from_the_text(self, subject: Subject) -> None:
        completion, deltas = await subject.complete("[[think hmm]] [[reply yes]]")
        assert deltas == [ThoughtDelta("hmm"), TextDelta("yes")]
        assert [(thought.field, thought.text) for thought in completion.message.reasoning] == [
            ("thinking", "hmm")
        ]
