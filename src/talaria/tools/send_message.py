"""`send_message`: the model writes to another chat of the person who asked.

A chat of another person, or a group, is written to only after an approval, and only for the gateway's owner.
"""

from __future__ import annotations

from talaria.access.people import People
from talaria.core.errors import BadRequest, NotFound, ToolError
from talaria.core.ids import ChatAddress, ChatKey, asking_chat
from talaria.core.people import OWNER
from talaria.core.sending import ChatMessage, MessageSender
from talaria.core.tools import ToolSpec
from talaria.core.turns import Sender
from talaria.tools.function import Arguments, parameters
from talaria.tools.tool import Tool, ToolContext

MAX_CHARS = 16_000

SEND_MESSAGE = ToolSpec(
    name="send_message",
    description=(
        "Write to another chat of this person, on any channel. `chat` is a chat's key "
        "(agent:NAME:CHANNEL:KIND:CHAT) or the name of a session. Your answer reaches this chat by itself."
    ),
    parameters=parameters(
        {
            "chat": {"type": "string", "maxLength": 500, "description": "The chat."},
            "text": {"type": "string", "maxLength": MAX_CHARS, "description": "The message."},
        },
        required=("chat", "text"),
    ),
    reaches_out=True,
    reads_files=False,
)


class SendMessageTool(Tool):
    """`sender` is None where tools are only described."""

    spec = SEND_MESSAGE

    def __init__(self, sender: MessageSender | None, people: People) -> None:
        self._sender = sender
        self._people = people

    def is_foreign(self, arguments: Arguments, chat_key: ChatKey, sender: Sender) -> bool:
        """Return whether the chat is not one of the person's own."""
        try:
            target = self._read(arguments["chat"]).key()
        except ToolError:
            return False  # it fails when it is run
        return self._people.of_chat(target) != self._people.of_sender(sender, asking_chat(chat_key))

    async def run(self, arguments: Arguments, context: ToolContext) -> str:
        if self._sender is None:
            raise ToolError("Nothing can be sent from here.")
        if self.is_foreign(arguments, context.chat_key, context.sender):
            self._check_owner(context)  # before the look-up, which would tell whether the chat exists
        try:
            key = await self._sender.find_chat(self._read(arguments["chat"]).key())
        except NotFound as error:
            raise ToolError(error.user_text, error.hint) from error
        if key == context.chat_key:
            raise ToolError("That is this chat.", "Your answer reaches it by itself.")
        is_untrusted = await context.trust.is_tainted()
        message = ChatMessage(
            key, arguments["text"], context.sender, (), f"{context.turn_id}.{context.call_id}", is_untrusted
        )
        sent = await self._sender.send(message)
        return f"Sent to {key}, as {sent.turn.id}."

    def _check_owner(self, context: ToolContext) -> None:
        """Only the owner writes to other people's chats. `CallGate` has seen to the approval."""
        if self._people.of_sender(context.sender, asking_chat(context.chat_key)) != OWNER:
            raise ToolError(
                "That chat is not one of this person's chats.", "Write to the person's own chats only."
            )

    def _read(self, chat: str) -> ChatAddress:
        if self._sender is None:
            raise ToolError("Nothing can be sent from here.")
        try:
            return self._sender.read_chat(chat)
        except BadRequest as error:
            raise ToolError(error.user_text, error.hint) from error
