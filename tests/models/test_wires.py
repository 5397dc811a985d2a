"""The contract of wire formats, over those that there are, with answers of the server that tests trust."""

from __future__ import annotations

from contracts.wire_suite import CALLS, TEXT, WireSuite
from talaria.core.messages import TokenUsage
from talaria.models.anthropic_messages import CACHE_MARK, AnthropicMessages
from talaria.models.openai_chat import OpenAIChat
from talaria.models.openai_responses import OpenAIResponses
from talaria.models.providers import WIRES
from talaria.testing.model_api import ScriptedReply
from talaria.testing.model_server import APIS
from talaria.testing.script import ScriptedAnswer


class _OverTheWire(WireSuite):
    def events(self) -> list[bytes]:
        """With a thought in front."""
        answer = ScriptedAnswer(text=TEXT, thought="hm …", calls=CALLS)
        reply = ScriptedReply(answer, "x_1", "m", TokenUsage(10, 5, 7, 2))
        found, _ = APIS[f"/v1{self.wire.path}"].stream(reply)
        return [event + b"\n\n" for event in b"".join(found).split(b"\n\n") if event]


class TestChat(_OverTheWire):
    wire = OpenAIChat()
    own_thoughts = ("reasoning_content", "reasoning_details")


class TestResponses(_OverTheWire):
    wire = OpenAIResponses()


class TestAnthropic(_OverTheWire):
    wire = AnthropicMessages()
    own_thoughts = ("thinking",)

    def bare(self, body: bytes) -> bytes:
        return body.replace(CACHE_MARK, b"")


def test_every_format_is_here() -> None:
    tested = {kind.wire.name for kind in (TestChat, TestResponses, TestAnthropic)}
    assert tested == set(WIRES)
