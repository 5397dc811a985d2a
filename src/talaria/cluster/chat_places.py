"""The places of chats as this member knows them: which have files here, and which have lost some."""

from __future__ import annotations

from talaria.core.bounded import BoundedDict
from talaria.core.cluster import ChatPlace, Here
from talaria.core.errors import StoreError, ToolError
from talaria.core.ids import ChatKey, asking_chat
from talaria.store.store import ClusterStore

_KEPT = 20_000  # chats that are remembered


class ChatPlaces:
    """Remembers the places of chats, so that the database is asked once for each chat.

    It stays right as long as this process is a member: others take a chat from its place only when the place
    is gone. So `forget` is to be called when this process was out of the cluster.
    """

    def __init__(self, store: ClusterStore, here: Here) -> None:
        self._store = store
        self.here = here
        self._claimed: BoundedDict[ChatKey, None] = BoundedDict(_KEPT)
        self._whole: BoundedDict[ChatKey, None] = BoundedDict(_KEPT)  # chats that have lost nothing

    async def claim(self, chat_key: ChatKey, *, is_tied: bool = False) -> None:
        """Note that files of a chat are in this place, before there are any. Files in a folder that all
        members see tie no chat, unless it `is_tied` by something else, such as a background process.

        Raises `ToolError` if they are in another place, or if that cannot be found out.
        """
        key = asking_chat(chat_key)
        if key in self._claimed or (self.here.has_shared_files and not is_tied):
            return
        try:
            place = await self._store.place_chat(key, self.here.place)
        except StoreError as error:
            text = f"It cannot be noted now that files of this chat are on this machine: {error.user_text}"
            raise ToolError(text, "Try again in a moment.") from error
        if place and place != self.here.place:
            raise ToolError(
                "The files of this chat are on another machine, whose gateway has to answer.",
                "Try again in a moment, or when that gateway is back.",
            )
        if place:
            self._claimed[key] = None

    def note_accepted(self, chat_key: ChatKey, *, has_loss: bool) -> None:
        """The order that accepted a message of the chat has looked whether the chat lost something."""
        if has_loss:
            self._whole.pop(chat_key, None)
        else:
            self._whole[chat_key] = None

    async def find_loss(self, chat_key: ChatKey) -> ChatPlace | None:
        """Return what the chat has lost and its log does not tell yet. Raises `StoreError`."""
        if chat_key in self._whole:
            return None
        found = await self._store.chat_place(chat_key)
        if not found.lost:
            self._whole[chat_key] = None
        return found if found.lost else None

    async def forget_loss(self, chat_key: ChatKey, lost: str) -> None:
        """The log of the chat tells of the loss. Raises `StoreError`."""
        await self._store.forget_loss(chat_key, lost)
        self._whole[chat_key] = None

    def note_lost(self, chat_key: ChatKey) -> None:
        """This member has taken the chat over from a place that is gone."""
        self._whole.pop(chat_key, None)
        self._claimed.pop(asking_chat(chat_key), None)

    def forget(self) -> None:
        self._claimed.clear()
        self._whole.clear()
