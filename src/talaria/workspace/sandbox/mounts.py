"""The mounts of a bubblewrap sandbox: a plan that is checked before it becomes a command line.

bubblewrap follows links in the destination of a mount. If a command could write a folder above a destination,
it could plant a link there, and the next sandbox would be mounted over another path. So every command line is
built by `mount_options`, which refuses such a plan.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from talaria.workspace.sandbox.command import PATH, SandboxError, system_paths


@dataclass(frozen=True, slots=True)
class Mount:
    """A path inside the sandbox and the bubblewrap options that create it.

    Commands can write below the destination if `is_writable`, and it leads elsewhere if `is_link`. If
    `is_sealed`, it becomes read-only after all other mounts.
    """

    destination: str
    options: tuple[str, ...]
    is_writable: bool = False
    is_link: bool = False
    is_sealed: bool = False


def bind(source: Path | int, destination: str, *, is_writable: bool = False) -> Mount:
    """Return the mount of a folder. With a descriptor as its source, no link is followed: use one for every
    folder that a command may be able to replace, if `takes_descriptors`."""
    option = ("--bind" if is_writable else "--ro-bind") + ("-fd" if isinstance(source, int) else "")
    return Mount(destination, (option, str(source), destination), is_writable)


@cache
def takes_descriptors(program: str) -> bool:
    """Return whether this bubblewrap has `--bind-fd`. Versions before 0.10 do not, unless the distribution
    has added it. Blocks."""
    done = subprocess.run((program, "--help"), check=False, capture_output=True, env={})  # noqa: S603
    return b"--ro-bind-fd" in done.stdout


def mount_options(mounts: Iterable[Mount], programs: Iterable[str] = ()) -> list[str]:
    """Return the bubblewrap options for these mounts, each after the mounts around it. The root is read-only.

    If two mounts have the same destination, the later one is used; a sealed one cannot be replaced.
    `programs` are run inside before the command is confined. Raises `SandboxError` if the plan is refused.
    """
    listed = tuple(mounts)
    shapes = tuple((each.destination, each.is_writable, each.is_link, each.is_sealed) for each in listed)
    options: list[str] = []
    for item in _arrange(shapes, tuple(programs)):
        options += listed[item].options if isinstance(item, int) else item
    return options


@lru_cache(256)
def _arrange(
    shapes: tuple[tuple[str, bool, bool, bool], ...], programs: tuple[str, ...]
) -> tuple[int | tuple[str, ...], ...]:
    """Return the options around and between these mounts, each of which is given by its number. Cached: the
    commands of a session differ only in the descriptors of their mounts."""
    plan: dict[str, Mount] = {}
    numbers: dict[str, int] = {}
    for number, (destination, is_writable, is_link, is_sealed) in enumerate(shapes):
        if destination in plan and plan[destination].is_sealed:
            raise SandboxError(f"{destination} cannot be a folder of commands: they have their own.")
        plan[destination] = Mount(destination, (), is_writable, is_link, is_sealed)
        numbers[destination] = number
    check_plan(plan, programs)
    options: list[int | tuple[str, ...]] = []
    created = {"/", *plan}
    for destination in sorted(plan):
        # bubblewrap would create these folders itself, closed to the user that commands run as.
        for folder in reversed([*_around(destination)]):
            if folder not in created:
                created.add(folder)
                options.append(("--perms", "0755", "--dir", folder))
        options.append(numbers[destination])
    options += [("--remount-ro", each.destination) for each in plan.values() if each.is_sealed]
    return (*options, ("--remount-ro", "/"))


def check_plan(plan: Mapping[str, Mount], programs: Iterable[str] = ()) -> None:
    """Check paths inside the sandbox. Raise `SandboxError` if a destination lies below a mount that commands
    can write or that is a link, or if commands can write the folder of one of the `programs`."""
    for destination in plan:
        for folder in _around(destination):
            if folder in plan and (plan[folder].is_writable or plan[folder].is_link):
                text = f"{destination} cannot be mounted: it lies in {folder}, which commands can change."
                raise SandboxError(text, "Move one of the two folders elsewhere.")
    for program in programs:
        for path in {program, os.path.realpath(program)}:
            around = next((plan[each] for each in (path, *_around(path)) if each in plan), None)
            if around is None or around.is_writable:
                text = f"{program} cannot be used to start commands: they can change {path}."
                raise SandboxError(text, "Name a folder that does not contain programs of the system.")


def _around(path: str) -> Iterator[str]:
    """Yield the folders around a path, the closest one first."""
    while path != "/":
        path = path[: path.rindex("/")] or "/"
        yield path


@cache
def system_mounts(hidden: tuple[Path, ...]) -> tuple[Mount, ...]:
    """Return read-only mounts of the system's folders as they are when this is first called: finding them
    takes longer than all the rest. A folder that is removed later is left out."""
    mounts = []
    for path in system_paths(hidden):
        if path.is_symlink() and path.parent == Path("/"):
            mounts.append(Mount(str(path), ("--symlink", str(path.readlink()), str(path)), is_link=True))
        else:
            mounts.append(Mount(str(path), ("--ro-bind-try", str(path), str(path))))
    return tuple(mounts)


@cache
def find_helper(name: str, package: str) -> str:
    """Return the absolute path of a program that starts a sandbox. It must belong to root, and only root may
    be able to change it or a folder around it. Raises `SandboxError`."""
    found = [path for folder in PATH.split(":") if os.access(path := f"{folder}/{name}", os.X_OK)]
    for path in found:
        if all(map(_belongs_to_root, {Path(path), Path(os.path.realpath(path))})):
            return path
    if found:
        text = f"{found[0]} cannot be trusted: users other than root can change it."
        raise SandboxError(text, f"Give it and the folders around it to root: chown root {found[0]}")
    raise SandboxError(f"{package} is not installed.", f"Install the package {package}.")


def _belongs_to_root(path: Path) -> bool:
    found = [each.stat() for each in (path, *path.parents)]
    return all(
        each.st_uid == 0 and not each.st_mode & 0o002 and (each.st_gid == 0 or not each.st_mode & 0o020)
        for each in found
    )
