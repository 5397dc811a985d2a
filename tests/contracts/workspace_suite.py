"""What every `Workspaces` must do. `tests/workspace/test_contract.py` runs it over each."""

from __future__ import annotations

from pathlib import Path

from talaria.core.ids import ChatAddress, ChatKey, SessionId
from talaria.core.ports import WorkspaceHandle, Workspaces

A, B = SessionId("ses_a"), SessionId("ses_b")


def chat(name: str) -> ChatKey:
    return ChatAddress("main", "test", "dm", name).key()


async def give_back(handle: WorkspaceHandle) -> None:
    rest = handle.release()
    if rest is not None:
        await rest


class WorkspaceSuite:
    """Fixtures: `workspaces`, and `place`, the folder that all their folders are in."""

    def test_opening_touches_no_disk(self, workspaces: Workspaces, place: Path) -> None:
        handle = workspaces.open(A, chat("one"))
        assert handle.session_id == A
        assert not handle.folder.exists()
        assert list(place.iterdir()) == []

    def test_files_are_the_chats(self, workspaces: Workspaces, place: Path) -> None:
        first, second = workspaces.open(A, chat("one")), workspaces.open(B, chat("one"))
        assert first.folder == second.folder, "also after /new"
        elsewhere = workspaces.open(A, chat("two")).folder
        assert elsewhere != first.folder
        assert elsewhere.is_relative_to(place)

    async def test_what_is_in_the_folder_outlives_release_end_and_close(self, workspaces: Workspaces) -> None:
        handle = workspaces.open(A, chat("one"))
        handle.folder.mkdir(parents=True)
        note = handle.folder / "note.txt"
        note.write_text("keep me")
        await give_back(handle)
        again = workspaces.open(A, chat("one"))
        assert (again.folder / "note.txt").read_text() == "keep me"
        await give_back(again)
        await workspaces.end(A)
        await workspaces.close()
        assert note.read_text() == "keep me"

    async def test_an_end_needs_no_handle_and_hurts_none(self, workspaces: Workspaces) -> None:
        await workspaces.end(SessionId("ses_never_seen"))
        handles = [workspaces.open(A, chat("one")) for _ in range(2)]
        await workspaces.end(A)
        for handle in handles:
            await give_back(handle)
        await workspaces.end(A)

    async def test_an_ended_session_can_be_opened_again(self, workspaces: Workspaces) -> None:
        before = workspaces.open(A, chat("one"))
        folder = before.folder
        await give_back(before)
        await workspaces.end(A)
        again = workspaces.open(A, chat("one"))
        assert again.folder == folder
        await give_back(again)
