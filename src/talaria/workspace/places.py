"""The folders of chats and sessions: files, projects, homes, and what belongs to a session alone."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from talaria.core.errors import BadRequest, ToolError
from talaria.core.ids import ChatKey, SessionId
from talaria.workspace.folder import chat_folder, chat_name, files_folder
from talaria.workspace.rights import PRIVATE_FOLDER, make_folder, set_folder_mode
from talaria.workspace.sandbox.command import SandboxError, command_user, hand_over

NETWORK_FOLDER = "network"
_TMP, _PROCESSES = "tmp", "processes"


@dataclass(frozen=True, slots=True)
class SessionPlaces:
    """The folders that a session's commands work in. All paths are absolute and go through no link.

    `folder` has the files of the chat, or is a project's folder (`is_project`). `home` is `$HOME` inside the
    sandbox and lasts as long as the chat. `session` has what belongs to the session; commands see of it only
    `tmp`. With `shared`, the folder of `store.files`, the state of the shell is there, so that it moves to
    another gateway with the chat. Nothing is made before `make`.
    """

    folder: Path
    home: Path
    session: Path
    is_project: bool = False
    shared: Path | None = None

    @property
    def session_id(self) -> SessionId:
        return SessionId(unquote(self.session.name))

    @property
    def tmp(self) -> Path:
        """The temporary folder of the session's commands. It goes when the session ends."""
        return self.session / _TMP

    @property
    def shell_state(self) -> Path:
        """The file with the working directory and the environment. It stays until the session is deleted."""
        if self.shared is not None:
            return shared_shell(self.shared, self.session_id)
        return self.session / "shell.json"

    @property
    def processes(self) -> Path:
        """The folder of the background processes. It goes when the session ends."""
        return self.session / _PROCESSES

    @property
    def network(self) -> Path:
        """The folder of the session's sockets. It goes when the session ends."""
        return self.session / NETWORK_FOLDER

    def is_made(self) -> bool:
        """Return whether `make` has nothing to do. Blocks no longer than the start of a sandbox, which opens
        the same folders."""
        try:
            owners = {os.stat(each).st_uid for each in (self.folder, self.home, self.tmp)}  # noqa: PTH116
        except OSError:
            return False
        return os.geteuid() != 0 or (len(owners) == 1 and 0 not in owners)

    def make(self) -> None:
        """Make the folders that commands write, and give them to the commands' user. Blocks; cheap if they
        are there. A project's folder must exist and keeps its owner. Raises `ToolError`."""
        own = (self.home, self.tmp) if self.is_project else (self.folder, self.home, self.tmp)
        try:
            for folder in own:
                make_private(folder)
            if self.is_project and not self.folder.is_dir():
                raise ToolError(f"The project's folder {self.folder} is gone.", "Make it again.")
            if not self.is_project or self.folder.stat().st_uid:
                hand_over((self.folder, self.home, self.tmp))
        except OSError as error:
            text = f"The folders of the session cannot be made: {error.strerror}."
            raise ToolError(text, "Look at the disk and at the owner of the gateway's home.") from error


def session_places(
    home: Path,
    session_id: SessionId,
    chat_key: ChatKey,
    folder: Path,
    *,
    is_project: bool = False,
    shared: Path | None = None,
) -> SessionPlaces:
    """Return the places of a session. `home` is the gateway's and `shared` the folder of `store.files`, both
    with no link in their paths."""
    own_home = (shared or home) / f"homes/{chat_name(chat_key)}"
    return SessionPlaces(folder, own_home, session_folder(home, session_id), is_project, shared)


def session_folder(home: Path, session_id: SessionId) -> Path:
    """Return the folder of the things that belong to one session."""
    return home / f"sessions/{quote(session_id, safe='')}"


def shared_shell(shared: Path, session_id: SessionId) -> Path:
    """Return the file with the state of a session's shell in the folder of `store.files`."""
    return shared / "shells" / f"{quote(session_id, safe='')}.json"


def kept_sessions(home: Path, shared: Path | None = None) -> list[SessionId]:
    """Return the sessions that have a folder, or the state of a shell in `shared`. Blocks."""
    found: dict[SessionId, None] = {}
    with suppress(OSError):
        found |= {SessionId(unquote(each.name)): None for each in (home / "sessions").iterdir()}
    if shared is not None:
        with suppress(OSError):
            found |= {SessionId(unquote(each.stem)): None for each in (shared / "shells").glob("*.json")}
    return list(found)


def has_passing(folder: Path) -> bool:
    """Return whether a session's folder has something that does not outlive the session's end."""
    return any((folder / name).exists() for name in (_TMP, _PROCESSES, NETWORK_FOLDER))


def remove_passing(folder: Path) -> None:
    """Remove what does not outlive the session's end from its folder. Blocks. Background processes are gone
    already, unless they were started since, in the session that was resumed meanwhile."""
    for name in (_TMP, NETWORK_FOLDER):
        remove_tree(folder / name)
    with suppress(OSError):
        (folder / _PROCESSES).rmdir()
    with suppress(OSError):
        folder.rmdir()  # if nothing is kept


def make_private(folder: Path) -> None:
    """Make a folder and those above it, each for this user alone. Raises `OSError`."""
    if folder.is_dir():
        return
    for path in (folder, *folder.parents)[::-1]:
        with suppress(FileExistsError):
            make_folder(str(path))


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it, also below folders that their owner has closed. Links are not
    followed. What cannot be removed stays. Blocks.

    A command may have left folders in folders many thousand deep. So each of them is moved to the top
    before it is emptied, and neither descriptors nor the stack grow with the depth.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(OSError):
        _open_up(str(folder))
        top = os.open(folder, flags)
        try:
            pending = _clear(top, top)
            while pending:
                name = pending.pop()
                with suppress(OSError):
                    inner = os.open(name, flags, dir_fd=top)
                    try:
                        pending += _clear(inner, top)
                    finally:
                        os.close(inner)
                    os.rmdir(name, dir_fd=top)
        finally:
            os.close(top)
        folder.rmdir()


def _clear(folder: int, top: int) -> list[str]:
    """Remove the files of a folder and move the folders in it to `top`. Return their names there."""
    moved = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=folder)
                    continue
                _open_up(entry.name, folder)
                name = secrets.token_hex(16)
                os.rename(entry.name, name, src_dir_fd=folder, dst_dir_fd=top)
                moved.append(name)
    return moved


def _open_up(name: str, parent: int | None = None) -> None:
    """Give the owner of a folder all permissions again. Does nothing to a link."""
    with suppress(OSError):
        set_folder_mode(name, PRIVATE_FOLDER, parent)


# -- the folders that chats work on: their own, or those of projects

_SYSTEM = frozenset({
    "", "bin", "boot", "dev", "etc", "home", "lib", "lib64", "opt", "proc", "root", "run", "sbin", "srv",
    "sys", "tmp", "usr", "var",
})  # fmt: skip


class ChatFolders:
    """Finds the folders of chats. A choice is a link in `<home>/projects`, so it outlasts the gateway.

    A chat without a choice works on `project`, which is `[agent] project`, or on its own folder if that is
    empty. The chats' own folders are in the home, or in the folder that `store.files` names. Both methods
    that change something block.
    """

    def __init__(self, home: Path, project: str = "", shared: Path | None = None) -> None:
        """Raises `BadRequest` for a project that cannot be one."""
        self._home = home
        self.shared = shared
        self._project = self._check(project) if project else None

    @property
    def files(self) -> Path:
        """The folder of the chats' own folders."""
        return files_folder(self.shared or self._home)

    def __call__(self, key: ChatKey) -> Path:
        """Return the folder of the chat, which may not exist yet."""
        return self.find_project(key) or self.own(key)

    def own(self, key: ChatKey) -> Path:
        """Return the chat's own folder, without a look at projects."""
        return chat_folder(self.shared or self._home, key)

    def find_project(self, key: ChatKey) -> Path | None:
        """Return the project's folder that the chat works on; None if it works on its own."""
        with suppress(OSError):
            return self._link(key).readlink()
        return self._project

    def choose(self, key: ChatKey, project: str) -> Path:
        """Let the chat work on a project's folder from now on; on its own if `project` is empty. Return the
        folder. Raises `BadRequest`; nothing changes then."""
        link = self._link(key)
        if not project:
            link.unlink(missing_ok=True)
            return self(key)
        folder = self._check(project)
        make_private(link.parent)
        fresh = link.with_name(f".{secrets.token_hex(8)}")
        fresh.symlink_to(folder)
        fresh.replace(link)
        return folder

    def move(self, before: ChatKey, after: ChatKey) -> None:
        """Give the files of a chat, and its choice, to another key. Files that are there already stay."""
        for one, other in (
            (self.own(before), self.own(after)),
            (self._link(before), self._link(after)),
        ):
            if not other.exists():
                with suppress(FileNotFoundError):
                    one.rename(other)

    def _check(self, project: str) -> Path:
        return check_project(project, self._home, *([self.shared] if self.shared else []))

    def _link(self, key: ChatKey) -> Path:
        return self._home / f"projects/{chat_name(key)}"


def check_project(project: str, *kept: Path) -> Path:
    """Return the folder of a project without links in its path. `kept` are folders of the gateway.

    Raises `BadRequest` for a folder that commands must not write to.
    """
    if not os.path.isabs(os.path.expanduser(project)) or "\0" in project:  # noqa: PTH111, PTH117
        raise BadRequest(f"{project!r} is not an absolute path.", "Write it from / on.")
    folder = Path(os.path.realpath(Path(project).expanduser()))
    if not folder.is_dir():
        raise BadRequest(f"There is no folder {folder}.", "Make it first, or name another one.")
    for real in (Path(os.path.realpath(path)) for path in kept):
        if folder.is_relative_to(real) or real.is_relative_to(folder):
            text = f"{folder} contains a folder of the gateway, or lies in it: {real}."
            raise BadRequest(text, "Name a project's own folder.")
    if folder.parent == Path("/") and folder.name in _SYSTEM:
        raise BadRequest(f"{folder} is a folder of the system.", "Name a project's own folder.")
    try:
        command_user(folder)
    except SandboxError as error:
        raise BadRequest(error.user_text, error.hint) from error
    return folder
