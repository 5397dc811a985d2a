"""The operator's side of skills: which folders there are, and how they are added, accepted and removed.

A change is prepared beside its place and renamed into it; pins.json is written last. A kill in between leaves
what counted before, or a copy that is not what its pin says, which is never shown. Everything here blocks.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from talaria.core.errors import TalariaError
from talaria.core.problems import Problem
from talaria.skills.front_matter import SkillError
from talaria.skills.pins import ACCEPTED, PINS, SkillPin, pin_file, read_pins
from talaria.skills.skill_folder import SkillContent, find_skills, read_skill

MAX_SKILLS: Final = 500
_DRAFT: Final = ".draft-"  # the beginning of the names of folders that are being made or removed


class SkillState(StrEnum):
    """`IN_USE` counts. `CHANGED` counts as it was accepted; its folder is different now. `NEW` and `BROKEN`
    do not count."""

    IN_USE = "in use"
    CHANGED = "changed"
    NEW = "new"
    BROKEN = "broken"


class Standing(msgspec.Struct, frozen=True):
    """A folder in `skills` and what it stands for. `content` is None if it is broken, and `problem` says why.
    `pin` is what was accepted of it."""

    folder: Path
    name: str
    state: SkillState
    content: SkillContent | None = None
    pin: SkillPin | None = None
    problem: Problem = Problem("")


class SkillLibrary:
    """The folder `skills` of a home."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def survey(self) -> list[Standing]:
        """Return all skills in the order of their names. Reads every file."""
        pins = read_pins(self.root)
        owners = {pin.folder: name for name, pin in pins.items()}
        found: dict[str, Standing] = {}
        broken: list[Standing] = []
        folders = [path for path in self._folders() if path.name not in owners]
        # Folders that have a pin come first: a new folder cannot take the name of an accepted skill.
        for folder in [*(self.root / name for name in owners if (self.root / name).is_dir()), *folders]:
            standing = self._judge(folder, owners.get(folder.name), pins)
            if standing.name in found:
                text = f"Its name {standing.name} is taken by {found[standing.name].folder.name}."
                taken = Problem(text, "Give it another name in its SKILL.md.")
                standing = Standing(folder, standing.name, SkillState.BROKEN, problem=taken)
            if standing.state is SkillState.BROKEN and standing.pin is None:
                broken.append(standing)
            else:
                found[standing.name] = standing
        return sorted([*found.values(), *broken], key=lambda each: (each.name, each.folder.name))

    def find(self, name: str) -> Standing:
        """Return a skill by its name or that of its folder. Raises `SkillError`."""
        for standing in self.survey():
            if name in (standing.name, standing.folder.name):
                return standing
        raise SkillError(f"There is no skill {name!r}.", "`talaria skills list` shows them.")

    def copy_of(self, name: str) -> Path:
        return self.root / ACCEPTED / name

    def accept(self, standing: Standing, source: str = "") -> SkillPin:
        """Let a folder count as it was shown: `standing` is what the operator saw.

        Raises `SkillError` if the folder has changed since, and `OSError`.
        """
        if standing.content is None:
            found = standing.problem
            raise SkillError(f"{standing.folder.name} cannot be accepted. {found.text}", found.hint)
        with self._lock(), pin_file(self.root).editing() as accepted:
            pins = accepted.skills = self._prune(accepted.skills)
            if len(pins) >= MAX_SKILLS and standing.name not in pins:
                raise SkillError(f"There are {MAX_SKILLS} skills already.", "Remove one first.")
            before = pins.get(standing.name)
            pin = _pin(standing.folder.name, standing.content, source or (before.source if before else ""))
            self._copy(standing.folder, self.copy_of(standing.name), pin.digest)
            pins[standing.name] = pin
        return pin

    def find_edited(self, folder: Path, shown: SkillContent) -> Path | None:
        """Return the folder that `add` would replace, if that has something that was neither accepted nor is
        in what was `shown`."""
        pin = read_pins(self.root).get(shown.head.name)
        target = self.root / (pin.folder if pin else shown.head.name)
        if not target.is_dir() or folder.resolve() == target.resolve():
            return None
        try:
            digest = read_skill(target).digest
        except (TalariaError, OSError):
            return target
        return None if digest == shown.digest or (pin is not None and digest == pin.digest) else target

    def add(self, folder: Path, shown: SkillContent, source: str) -> SkillPin:
        """Copy a skill's folder into the library, in the place of one with its name, and let it count.

        Raises `SkillError`, also if the folder is not what was `shown` any more, and `OSError`.
        """
        name = shown.head.name
        pin = read_pins(self.root).get(name)
        target = self.root / (pin.folder if pin else name)
        if folder.resolve() != target.resolve():
            with self._lock():
                self._copy(folder, target, shown.digest, is_editable=True)
        return self.accept(Standing(target, name, SkillState.NEW, shown), source)

    def put(self, folder: Path, shown: SkillContent) -> None:
        """Copy a skill's folder into the library, where it waits to be accepted.

        Raises `SkillError` if its place is taken or the folder is not what was `shown`, and `OSError`.
        """
        target = self.root / shown.head.name
        with self._lock():
            if target.exists() or target.is_symlink():
                raise SkillError(f"There is a folder {target} already.", "Remove or rename it first.")
            self._copy(folder, target, shown.digest, is_editable=True)

    def remove(self, standing: Standing) -> None:
        """Remove a skill's folder and its accepted copy. It does not count from now on."""
        with self._lock():
            if standing.pin is not None:
                with pin_file(self.root).editing() as accepted:
                    accepted.skills.pop(standing.name, None)
                _remove(self.copy_of(standing.name))
            _remove(standing.folder)

    # -- inside -------------------------------------------------------------------------------------------

    def _folders(self) -> Iterator[Path]:
        """Yield the folders that may be skills."""
        if not self.root.is_dir():
            return
        for folder in sorted(self.root.iterdir()):
            if folder.name.startswith(".") or folder.name == PINS:
                continue
            if folder.is_symlink() or folder.is_dir():
                yield folder

    def _judge(self, folder: Path, owner: str | None, pins: dict[str, SkillPin]) -> Standing:
        pin = pins.get(owner) if owner else None
        try:
            content = read_skill(folder)
        except (TalariaError, OSError) as error:
            text = error.user_text if isinstance(error, TalariaError) else f"It cannot be read: {error}."
            hint = error.hint if isinstance(error, TalariaError) else ""
            inner = [path.name for path in _skills_below(folder)]
            if inner:
                text = f"It is a folder with {len(inner)} skills in it, such as {inner[0]}."
                hint = f"Use `talaria skills add {folder} --all`, then delete this folder."
            state = SkillState.BROKEN
            return Standing(folder, owner or folder.name, state, pin=pin, problem=Problem(text, hint))
        name = content.head.name
        if pin is None:
            return Standing(folder, name, SkillState.NEW, content)
        if name != owner:
            text = f"It was accepted as {owner} and is called {name} now."
            hint = f"Use `talaria skills add {folder}`, and remove {owner}."
            return Standing(folder, owner or name, SkillState.BROKEN, None, pin, Problem(text, hint))
        state = SkillState.IN_USE if content.digest == pin.digest else SkillState.CHANGED
        return Standing(folder, name, state, content, pin)

    def _prune(self, pins: dict[str, SkillPin]) -> dict[str, SkillPin]:
        """Forget the skills whose folders are gone."""
        kept = {name: pin for name, pin in pins.items() if (self.root / pin.folder).is_dir()}
        for name in pins.keys() - kept.keys():
            _remove(self.copy_of(name))
        return kept

    def _copy(self, folder: Path, target: Path, digest: str, *, is_editable: bool = False) -> None:
        """Put a copy of a folder, which must have this digest, in the place of `target`."""
        if not target.parent.is_dir():
            target.parent.mkdir(parents=True)
            target.parent.chmod(0o755)
        draft = target.with_name(f"{_DRAFT}{secrets.token_hex(8)}")
        if read_skill(folder, draft).digest != digest:
            raise SkillError(f"{folder} has changed since it was shown.", "Look at it again.")
        if is_editable:
            _let_edit(draft)
        if target.exists() or target.is_symlink():
            target.rename(target.with_name(f"{_DRAFT}{secrets.token_hex(8)}"))
        draft.rename(target)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Let one process change the library at a time."""
        with pin_file(self.root).locked():
            try:
                yield
            finally:
                for left in (*self.root.glob(f"{_DRAFT}*"), *self.root.glob(f"{ACCEPTED}/{_DRAFT}*")):
                    _remove(left)


def _pin(folder: str, content: SkillContent, source: str) -> SkillPin:
    head = content.head
    return SkillPin(
        folder,
        content.digest,
        head.description,
        len(content.files),
        content.size,
        source,
        is_offered=head.is_offered,
        is_callable=head.is_callable,
    )


def _skills_below(folder: Path) -> Iterator[Path]:
    """Yield the skills in a folder that is none itself."""
    if not folder.is_symlink():
        yield from (path for path in find_skills(folder, 3) if path != folder)


def _let_edit(folder: Path) -> None:
    """Give the owner the right to write to a copy that people edit."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            path.chmod(path.stat().st_mode | 0o200)


def _remove(path: Path) -> None:
    """Remove a folder with all that is in it, or a link. What cannot be removed stays."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
