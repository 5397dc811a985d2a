"""`send_message`: whose chats a model may write to."""

from __future__ import annotations

import pytest

from talaria.access.approvals import AskReason
from talaria.access.people import People
from talaria.access.settings import PersonSettings
from talaria.core.errors import BadRequest
from talaria.core.ids import ChatAddress, ChatKey
from talaria.core.ledger import ChatMessage, SentTurn
from talaria.core.messages import ToolCall
from talaria.core.turns import Sender
from talaria.tools.approvals import find_question
from talaria.tools.jobs import SendMessageTool

ANNA = Sender("7", "Anna")
OWNER = Sender("api", "API", is_operator=True)
HOME = ChatKey("agent:main:http:api:home")
OF_ANNA = ChatKey("agent:main:telegram:dm:7")
OF_BOB = ChatKey("agent:main:telegram:dm:8")
GROUP = ChatKey("agent:main:telegram:group:-5")


class Sink:
    """Takes no message."""

    def read_chat(self, name: str) -> ChatAddress:
        try:
            return ChatAddress.parse(ChatKey(name))
        except ValueError:
            raise BadRequest(f"{name!r} names no chat.") from None

    async def find_chat(self, name: str) -> ChatKey:
        return ChatKey(name)

    async def send(self, message: ChatMessage) -> SentTurn:
        raise AssertionError("nothing is sent here")


TOOL = SendMessageTool(Sink(), People({"anna": PersonSettings(("telegram:7", "slack:U7"))}))


@pytest.mark.parametrize(
    ("sender", "chat", "target", "is_asked"),
    [
        (ANNA, OF_ANNA, ChatKey("agent:main:slack:dm:U7"), False),
        (ANNA, GROUP, OF_ANNA, False),
        (ANNA, OF_ANNA, OF_BOB, True),
        (ANNA, OF_ANNA, GROUP, True),
        (ANNA, OF_ANNA, HOME, True),
        (OWNER, HOME, ChatKey("agent:main:http:api:work"), False),
        (OWNER, HOME, OF_ANNA, True),
        (ANNA, OF_ANNA, ChatKey("no chat"), False),  # the call fails when it is run
    ],
)
def test_only_a_chat_of_the_same_person_is_written_to_unasked(
    sender: Sender, chat: ChatKey, target: ChatKey, is_asked: bool
) -> None:
    call = ToolCall("c1", "send_message", f'{{"chat": "{target}", "text": "hello"}}')
    draft = find_question(TOOL, call, is_foreign=lambda given: TOOL.is_foreign(given, chat, sender))
    assert (draft is not None) is is_asked
    if draft is not None:
        assert AskReason.FOREIGN.value in draft.text


def test_content_from_outside_makes_every_message_a_question() -> None:
    call = ToolCall("c1", "send_message", f'{{"chat": "{OF_ANNA}", "text": "hello"}}')
    draft = find_question(TOOL, call, is_tainted=True)
    assert draft is not None
    assert AskReason.TAINTED.value in draft.text
