"""Reports about plug-ins: where each was found, what became of it, and what it brings."""

from __future__ import annotations

import os
from enum import StrEnum

import msgspec

from talaria.core.problems import Problem


class PluginState(StrEnum):
    LOADED = "loaded"
    LEFT_OUT = "left out"
    QUARANTINED = "quarantined"
    OFF = "off"


class PluginReport(msgspec.Struct, frozen=True):
    """A plug-in for people to read. `brings` are its tools, commands and so on, such as `tool forecast`.
    `problem` says why it is not in use, or what of it is not, and `hint` what to do."""

    name: str
    source: str
    state: PluginState
    brings: tuple[str, ...] = ()
    problem: str = ""
    hint: str = ""

    @classmethod
    def of(
        cls, name: str, source: str, state: PluginState, brings: tuple[str, ...], problem: Problem | None
    ) -> PluginReport:
        text, hint = ("", "") if problem is None else (problem.text, problem.hint)
        return cls(name, source, state, brings, text, hint)

    def sentence(self) -> str:
        return f"{self.problem} {self.hint}".strip()


# -- which plug-in a piece of code belongs to, by the file that it stands in ------------------------------
# The log names the plug-in from which a line comes, and the watch of the event loop the one that holds it.


class CodeOwners:
    """Files and folders with the names of their owners. Costs nothing while there are none."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}
        self._folders: dict[str, str] = {}

    def add(self, path: str | os.PathLike[str], name: str) -> None:
        """The code in this file, or below this folder, belongs to `name`."""
        place = os.fspath(path)
        if os.path.isdir(place):  # noqa: PTH112 - asked for a few paths at the start
            self._folders[place.rstrip(os.sep) + os.sep] = name
        else:
            self._files[place] = name

    def drop(self, name: str) -> None:
        """Forget the code of `name`."""
        for places in (self._files, self._folders):
            for place in [place for place, owner in places.items() if owner == name]:
                del places[place]

    def find(self, file: str) -> str:
        """Return the owner of the code in `file`; empty for the gateway's own and for libraries."""
        if (owner := self._files.get(file)) is not None:
            return owner
        for folder, name in self._folders.items():
            if file.startswith(folder):
                return name
        return ""

    def __bool__(self) -> bool:
        return bool(self._files or self._folders)


CODE_OWNERS = CodeOwners()
