"""What every `ChatWorkspaces` must do. `tests/workspace/test_contract.py` runs it over each."""

from __future__ import annotations

from pathlib import Path

from talaria.core.ids import ChatAddress, ChatKey, SessionId
from talaria.core.shells import ShellCommand, ShellEnd
from talaria.workspace.workspaces import ChatWorkspace, ChatWorkspaces

QUICK = 100.0  # seconds, more than any of these commands needs
A, B = SessionId("ses_a"), SessionId("ses_b")


def chat(name: str) -> ChatKey:
    return ChatAddress("main", "test", "dm", name).key()


async def give_back(handle: ChatWorkspace) -> None:
    rest = handle.release()
    if rest is not None:
        await rest


async def run(handle: ChatWorkspace, text: str) -> tuple[str, ShellEnd]:
    """Run a command and return its output and its end."""
    pieces = []

    async def sink(piece: bytes) -> None:
        pieces.append(piece)

    end = await handle.shell.run(ShellCommand(text, QUICK), sink)
    return b"".join(pieces).decode(), end


class WorkspaceSuite:
    """Fixtures: `workspaces`, and `place`, the folder that all their folders are in."""

    def test_opening_touches_no_disk(self, workspaces: ChatWorkspaces, place: Path) -> None:
        handle = workspaces.open(A, chat("one"))
        assert handle.session_id == A
        assert not handle.folder.exists()
        assert list(place.iterdir()) == []

    def test_files_are_the_chats(self, workspaces: ChatWorkspaces, place: Path) -> None:
        first, second = workspaces.open(A, chat("one")), workspaces.open(B, chat("one"))
        assert first.folder == second.folder, "also after /new"
        elsewhere = workspaces.open(A, chat("two")).folder
        assert elsewhere != first.folder
        assert elsewhere.is_relative_to(place)

    async def test_what_is_in_the_folder_outlives_release_end_and_close(
        self, workspaces: ChatWorkspaces
    ) -> None:
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

    async def test_an_end_needs_no_handle_and_hurts_none(self, workspaces: ChatWorkspaces) -> None:
        await workspaces.end(SessionId("ses_never_seen"))
        handles = [workspaces.open(A, chat("one")) for _ in range(2)]
        await workspaces.end(A)
        for handle in handles:
            await give_back(handle)
        await workspaces.end(A)

    async def test_an_ended_session_can_be_opened_again(self, workspaces: ChatWorkspaces) -> None:
        before = workspaces.open(A, chat("one"))
        folder = before.folder
        await give_back(before)
        await workspaces.end(A)
        again = workspaces.open(A, chat("one"))
        assert again.folder == folder
        await give_back(again)

    async def test_a_command_begins_in_the_folder_and_tells_its_exit_code(
        self, workspaces: ChatWorkspaces
    ) -> None:
        handle = workspaces.open(A, chat("one"))
        out, end = await run(handle, "pwd")
        assert (Path(out.strip()), end.code) == (handle.folder, 0)
        _, end = await run(handle, "exit 7")
        assert (end.code, end.cwd, end.timed_out) == (7, str(handle.folder), False)
        await give_back(handle)

    async def test_the_shells_state_outlives_the_handle_and_the_end_of_the_session(
        self, workspaces: ChatWorkspaces
    ) -> None:
        handle = workspaces.open(A, chat("one"))
        await run(handle, "export WHERE=here\ncd /usr")
        await give_back(handle)
        again = workspaces.open(A, chat("one"))
        assert (await run(again, "pwd\necho $WHERE"))[0] == "/usr\nhere\n"
        await give_back(again)
        await workspaces.end(A)
        resumed = workspaces.open(A, chat("one"))
        state = await resumed.shell.state()
        assert (state.cwd, state.changed) == ("/usr", {"WHERE": "here"})
        assert (await run(resumed, "pwd"))[0] == "/usr\n"
        await give_back(resumed)

    async def test_a_shell_belongs_to_its_session(self, workspaces: ChatWorkspaces) -> None:
        first, second = workspaces.open(A, chat("one")), workspaces.open(B, chat("one"))
        await run(first, "cd /usr\nexport WHERE=here")
        assert (await run(second, "pwd\necho $WHERE"))[0] == f"{second.folder}\n\n"

    async def test_nothing_is_kept_of_a_session_that_is_forgotten(self, workspaces: ChatWorkspaces) -> None:
        handle = workspaces.open(A, chat("one"))
        await run(handle, "cd /usr")
        await give_back(handle)
        assert list(await workspaces.kept()) == [A]
        await workspaces.forget(A)
        assert list(await workspaces.kept()) == []
        again = workspaces.open(A, chat("one"))
        assert (await again.shell.state()).cwd == ""
        await give_back(again)
