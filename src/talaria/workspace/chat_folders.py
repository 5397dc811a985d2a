"""The folder that a chat works on: its own, or a project's that the operator chose for it."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from talaria.core.errors import BadRequest
from talaria.core.ids import ChatKey
from talaria.workspace.folder import chat_folder, chat_name, files_folder
from talaria.workspace.places import make_private
from talaria.workspace.sandbox.port import SandboxError
from talaria.workspace.sandbox.users import command_user

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
        return self._home / "projects" / chat_name(key)


def check_project(project: str, *kept: Path) -> Path:
    """Return the folder of a project without links in its path. `kept` are folders of the gateway.

    Raises `BadRequest` for a folder that commands must not write to.
    """
    if not os.path.isabs(os.path.expanduser(project)) or "\0" in project:  # noqa: PTH111, PTH117
        raise BadRequest(f"{project!r} is no absolute path.", "Write it from / on.")
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
