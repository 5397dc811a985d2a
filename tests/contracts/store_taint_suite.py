"""What every store promises about tainted folders."""

from __future__ import annotations

from contracts.store_orders import CHAT, accepting
from talaria.core.ids import ChatKey
from talaria.core.sessions import FolderName, Taint, folder_names
from talaria.store.store import Store

ONE, OTHER = FolderName("chat:one"), FolderName("project:/srv/p")


class StoreTaintSuite:
    async def test_the_first_mark_of_a_folder_stays_until_a_person_clears_it(self, store: Store) -> None:
        assert await store.taints.find([ONE, OTHER]) is None
        await store.taints.mark([ONE], 5.0, "web_fetch")
        await store.taints.mark([OTHER, ONE], 7.0, "network")
        assert await store.taints.find([ONE]) == Taint(5.0, "web_fetch")
        assert await store.taints.find([OTHER]) == Taint(7.0, "network")
        assert await store.taints.find([OTHER, ONE]) == Taint(5.0, "web_fetch")
        await store.taints.clear([ONE])
        assert await store.taints.find([ONE]) is None
        assert await store.taints.find([ONE, OTHER]) == Taint(7.0, "network")

    async def test_project_folders_in_each_other_share_their_taint(self, store: Store) -> None:
        outer, inner, other = (FolderName(f"project:{path}") for path in ("/srv/p", "/srv/p/sub", "/srv/p2"))
        for tainted, asked in ((outer, inner), (inner, outer)):
            await store.taints.mark([tainted], 5.0, "network")
            assert await store.taints.find([FolderName("chat:one"), asked]) == Taint(5.0, "network")
            assert await store.taints.find([other]) is None
            await store.taints.clear([asked])
            assert await store.taints.find([tainted]) is None

    async def test_a_chat_that_gets_another_key_keeps_its_taint(self, store: Store) -> None:
        await store.accept(accepting("hello"))
        await store.taints.mark(folder_names(CHAT, None), 5.0, "sent file")
        new = ChatKey(f"{CHAT}-moved")
        assert await store.move_chat(CHAT, new)
        assert await store.taints.find(folder_names(CHAT, None)) is None
        assert await store.taints.find(folder_names(new, None)) == Taint(5.0, "sent file")
