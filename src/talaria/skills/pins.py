"""The skills that count: those that the operator has accepted, pinned by the hash of their files.

    skills/NAME/               a skill's folder, which people edit
    skills/.accepted/NAME/     the copy that was accepted; agents and commands read only this one
    skills/pins.json           the hash of each accepted copy, and what the model is told of it

A skill counts as long as it has a pin and its folder is there. So an edit, or a folder that somebody puts
there, changes nothing until it is accepted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from talaria.core.whole_files import JsonFile, Stamp, stamp_of

FOLDER: Final = "skills"  # in the home
ACCEPTED: Final = ".accepted"
PINS: Final = "pins.json"
_log = logging.getLogger("talaria.skills")


class SkillPin(msgspec.Struct, frozen=True, omit_defaults=True):
    """An accepted skill. `folder` is the name of its folder, `source` the place that it was added from."""

    folder: str
    digest: str
    description: str
    files: int
    size: int
    source: str = ""
    is_offered: bool = True
    is_callable: bool = True


class SkillPins(msgspec.Struct):
    """The content of pins.json."""

    skills: dict[str, SkillPin] = {}


class SkillsReading(msgspec.Struct, frozen=True):
    """The skills of a home at a moment: how many count, and the folders of which nothing was accepted."""

    in_use: int
    new: tuple[str, ...]


NO_SKILLS: Final[Mapping[str, SkillPin]] = MappingProxyType({})


class SkillsInUse:
    """The skills that count, by name, as the files say now. `get` costs two calls of stat, and one without
    skills, unless something has changed."""

    def __init__(self, root: Path) -> None:
        """`root` is the folder `skills` of the home. It need not exist."""
        self.root = root
        self._watched = (str(root / PINS), str(root))
        self._stamp: tuple[Stamp, ...] | None = None
        self._skills = NO_SKILLS
        self._told: list[Callable[[], None]] = []

    def get(self) -> Mapping[str, SkillPin]:
        """Return the skills in the order of their names."""
        first = stamp_of(self._watched[0])
        stamp = (first, stamp_of(self._watched[1])) if first else ()
        if stamp != self._stamp:
            self._stamp = stamp
            found = {
                name: pin for name, pin in sorted(read_pins(self.root).items()) if self._is_there(name, pin)
            }
            if found != self._skills:
                self._skills = MappingProxyType(found)
                for tell in self._told:
                    tell()
        return self._skills

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` when `get` finds other skills than before."""
        self._told.append(changed)

    def copy_of(self, name: str) -> Path:
        """Return the accepted copy of a skill that counts."""
        return accepted_folder(self.root) / name

    def _is_there(self, name: str, pin: SkillPin) -> bool:
        return (self.root / pin.folder).is_dir() and self.copy_of(name).is_dir()


def read_status(home: Path) -> SkillsReading:
    """Return how the skills of a home are. Reads a small file and a folder."""
    skills = SkillsInUse(home / FOLDER)
    pinned = {pin.folder for pin in read_pins(skills.root).values()}
    try:
        found = sorted(each.name for each in os.scandir(skills.root) if each.is_dir() and each.name[0] != ".")
    except OSError:
        found = []
    return SkillsReading(len(skills.get()), tuple(name for name in found if name not in pinned))


def accepted_folder(root: Path) -> Path:
    """Return the folder of all accepted copies, without a link in its path, so that sandboxes take it."""
    return Path(os.path.realpath(root)) / ACCEPTED


def readable_folders(home: Path) -> tuple[Path, ...]:
    """Return the folders that commands may read for the sake of skills: none, or that of the copies."""
    root = home / FOLDER
    return (accepted_folder(root),) if (root / ACCEPTED).is_dir() else ()


def pin_file(root: Path) -> JsonFile[SkillPins]:
    """Return the file pins.json. Without a file that can be read, nothing is accepted."""
    return JsonFile(root / PINS, SkillPins, _damaged)


def _damaged(path: Path, error: Exception) -> SkillPins:
    _log.warning("no skill counts: %s cannot be read: %s", path, error)
    return SkillPins()


def read_pins(root: Path) -> dict[str, SkillPin]:
    return pin_file(root).read().skills
