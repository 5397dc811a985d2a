"""Memory and skills of other programs. Skills are copied, and wait to be accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from talaria.core.access import OWNER
from talaria.core.errors import TalariaError, ToolError
from talaria.core.memory import AddFact, EditOrigin, MemoryPlace
from talaria.core.text import clean_line
from talaria.imports.item import ImportItem, ImportKind, ImportState
from talaria.imports.logs import derived_id
from talaria.imports.source import SourceHome
from talaria.imports.target import Planned, Source, Target
from talaria.memory.memory_files import MemoryFiles
from talaria.memory.pages import Edited, apply_edit, facts, words_of
from talaria.skills.library import SkillLibrary
from talaria.skills.pins import FOLDER
from talaria.skills.skill_folder import SkillContent, read_skill

_ARCHIVED: Final = (".hub", ".archive", ".curator_backups")


# -- memory -----------------------------------------------------------------------------------------------


def plan_memory(source: Source, target: Target) -> list[Planned]:
    """Return an item for each different fact. They go to the memory of the owner."""
    root = (target.settings.store.shared or target.home) / "memory"
    files, place = MemoryFiles(root), MemoryPlace(target.agent, OWNER)
    now = target.store.clock.now()
    known = {
        page.page: {words_of(line).casefold() for line in facts(page.text)} for page in files.pages(place)
    }
    found: list[Planned] = []
    for page, text in dict.fromkeys(source.facts()):
        item_id = f"memory:{page}:{derived_id('hermes', 'memory', f'{page}:{text}')[-8:]}"
        item = ImportItem(item_id, ImportKind.MEMORY, clean_line(text, 80), ImportState.PLANNED, page)
        if text.casefold() in known[page]:
            found.append((item.skip("It is remembered already."), None))
        else:
            origin = EditOrigin(item.id, source.title, now)
            found.append((item, partial(_remember, files, place, item, AddFact(page, text), origin)))
    return found


async def _remember(
    files: MemoryFiles, place: MemoryPlace, item: ImportItem, edit: AddFact, origin: EditOrigin
) -> ImportItem:
    def add(text: str) -> Edited:
        return apply_edit(text, edit, origin)

    try:
        await asyncio.to_thread(files.change, place, edit.page, add)
    except ToolError as error:
        return item.skip(f"{error.user_text} {error.hint}")
    return item.done()


# -- skills -----------------------------------------------------------------------------------------------


def plan_skills(source: Source, target: Target) -> list[Planned]:
    """Return an item for each skill. A skill that came with the program is left out."""
    library = SkillLibrary(target.home / FOLDER)
    return [
        _plan_skill(source, library, root, folder)
        for home, root in source.skill_roots()
        for folder in _skill_folders(home, root)
    ]


def _skill_folders(home: SourceHome, top: Path) -> Iterator[Path]:
    """Yield the folders with a SKILL.md, and links to folders, however deep. A skill's own folders are not
    looked into."""
    if not top.resolve().is_relative_to(home.path.resolve()):
        home.note(top.relative_to(home.path).as_posix(), "It is a link that leaves the home.")
        return
    waiting = [top] if top.is_dir() else []
    while waiting:
        folder = waiting.pop()
        try:
            found = sorted(folder.iterdir())
        except OSError as error:
            home.note(folder.relative_to(home.path).as_posix(), f"It cannot be read: {error.strerror}.")
            continue
        if any(path.name.upper() == "SKILL.MD" for path in found):
            yield folder
            continue
        folders = [path for path in found if path.is_dir()]
        yield from (path for path in folders if path.is_symlink())
        waiting += [path for path in reversed(folders) if not path.is_symlink()]


def _plan_skill(source: Source, library: SkillLibrary, root: Path, folder: Path) -> Planned:
    name = clean_line(folder.relative_to(root).as_posix())
    item = ImportItem(f"skill:{name}", ImportKind.SKILL, clean_line(folder.name), ImportState.PLANNED)
    is_archived = bool(set(folder.relative_to(root).parts) & {*_ARCHIVED})
    try:
        content = None if is_archived or folder.is_symlink() else read_skill(folder)
        came_along = content is not None and source.came_along(folder)
    except (TalariaError, OSError) as error:
        text = f"{error.user_text} {error.hint}" if isinstance(error, TalariaError) else str(error)
        return item.skip(text.strip()), None
    if content is None or came_along:
        what = "came with" if came_along else "is archived in" if is_archived else "is a link in"
        return item.skip(f"It {what} {source.title}. Add it with `talaria skills add PATH`."), None
    place = library.root / content.head.name
    if place.exists():
        try:
            is_same = read_skill(place).digest == content.digest
        except (TalariaError, OSError):
            is_same = False
        if is_same:
            return item.skip("It was imported before."), None
        return item.conflict(f"There is another skill {content.head.name} in {library.root}."), None
    note = f"Accept it with `talaria skills accept {content.head.name}`."
    item = msgspec.structs.replace(item, target=content.head.name, note=note)
    return item, partial(_copy_skill, library, folder, content, item)


async def _copy_skill(
    library: SkillLibrary, folder: Path, content: SkillContent, item: ImportItem
) -> ImportItem:
    try:
        await asyncio.to_thread(library.put, folder, content)
    except (TalariaError, OSError) as error:
        return item.skip(str(error))
    return item.done()
