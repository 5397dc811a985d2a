"""A session: one conversation of a chat. A chat can have had many."""

from __future__ import annotations

import msgspec

from talaria.core.entries import Revision
from talaria.core.ids import ChatKey, SessionId, SpecId


class Session(msgspec.Struct, frozen=True):
    """The row of a session. `spec_id` is None until a model could be resolved."""

    id: SessionId
    chat_key: ChatKey
    created_at: float
    updated_at: float
    revision: Revision
    spec_id: SpecId | None = None
    title: str = ""
    ephemeral: bool = False
    ended_at: float | None = None
