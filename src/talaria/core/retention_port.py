"""`RetentionStore`: the part of the store's port about forgetting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from talaria.core.files import Removal
from talaria.core.history import PruneProgress
from talaria.core.ids import ChatKey


class RetentionStore(Protocol):
    """Forgetting by rule, in small transactions. Unsettled turns and unsent replies are never touched."""

    async def forget_turns(self, after: int, before: float) -> PruneProgress:
        """Delete the content of turns that were settled before `before`: message, reply, steps, questions,
        outbox rows and key. The bare row stays, and `Store.turn_record` returns None for it.

        Looks at turns behind the position `after`; see `PruneProgress` for how to go on.
        """
        ...

    async def prune_ended(self, before: float) -> int:
        """Delete lasting sessions that ended before `before`, with all rows; return how many (up to 100).
        Those of jobs are left alone."""
        ...

    async def prune_runs(self, before: float) -> int:
        """Delete sessions of jobs that were not used since `before`, with all rows; return how many (up to
        100). The last one of each job that exists stays."""
        ...

    async def prune_specs(self) -> int:
        """Delete specs that no session uses; return how many (up to 100)."""
        ...

    async def purge_deleted(self) -> bool:
        """Delete some rows of deleted sessions. Return whether there may be more."""
        ...

    async def removals(self, place: str = "") -> Sequence[Removal]:
        """Return files of deleted sessions that are to be removed from the disk, up to 100. With `place`,
        leave out those of chats whose files are in another place."""
        ...

    async def mentioned_results(self, chat_key: ChatKey) -> frozenset[str]:
        """Return the paths of saved results that the logs of the chat's sessions name. A branch names those
        of the session that it was made from."""
        ...

    async def forget_removals(self, done: Sequence[int]) -> None:
        """Forget these removals: their files are gone, or stay."""
        ...
