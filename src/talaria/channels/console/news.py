"""Messages that come to a terminal chat outside of its turns: results of jobs, reminders, `talaria send`."""

from __future__ import annotations

from talaria.channels.console.gateway_client import GatewayClient
from talaria.core.entries import Announcement, Entry
from talaria.core.ids import SessionId
from talaria.core.messages import AssistantMessage, UserMessage
from talaria.operations.sessions import EntriesQuery, SessionKey, read_entries, show_session

_EARLIER = 20  # entries that are looked at for messages that came before the chat was opened


class ChatNews:
    """Reads the log of the chat's session behind the last entry that it has seen."""

    def __init__(self, client: GatewayClient, session: str) -> None:
        self._client = client
        self._session = session
        self._id: SessionId | None = None
        self._seq = 0

    async def read(self) -> list[str]:
        """Return the messages that were sent since the last call; at the first call, those that nobody has
        answered. Raises `NotFound` before the chat's first message, and what the client raises."""
        session = await self._client.carry_out(show_session, SessionKey(self._session))
        head = int(session.revision.partition(".")[2])
        is_first = self._id is None
        if session.id != self._id:
            self._id, self._seq = session.id, max(0, head - _EARLIER) if is_first else 0
        texts: list[str] = []
        while self._seq < head:
            page = await self._client.carry_out(
                read_entries, EntriesQuery(x=session.id, after=str(self._seq))
            )
            for entry in page.entries:
                self._seq = entry.seq
                if isinstance(entry.body, Announcement):
                    texts.append(entry.body.text)
                elif is_first and _is_talk(entry):
                    texts.clear()
            if page.next is None:
                break
        return texts


def _is_talk(entry: Entry) -> bool:
    return isinstance(entry.body, UserMessage | AssistantMessage)
