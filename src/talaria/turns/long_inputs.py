"""Messages that are too long for the model's window. They are kept whole in the chat's folder, and the model
gets their beginning, their size, and how to read on."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Final, Protocol

import msgspec

from talaria.core.errors import TalariaError
from talaria.core.ids import ChatKey, TurnId
from talaria.core.messages import File, Text
from talaria.core.specs import AgentSpec
from talaria.core.turns import Inbound
from talaria.store.store import Store
from talaria.turns.agents import Agents
from talaria.turns.questions import MAX_ANSWER


class MessageKeeper(Protocol):
    async def keep_message(self, key: ChatKey, name: str, text: str, shown_bytes: int) -> tuple[Text, File]:
        """Keep a message for a chat under a name. Return its beginning, of at most so many bytes, and its
        file. Raises `UploadTooLarge` and `StoreError`."""
        ...


USUAL_WINDOW: Final = 128_000  # tokens, of a model whose window is not known
_LEAST_BYTES: Final = 4096  # always fit
_LEAST_SHOWN: Final = 2048
_MOST_SHOWN: Final = 16 << 10


def most_bytes(window: int) -> int:
    """Return how many bytes of a message fit. Text has two to four bytes for each token, so a message takes
    at most a quarter of the window."""
    return max(window // 2, _LEAST_BYTES)


class LongInputs:
    def __init__(self, store: Store, agents: Agents, keeper: MessageKeeper) -> None:
        self._store = store
        self._agents = agents
        self._keeper = keeper

    async def shorten(self, inbound: Inbound, turn_id: TurnId, *, is_answer: bool = False) -> Inbound:
        """Return the message as the model gets it; the same one if it fits. A message that is sent again gets
        the same file. With `is_answer` it answers a question, and becomes the result of a tool.

        Raises `UploadTooLarge` if the chat's folder has no room, and `StoreError`.
        """
        text = inbound.text
        if len(text) * 4 <= _LEAST_BYTES or (size := len(text.encode(errors="replace"))) <= _LEAST_BYTES:
            return inbound
        most = most_bytes(await self._window(inbound))
        if is_answer:
            most = min(most, MAX_ANSWER)
        if size <= most:
            return inbound
        once = f"{inbound.sender.id}\n{inbound.key}" if inbound.key is not None else turn_id
        name = hashlib.sha256(f"{once}\n{text}".encode(errors="replace")).hexdigest()[:24]
        shown = min(max(most // 4, _LEAST_SHOWN), _MOST_SHOWN)
        begun = await self._keeper.keep_message(inbound.chat_key, name, text, shown)
        others = (part for part in inbound.parts if not isinstance(part, Text))
        return msgspec.structs.replace(inbound, parts=(*begun, *others))

    async def _window(self, inbound: Inbound) -> int:
        """Return the window, in tokens, of the model that will answer, as far as it may be used."""
        window = USUAL_WINDOW
        with suppress(TalariaError):  # the turn will say why there is no model
            spec = await self._spec(inbound)
            window = self._agents.specs.abilities(spec.provider, spec.model).context or USUAL_WINDOW
        return min(window, self._agents.side_calls.settings().max_tokens)

    async def _spec(self, inbound: Inbound) -> AgentSpec:
        if inbound.model is None:
            session = await self._store.current_session(inbound.chat_key)
            if session is not None and session.ended_at is None and session.spec_id is not None:
                return (await self._agents.builder.pinned(session.spec_id)).spec
        return self._agents.specs.resolve(inbound.chat_key, inbound.model).spec
