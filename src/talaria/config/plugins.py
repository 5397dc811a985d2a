"""Plug-ins as the configuration knows them: where they are found, and their tables `[plugins.NAME]`.

They are packages with an entry point, and single files in the home. This module is light. A home without
plug-ins costs a look at the folder, and at the entry points of what is installed; nothing of
`talaria.plugins` is imported for it. A table has any keys, which a plug-in reads as a struct of its own. Each
wrong table concerns its plug-in only, so the gateway's own settings are good whatever is in it.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec

from talaria.config.decoder import SettingsDecoder
from talaria.config.home import Home, find_distrust
from talaria.config.issues import BadConfig, IssueCollector, dotted
from talaria.core.errors import ConfigError
from talaria.core.problems import Problem, run
from talaria.core.settings import Check, KeyPath, matching

S = TypeVar("S", bound=msgspec.Struct)

GROUP: Final = "talaria.plugins"
FOLDER: Final = "plugins"
REGISTER: Final = "register"  # the function of a single file
_GOOD_NAME: Final = "Use 1 to 40 small letters, digits, underscores or dashes, first a letter."
_MOST_READ: Final = 500  # files of a package
_HEADING: Final = f"[{GROUP}]".encode()
_ENTRY: Final = re.compile(r"\s*([^=#\s]+)\s*=\s*([\w.]+)\s*:\s*([\w.]+)")
PLUGIN_TABLES: Final[KeyPath] = ("plugins",)
ENABLED: Final = "enabled"  # in every table; false leaves the plug-in out
PLUGIN_NAME: Final = "[a-z][a-z0-9_-]{0,39}"
PluginName = Annotated[
    str,
    Check(matching(PLUGIN_NAME, "1 to 40 small letters, digits, underscores or dashes, first a letter")),
]


# -- their tables -----------------------------------------------------------------------------------------


def read_table(kind: type[S], table: Mapping[str, Any]) -> S:
    """Return the table as the plug-in's struct. A wrong value counts as its default."""
    return _decode(kind, table, (), {})[0]


def check_table(
    name: str,
    kind: type[S],
    table: Mapping[str, Any],
    environ: Mapping[str, str],
    warn: Callable[[str], None],
) -> S:
    """Return the table as the plug-in's struct. Raises `ConfigError` for a wrong value. An unknown key, or a
    variable that is not set, is a warning."""
    path = (*PLUGIN_TABLES, name)
    try:
        settings, issues = _decode(kind, table, path, environ)
    except TypeError as error:
        raise ConfigError(
            f"The settings of the plug-in have a field without a default ({error}).",
            "Give each field of the struct a default.",
        ) from error
    try:
        issues.raise_problems()
    except BadConfig as error:
        texts = " ".join(issue.bare for issue in error.issues)  # the line is not known here
        raise ConfigError(texts, f"Correct [{dotted(path)}] in config.toml.") from None
    for issue in issues.warnings:
        warn(issue.bare)
    return settings


def _decode(
    kind: type[S], table: Mapping[str, Any], path: KeyPath, environ: Mapping[str, str]
) -> tuple[S, IssueCollector]:
    issues = IssueCollector(Path("config.toml"), "", {})
    own = {key: value for key, value in table.items() if key != ENABLED}
    return SettingsDecoder(kind, issues, environ, ()).decode(kind, own, path), issues


# -- the places of plug-ins -------------------------------------------------------------------------------


class PluginSource(msgspec.Struct, frozen=True):
    """A plug-in that was found, whose code was not touched yet.

    `paths` are its files or folders. `module` is empty for a single file. `label` is for people. With a
    `problem` it cannot be used.
    """

    name: str
    label: str
    paths: tuple[str, ...]
    module: str = ""
    function: str = REGISTER
    problem: Problem | None = None

    def digest(self) -> str:
        """Return a hash of all its code. Reads every file of it; of a large package, only sizes and times."""
        found = hashlib.sha256("\n".join((self.label, self.module, self.function)).encode())
        for path in map(Path, self.paths):
            files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
            for file in files:
                state = file.stat()
                found.update(f"\n{file} {state.st_size}\n".encode())
                is_read = len(files) <= _MOST_READ
                found.update(file.read_bytes() if is_read else str(state.st_mtime_ns).encode())
        return found.hexdigest()


def find_plugins(home: Home) -> list[PluginSource]:
    """Return the plug-ins in the order in which they are loaded: packages by name, then files by name. Those
    that `[plugins.NAME] enabled = false` leaves out are among them."""
    found = _packages(tuple(sys.path))
    packages = {(each.name, each.label): each for each in found}  # a path may be named twice
    return [*(packages[key] for key in sorted(packages)), *_files(home)]


# -- single files -----------------------------------------------------------------------------------------


def _files(home: Home) -> Iterator[PluginSource]:
    folder = home.path / FOLDER
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(".py"))
    except OSError:
        return
    for file in names:
        if file.startswith(("_", ".")):
            continue
        name, path = file.removesuffix(".py"), folder / file
        source = PluginSource(name, f"{FOLDER}/{file}", (str(path),))
        yield msgspec.structs.replace(source, problem=_refusal(source, home))


def _refusal(source: PluginSource, home: Home) -> Problem | None:
    """Return the reason why the file of the plug-in is not used; None if it is."""
    path = Path(source.paths[0])
    if not re.fullmatch(PLUGIN_NAME, source.name):
        return Problem(f"{source.label} has no name for a plug-in.", _GOOD_NAME)
    if not path.is_file():
        return Problem(f"{source.label} is not a file.", "Move it elsewhere.")
    for reason in find_distrust(home, path):
        hint = f"Fix it with: {reason.command}" if reason.command else "Make it a file of your own."
        return Problem(f"{source.label} is not used: {reason.fact}.", hint, run(reason.command))
    return None


# -- packages ---------------------------------------------------------------------------------------------


@cache
def _packages(path: tuple[str, ...]) -> tuple[PluginSource, ...]:
    """Return the entry points of the packages on a path. Each path is scanned once per process.

    For 104 packages it takes 2 ms of CPU. `importlib.metadata.entry_points` takes 5 ms in `serve`, 14 ms and
    1.1 MB in a process that has not imported it yet, and it raises if a package has a malformed file.
    """
    found: list[PluginSource] = []
    for folder in path:
        with suppress(OSError):
            for name in sorted(entry.name for entry in os.scandir(folder or ".")):
                if name.endswith((".dist-info", ".egg-info")):
                    found += _entry_points(Path(folder or ".", name))
    return tuple(found)


def _entry_points(info: Path) -> Iterator[PluginSource]:
    try:
        data = (info / "entry_points.txt").read_bytes()
    except OSError:
        return
    if _HEADING not in data:
        return
    label = info.name.rpartition(".")[0].replace("-", " ", 1)
    is_ours = False
    for line in data.decode(errors="replace").splitlines():
        if line.startswith("["):
            is_ours = line.strip() == f"[{GROUP}]"
        elif is_ours and (entry := _ENTRY.match(line)) is not None:
            yield _package(entry[1], label, entry[2], entry[3])


def _package(name: str, label: str, module: str, function: str) -> PluginSource:
    from importlib.util import find_spec  # noqa: PLC0415 - with the first package

    source = PluginSource(name, label, (), module, function)
    if not re.fullmatch(PLUGIN_NAME, name):
        text = f"The entry point {name!r} of {label} is no name for a plug-in."
        return msgspec.structs.replace(source, problem=Problem(text, _GOOD_NAME))
    try:
        spec = find_spec(module.partition(".")[0])  # of the outermost package, so nothing is imported
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        text = f"The entry point {name} of {label} names the module {module}, which is not installed."
        problem = Problem(text, f"Install {label.partition(' ')[0]} again.")
        return msgspec.structs.replace(source, problem=problem)
    places = tuple(spec.submodule_search_locations or ()) or ((spec.origin,) if spec.origin else ())
    return msgspec.structs.replace(source, paths=places)
