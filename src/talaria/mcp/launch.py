"""Starting a server's command in the sandbox: what it reads and writes, its variables and its network."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from talaria.core.errors import TalariaError, ToolError
from talaria.core.settings import fill_template
from talaria.core.slots import FairThreads
from talaria.mcp.part import McpServer
from talaria.mcp.pins import FOLDER
from talaria.net.host_rules import NetworkSettings
from talaria.workspace.network import SessionNetworks
from talaria.workspace.places import SessionPlaces
from talaria.workspace.sandbox.choice import Sandboxes
from talaria.workspace.sandbox.command import (
    PATH,
    NetworkAccess,
    ProcessLimits,
    Sandbox,
    SandboxCommand,
    system_paths,
)
from talaria.workspace.sandbox.process import SandboxedProcess, open_process

if TYPE_CHECKING:
    import httpx2

_FOREVER = 3e8  # seconds
_OPEN_FILES = 4096
# Without a network they use what they have downloaded, or fail at once instead of after a minute.
_OFFLINE = {"npm_config_offline": "true", "UV_OFFLINE": "1"}
_DOWNLOADERS = {"npx", "uvx", "uv", "pipx", "bunx", "pnpm", "yarn", "deno", "npm", "bun"}


class CannotRun(TalariaError):
    """A server cannot be run as it is configured: trying again would not help."""

    type = "mcp"


class ServerLauncher:
    """Starts the commands of servers. One for all servers of the process; `close` ends their networks."""

    def __init__(
        self,
        home: Path,
        environ: Mapping[str, str],
        sandboxes: Sandboxes,
        *,
        is_own_secret: Callable[[str], bool],
        limits: ProcessLimits | None = None,
        private: Callable[[], tuple[str, ...]] = tuple,
        token: Callable[[str, McpServer, str], Awaitable[str]] | None = None,
        auth: httpx2.Auth | None = None,
    ) -> None:
        """`environ` are the gateway's variables and keys, of which a server gets those that it names.
        `is_own_secret` tells whether a variable holds a secret of the gateway, which no server gets.
        `private` returns the addresses of `network.allow_private`. `token` returns the token of the login at
        a named server, and another one than the given one, which the server has refused. `auth` logs in."""
        self.token = token
        self.auth = auth
        self._home = Path(os.path.realpath(home))
        self.environ = environ
        self._is_own_secret = is_own_secret
        self._sandboxes = sandboxes
        self._limits = limits or ProcessLimits()
        self.threads = FairThreads("talaria-mcp", lambda: 2)
        self._networks = SessionNetworks(
            self._home,
            lambda: NetworkSettings(commands="open", allow_private=private()),
            threads=self.threads,
        )

    async def close(self) -> None:
        await self._networks.close()
        self.threads.close()

    def check_references(self, name: str, server: McpServer) -> None:
        """Raise `CannotRun` if the server names a secret of the gateway."""
        for key, variable in server.references():
            if self._is_own_secret(variable):
                raise CannotRun(*refusal(f"mcp.servers.{name}.{key}", variable))

    @asynccontextmanager
    async def start(self, name: str, server: McpServer) -> AsyncIterator[SandboxedProcess]:
        """Run the server's command until the block is left. Every process of it is gone then.

        Raises `CannotRun`, and other `TalariaError`s of the sandbox.
        """
        try:
            sandbox = await self._sandboxes.get()
        except ToolError as error:
            raise CannotRun(error.user_text, error.hint) from error
        command = await self.threads.run(name, self._prepare, name, server, sandbox.name == "none")
        network = await self._network(self._places(name, _real(server.writable)), server, sandbox)
        async with open_process(sandbox, replace(command, network=network)) as process:
            yield process

    def _places(self, name: str, writable: tuple[Path, ...]) -> SessionPlaces:
        """Return the places of a server's process. Its home and working folder last. Its user is the owner of
        the first folder that it may write."""
        own, run = self._home / FOLDER / "servers" / name, self._home / FOLDER / "run" / name
        return SessionPlaces(writable[0] if writable else own, own, run, is_project=bool(writable))

    def _prepare(self, name: str, server: McpServer, is_free: bool) -> SandboxCommand:
        """Return the command without its network. Makes its folders. Blocks."""
        program = find_program(server.command[0], self.environ.get("PATH", ""))
        writable = tuple(_checked(path, self._home) for path in _real(server.writable))
        readable = [_checked(path, self._home) for path in _real(server.readable)]
        if not is_free:
            readable += [path for path in install_folders(program) if _is_apart(path, self._home)]
        places = self._places(name, writable)
        places.make()
        limits = ProcessLimits(self._limits.memory, self._limits.processes, _FOREVER, open_files=_OPEN_FILES)
        return SandboxCommand(
            (str(program), *(_filled(word, self.environ) for word in server.command[1:])),
            places.folder,
            places.home,
            places.tmp,
            cwd=places.home,
            environ={
                "PATH": f"{program.parent}:{PATH}",
                **(_OFFLINE if server.network == "off" else {}),
                **variables(server.env, self.environ),
            },
            readable=tuple(
                path
                for path in dict.fromkeys(readable)
                if not any(path.is_relative_to(each) for each in (*writable, places.home))
            ),
            more_writable=writable[1:],
            limits=limits,
            has_input=True,
        )

    async def _network(
        self, places: SessionPlaces, server: McpServer, sandbox: Sandbox
    ) -> NetworkAccess | None:
        if server.network == "off" or sandbox.name == "none":
            return None
        if sandbox.name != "bubblewrap":
            text = f'The server has network = "open", and the sandbox {sandbox.name} has no network.'
            raise CannotRun(text, "Install bubblewrap: see docs/sandbox.md.")
        access = await self._networks.access(places, sandbox, is_background=True)
        if access is None:
            trouble = self._networks.reading().trouble
            raise CannotRun(f"The server can have no network: {trouble}", "See docs/network.md.")
        return access


def refusal(key: str, variable: str) -> tuple[str, str]:
    """Return what to say of a server that names a secret of the gateway, and what to do."""
    text = f"{key} names {variable}, which is a secret of the gateway. MCP servers never get these."
    return text, "Set another variable to a key that this server may have, and name that one."


def variables(named: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """Return the variables or headers that the settings name, with the keys in them. Raises `CannotRun`."""
    return {name: _filled(value, values) for name, value in named.items()}


def _filled(value: str, values: Mapping[str, str]) -> str:
    try:
        return fill_template(value, values)
    except KeyError as error:
        missing = error.args[0]
        text = f"{missing} is not set, and the server needs it."
        raise CannotRun(
            text, f"Set the variable {missing} for the gateway, or in secrets.env in its home."
        ) from error


def find_program(name: str, path: str) -> Path:
    """Return where a program is. Raises `CannotRun`."""
    found = shutil.which(str(Path(name).expanduser()), path=f"{path}:{PATH}" if path else PATH)
    if found is None:
        hint = "Install it, or name it by its whole path."
        if name in _DOWNLOADERS:
            hint = f"Install {'Node.js' if name in ('npx', 'npm') else name}, or name it by its whole path."
        raise CannotRun(f"There is no program {name!r} here.", hint)
    return Path(found).absolute()


def install_folders(program: Path) -> list[Path]:
    """Return the folders outside of the system's that a program needs to run: its installation, and for a
    virtual environment of Python that of the interpreter. Not the home of a person."""
    found: list[Path] = []
    for path in (program, Path(os.path.realpath(program))):
        folder = Path(os.path.realpath(path.parent))
        found.append(_installation(folder))
        settings = folder.parent / "pyvenv.cfg"
        if settings.is_file():
            for line in settings.read_text(errors="replace").splitlines():
                key, _, value = line.partition("=")
                home = Path(os.path.realpath(value.strip()))
                if key.strip() == "home" and any(home.glob("python3*")):  # the server may have written it
                    found.append(_installation(home))
    system = [*system_paths(())]
    outside = [path for path in found if not any(path.is_relative_to(each) for each in system)]
    return [path for path in dict.fromkeys(outside) if path != Path("/")]


def _installation(folder: Path) -> Path:
    """Return the folder of a whole installation for its folder of programs."""
    around = folder.parent
    is_whole = (around / "lib").is_dir() or (around / "pyvenv.cfg").is_file()
    is_of_person = around.name == ".local" or around == Path.home() or around == Path("/")
    return around if folder.name == "bin" and is_whole and not is_of_person else folder


def explain(server: McpServer) -> str:
    """Return what may help with a server that ended before it had listed its tools."""
    program = Path(server.command[0]).name if server.command else ""
    if program in ("docker", "podman"):
        return (
            "Containers cannot be started from the sandbox. Use a server that runs by npx or uvx, or its url."
        )
    if program in _DOWNLOADERS and server.network == "off":
        return (
            f'It has no network. If {program} must download it first, set network = "open" for this server.'
        )
    return "Run the command in a shell to see what it says."


def _real(paths: tuple[str, ...]) -> tuple[Path, ...]:
    """Return the paths without links. Raises `CannotRun` for a link that does not belong to root: a command
    may have planted it in its project folder, so that the server reads or writes elsewhere."""
    found = []
    for path in (Path(each).expanduser() for each in paths):
        real = Path(os.path.realpath(path))
        if link := next((each for each in _links(path) if each.lstat().st_uid != 0), None):
            text = f"The server may not use {path}: {link} is a link, which a command could replace."
            raise CannotRun(text, f"The path leads to {real}. If that is the folder you mean, name it.")
        found.append(real)
    return tuple(found)


def _links(path: Path, known: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield the links on the way to a path, each before the links on the way to its target. A link that leads
    back to itself is yielded once."""
    for each in (path, *path.parents):
        if each not in known and each.is_symlink():
            yield each
            yield from _links(each.parent / each.readlink(), (*known, each))


def _checked(path: Path, home: Path) -> Path:
    """Return the path. Raises `CannotRun` if it is no folder, or has to do with the gateway's home."""
    if not path.is_dir():
        raise CannotRun(f"There is no folder {path}, which the server may use.", "Make it, or take it out.")
    if not _is_apart(path, home):
        text = f"The server may not use {path}: the gateway's home {home} has keys and the files of chats."
        raise CannotRun(text, "Name folders that have nothing to do with the gateway's home.")
    return path


def _is_apart(path: Path, home: Path) -> bool:
    return not path.is_relative_to(home) and not home.is_relative_to(path)
