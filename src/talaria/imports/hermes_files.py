"""Memory, skills and side files of hermes-agent. Skills are copied, and wait to be accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from talaria.core.access import OWNER
from talaria.core.errors import TalariaError, ToolError
from talaria.core.memory import AddFact, EditOrigin, MemoryPage, MemoryPlace
from talaria.core.text import clean_line
from talaria.imports.hermes_home import HermesHome
from talaria.imports.hermes_sessions import derived_id
from talaria.imports.item import ImportItem, ImportKind, ImportState
from talaria.imports.target import Planned, Target
from talaria.memory.memory_files import MemoryFiles
from talaria.memory.pages import Edited, apply_edit, facts, words_of
from talaria.skills.library import SkillLibrary
from talaria.skills.pins import FOLDER
from talaria.skills.skill_folder import SkillContent, find_skills, read_skill

_SEPARATOR: Final = "§"
_ORIGIN: Final = "hermes-agent"
_DEPTH: Final = 6
_HIDDEN: Final = (".hub", ".archive", ".curator_backups")
_BUNDLED: Final = "skills/.bundled_manifest"

# Files and folders that an import does not read, with the reason. Others in the home are listed too.
_SIDE: Final = {
    "auth.json": "Log in again here: two programs must not use the same login.",
    "response_store.db": "Stored API responses are not imported.",
    "kanban.db": "Boards are not imported.",
    "projects.db": "Projects are not imported.",
    "memory_store.db": "Only MEMORY.md and USER.md are imported from memory.",
    "webhook_subscriptions.json": "Create webhooks here anew: see docs/webhooks.md.",
    "scripts": "Scripts are not imported.",
    "profiles": "Import each profile by its own folder.",
    "gateway.json": "It is an older form of config.yaml.",
}


# -- memory -----------------------------------------------------------------------------------------------


def plan_memory(home: HermesHome, target: Target) -> list[Planned]:
    """Return an item for each fact of MEMORY.md and USER.md. They go to the memory of the owner."""
    root = (target.settings.store.shared or target.home) / "memory"
    files, place = MemoryFiles(root), MemoryPlace(target.agent, OWNER)
    now = target.store.clock.now()
    known = {
        page.page: {words_of(line).casefold() for line in facts(page.text)} for page in files.pages(place)
    }
    found: list[Planned] = []
    for page in MemoryPage:
        for text in _facts(home.text(f"memories/{page}")):
            key = derived_id("memory", f"{page}:{text}")
            item = ImportItem(
                f"memory:{page}:{key[-8:]}",
                ImportKind.MEMORY,
                clean_line(text, 80),
                ImportState.PLANNED,
                page,
            )
            if text.casefold() in known[page]:
                found.append((item.skip("It is remembered already."), None))
            else:
                found.append((item, partial(_remember, files, place, item, AddFact(page, text), now)))
    return found


def _facts(text: str | None) -> list[str]:
    """Return the entries of a page, each as one line and once."""
    entries = (" ".join(entry.split()) for entry in (text or "").split(f"\n{_SEPARATOR}\n"))
    return [*dict.fromkeys(entry for entry in entries if entry and entry != _SEPARATOR)]


async def _remember(
    files: MemoryFiles, place: MemoryPlace, item: ImportItem, edit: AddFact, now: float
) -> ImportItem:
    origin = EditOrigin(item.id, _ORIGIN, now)

    def add(text: str) -> Edited:
        return apply_edit(text, edit, origin)

    try:
        await asyncio.to_thread(files.change, place, edit.page, add)
    except ToolError as error:
        return item.skip(f"{error.user_text} {error.hint}")
    return item.done()


# -- skills -----------------------------------------------------------------------------------------------


def plan_skills(home: HermesHome, target: Target) -> list[Planned]:
    """Return an item for each skill. A skill that came with hermes-agent is left out."""
    library, bundled = SkillLibrary(target.home / FOLDER), _read_bundled(home)
    return [_plan_skill(home, library, folder, bundled) for folder in _skill_folders(home.path / "skills")]


def _skill_folders(top: Path) -> Iterator[Path]:
    for folder in find_skills(top, _DEPTH):
        if not set(folder.relative_to(top).parts) & {*_HIDDEN}:
            yield folder
    if top.is_dir():
        yield from (path for path in sorted(top.rglob("*")) if path.is_symlink() and path.is_dir())


def _plan_skill(home: HermesHome, library: SkillLibrary, folder: Path, bundled: set[str]) -> Planned:
    name = folder.relative_to(home.path / "skills").as_posix()
    item = ImportItem(
        f"skill:{clean_line(name)}", ImportKind.SKILL, clean_line(folder.name), ImportState.PLANNED
    )
    if folder.is_symlink():
        return item.skip(
            "It is a link. Add the folder that it leads to with `talaria skills add PATH`."
        ), None
    if folder.name in bundled:
        return item.skip(
            "It came with hermes-agent. To have it, add it with `talaria skills add PATH`."
        ), None
    try:
        content = read_skill(folder)
    except (TalariaError, OSError) as error:
        text = f"{error.user_text} {error.hint}" if isinstance(error, TalariaError) else str(error)
        return item.skip(text.strip()), None
    target = library.root / content.head.name
    if target.exists():
        try:
            is_same = read_skill(target).digest == content.digest
        except (TalariaError, OSError):
            is_same = False
        if is_same:
            return item.skip("It was imported before."), None
        return item.conflict(f"There is another skill {content.head.name} in {library.root}."), None
    note = f"Accept it with `talaria skills accept {content.head.name}`."
    item = ImportItem(item.id, item.kind, item.title, item.state, content.head.name, note=note)
    return item, partial(_copy_skill, library, folder, content, item)


def _read_bundled(home: HermesHome) -> set[str]:
    lines = (home.text(_BUNDLED) or "").splitlines()
    return {line.partition(":")[0].strip() for line in lines if ":" in line}


async def _copy_skill(
    library: SkillLibrary, folder: Path, content: SkillContent, item: ImportItem
) -> ImportItem:
    try:
        await asyncio.to_thread(library.put, folder, content)
    except (TalariaError, OSError) as error:
        return item.skip(str(error))
    return item.done()


# -- the rest ---------------------------------------------------------------------------------------------


def list_side_files(home: HermesHome) -> Iterator[ImportItem]:
    """Yield an item for each file and folder that a person may miss here."""
    for name, reason in _SIDE.items():
        if (home.path / name).exists():
            yield ImportItem(f"file:{name}", ImportKind.FILE, name, ImportState.SKIPPED, reason=reason)
