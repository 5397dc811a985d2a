"""Which plug-in a piece of code belongs to, by the file that it stands in.

The log names the plug-in from which a line comes, and the watch of the event loop the one that holds it.
"""

from __future__ import annotations

import os


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
