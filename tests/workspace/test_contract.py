"""The contract of workspaces over the real ones and the shipped fake, and what each has besides."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from contracts.workspace_suite import A, B, WorkspaceSuite, chat, give_back
from support.proved_sandbox import proved
from talaria.core.ids import SessionId
from talaria.testing.fake_workspaces import FakeWorkspace, FakeWorkspaces, ReleaseBehaviour
from talaria.workspace.folder import chat_folder
from talaria.workspace.shell import SessionCommands
from talaria.workspace.workspaces import ChatWorkspace, ChatWorkspaces


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path


class TestWorkspaceContract(WorkspaceSuite):
    @pytest.fixture(params=["real", "fake", "slow fake"])
    async def workspaces(self, request: pytest.FixtureRequest, place: Path) -> ChatWorkspaces:
        folder_of = partial(chat_folder, place)
        match request.param:
            case "real":
                return ChatWorkspaces(place, (), SessionCommands(await proved()))
            case "fake":
                return FakeWorkspaces(folder_of)
            case _:
                return FakeWorkspaces(folder_of, lambda: ReleaseBehaviour.SLOW)


@pytest.mark.parametrize("handle", [ChatWorkspace, FakeWorkspace])
def test_a_handle_has_no_method_that_ends_what_it_reaches(handle: type) -> None:
    offered = {name for name in vars(ChatWorkspace) if not name.startswith("_")}
    assert offered == {
        "session_id",
        "folder",
        "is_project",
        "places",
        "shell",
        "processes",
        "browser",
        "claim",
        "release",
    }
    for name in ("end", "close", "stop", "kill", "cleanup", "aclose", "__exit__", "__aexit__", "__del__"):
        assert not hasattr(handle, name), name


class Shells:
    """Belongings that note what they are told."""

    def __init__(self, told: list[str], fails: bool = False) -> None:
        self._told = told
        self._fails = fails

    async def end(self, session_id: SessionId) -> None:
        await asyncio.sleep(0)
        if self._fails:
            raise OSError("no such process")
        self._told.append(f"end {session_id}")

    async def close(self) -> None:
        self._told.append("close")


async def test_what_sessions_have_beside_files_is_ended_with_them_and_let_go_at_the_close(
    tmp_path: Path,
) -> None:
    told: list[str] = []
    workspaces = ChatWorkspaces(tmp_path, [Shells(told), Shells(told, fails=True), Shells(told)])
    await give_back(workspaces.open(A, chat("one")))
    assert told == [], "a handle tells nobody"
    with pytest.raises(ExceptionGroup) as raised:
        await workspaces.end(A)
    assert len(raised.value.exceptions) == 1
    assert told == [f"end {A}"] * 2, "the one that failed kept no other from its end"
    told.clear()
    await workspaces.close()
    assert told == ["close"] * 3


async def test_an_end_of_a_fake_session_stops_what_runs_and_keeps_what_can_be_resumed(tmp_path: Path) -> None:
    workspaces = FakeWorkspaces(partial(chat_folder, tmp_path))
    ended, other = workspaces.open(A, chat("one")).session, workspaces.open(B, chat("one")).session
    for session in (ended, other):
        session.cwd, session.page = "/src", "https://example.org"
        session.environment["LANG"] = "C"
        session.start("make watch")
    process = ended.processes[0]
    await workspaces.end(A)
    assert (process.is_running, ended.processes, ended.page) == (False, [], None)
    assert (ended.cwd, ended.environment) == ("/src", {"LANG": "C"})
    assert (other.processes[0].is_running, other.page) == (True, "https://example.org")
