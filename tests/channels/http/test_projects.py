"""A chat that works on a project's folder, chosen over HTTP."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from support.gateway import Api, in_process
from talaria.core.errors import BadRequest
from talaria.core.ids import ChatKey
from talaria.testing.model_server import ModelServer
from talaria.workspace.places import ChatFolders

WRITE = '[[call write_file {"path": "made.txt", "content": "by the agent"}]][[reply ok]]'


@pytest.fixture
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
    return folder


async def test_a_chat_works_on_the_projects_folder_and_on_its_own_again(api: Api, project: Path) -> None:
    chosen = await api.post("/api/sessions/site/project", {"folder": str(project)})
    assert chosen["folder"] == str(project)
    assert (await api.say("site", WRITE))["reply"] == "ok"
    assert (project / "made.txt").read_text() == "by the agent"
    assert (project / "made.txt").stat().st_uid == project.stat().st_uid
    await api.say("other", WRITE)
    assert (api.gateway.chat_folder(ChatKey(chosen["chat_key"]))) == project
    back = await api.post("/api/sessions/site/project", {})
    assert Path(back["folder"]).parent == api.gateway.home.files
    await api.say("site", '[[call write_file {"path": "own.txt", "content": "x"}]][[reply ok]]')
    assert not (project / "own.txt").exists()
    assert (Path(back["folder"]) / "own.txt").exists()


async def test_files_of_a_project_keep_their_modes_and_new_ones_follow_the_umask(
    api: Api, project: Path
) -> None:
    for name, mode in (("run.sh", 0o755), ("secret.txt", 0o644)):
        (project / name).write_text("old\n")
        (project / name).chmod(mode)
    await api.post("/api/sessions/site/project", {"folder": str(project)})
    edit = '[[call edit_file {"path": "run.sh", "old": "old", "new": "new"}]]'
    write = '[[call write_file {"path": "%s", "content": "new\\n"}]]'
    before = os.umask(0o022)
    try:
        said = edit + write % "secret.txt" + write % "made/here.txt" + "[[reply ok]]"
        assert (await api.say("site", said))["reply"] == "ok"
    finally:
        os.umask(before)
    names = ("run.sh", "secret.txt", "made", "made/here.txt")
    modes = [stat.S_IMODE((project / name).stat().st_mode) for name in names]
    assert modes == [0o755, 0o644, 0o755, 0o644]
    assert (project / "run.sh").read_text() == (project / "made/here.txt").read_text() == "new\n"


async def test_a_choice_outlasts_the_gateway(tmp_path: Path, model: ModelServer, project: Path) -> None:
    async with in_process(tmp_path, model) as api:
        await api.post("/api/sessions/site/project", {"folder": str(project)})
    async with in_process(tmp_path, model) as api:
        await api.say("site", WRITE)
    assert (project / "made.txt").exists()


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("relative", "is not an absolute path"),
        ("/no/such/folder", "There is no folder /no/such/folder."),
        ("/", "contains a folder of the gateway, or lies in it"),
        ("{home}", "contains a folder of the gateway, or lies in it"),
        ("{home}/files", "contains a folder of the gateway, or lies in it"),
        ("{home}/..", "contains a folder of the gateway, or lies in it"),
        ("/usr", "/usr is a folder of the system."),
        ("/dev/..", "contains a folder of the gateway, or lies in it"),
        ("a\0b", "is not an absolute path"),
    ],
)
async def test_a_folder_that_cannot_be_a_project_is_refused(api: Api, folder: str, says: str) -> None:
    home = api.gateway.home.path
    (home / "files").mkdir(exist_ok=True)
    body = {"folder": folder.format(home=home)}
    refused = await api.post("/api/sessions/site/project", body, 400)
    assert says in refused["error"]["message"]
    assert not (home / "projects").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only a gateway of root's could run commands as root")
async def test_a_folder_of_roots_is_refused_before_a_command_is(api: Api, project: Path) -> None:
    os.chown(project, 0, 0)
    refused = await api.post("/api/sessions/site/project", {"folder": str(project)}, 400)
    assert "belongs to root" in refused["error"]["message"]
    assert f"chown -R nobody {project}" in refused["error"]["hint"]
    assert not (api.gateway.home.path / "projects").exists()
    with pytest.raises(BadRequest, match="belongs to root"):
        ChatFolders(api.gateway.home.path, str(project))


def test_a_chat_that_moves_takes_its_files_and_its_choice_along(tmp_path: Path, project: Path) -> None:
    folders = ChatFolders(tmp_path)
    old, new = ChatKey("agent:main:telegram:group:-1"), ChatKey("agent:main:telegram:group:-100")
    folders(old).mkdir(parents=True)
    (folders(old) / "note").write_text("x")
    folders.move(old, new)
    assert (folders(new) / "note").read_text() == "x"
    folders.choose(new, str(project))
    folders.move(new, old)
    assert (folders(old), folders(new).exists()) == (project, False)
    assert project.is_dir()


def test_a_project_of_the_configuration_is_every_chats_that_has_no_other(
    tmp_path: Path, project: Path
) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    other.mkdir()
    if os.geteuid() == 0:
        os.chown(other, 65534, 65534)
    folders = ChatFolders(home, str(project))
    assert folders(ChatKey("one")) == folders(ChatKey("two")) == project
    folders.choose(ChatKey("two"), str(other))
    assert (folders(ChatKey("one")), folders(ChatKey("two"))) == (project, other)
