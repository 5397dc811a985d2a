"""The files of memory: `MEMORY.md` and `USER.md` in a folder for each place.

    memory/AGENT/                    the owner's
    memory/AGENT/people/NAME/        another person's
    memory/AGENT/chats/NAME/         of a group, or another chat that is no person's
    …/earlier/                       pages before they were shortened, cleared or rewritten

A write replaces the file at once, so a kill leaves the old page or the new one. Writers of all processes take
turns. People edit the files too: a file that changes while a write is prepared is read again.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeAlias

from talaria.core.access import OWNER
from talaria.core.errors import ToolError
from talaria.core.failpoints import Failpoint, hit
from talaria.core.limits import BoundedDict
from talaria.core.memory import MemoryPage, MemoryPlace, PageContent
from talaria.core.whole_files import lock_file, sync, write_new
from talaria.memory.pages import Edited, body, page_digest

MAX_READ_BYTES: Final = 64 << 10
_EARLIER_KEPT: Final = 10
_TRIES: Final = 20
_PLACES_KEPT: Final = 1024
_SAFE: Final = re.compile("[a-z0-9._-]")

Stamp: TypeAlias = tuple[int, int, int, int] | None


def folder_name(text: str) -> str:
    """Return a name for a folder that no other text has, on file systems that ignore case too."""
    parts = ("".join(c if _SAFE.match(c) else _escape(c) for c in part) for part in text.split(":"))
    return "+".join(parts)


def _escape(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


class _KnownPages:
    """The pages of a place as they were read last."""

    __slots__ = ("folder", "pages", "paths", "stamps")

    def __init__(self, folder: Path, paths: tuple[str, ...]) -> None:
        self.folder = folder
        self.paths = paths
        self.stamps: tuple[Stamp, ...] | None = None
        self.pages: tuple[PageContent, ...] = ()


class MemoryFiles:
    """The pages of all places below a folder. `pages` takes microseconds unless a file has changed; `change`
    blocks for longer. Both are safe in any thread."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._cache: BoundedDict[MemoryPlace, _KnownPages] = BoundedDict(_PLACES_KEPT)

    def folder(self, place: MemoryPlace) -> Path:
        agent = self._root / folder_name(place.agent)
        if place.person == OWNER:
            return agent
        if place.person is not None:
            return agent / "people" / folder_name(place.person)
        return agent / "chats" / folder_name(place.chat)

    def pages(self, place: MemoryPlace) -> tuple[PageContent, ...]:
        """Return the pages of a place. They are read again only if a file has changed. A page that cannot be
        read is empty and says why."""
        known = self._cache.get(place)
        if known is None:
            folder = self.folder(place)
            known = _KnownPages(folder, tuple(str(folder / page) for page in place.pages))
            self._cache[place] = known
        stamps = tuple([_stamp(path) for path in known.paths])
        if stamps != known.stamps:
            known.pages = tuple(_read(known.folder, page) for page in place.pages)
            known.stamps = stamps
        return known.pages

    def troubles(self) -> list[str]:
        """Return what is wrong with files of any place, each as a sentence with the file's path."""
        found = []
        for page in MemoryPage:
            for path in sorted(self._root.rglob(page.value)):
                content = _read(path.parent, page)
                if content.trouble:
                    found.append(f"{path}: {content.trouble}")
                elif content.size > page.max_bytes:
                    found.append(f"{path} has {content.size} bytes, and only {page.max_bytes} are read.")
        return found

    def change(
        self, place: MemoryPlace, page: MemoryPage, edit: Callable[[str], Edited], *, keeps: bool = False
    ) -> Edited:
        """Replace a page by what `edit` makes of it. With `keeps`, a copy of the page before is kept.

        Raises what `edit` raises, and `ToolError` if the file cannot be written, or not without a loss.
        """
        if page not in place.pages:
            raise ToolError(
                f"{page} is not used here: it is about one person, and this chat is no person's own.",
                f"Use {MemoryPage.MEMORY}.",
            )
        folder = self.folder(place)
        try:
            with self._lock():
                for _ in range(_TRIES):
                    before = _stamp(folder / page)
                    current = _read(folder, page)
                    if current.trouble:
                        raise ToolError(current.trouble, "A person must fix the file first.")
                    edited = edit(current.text)
                    if edited.text == current.text:
                        return edited
                    if self._replace(folder, page, edited.text, before, current.text if keeps else ""):
                        return edited
        except OSError as error:
            raise ToolError(
                f"The memory cannot be written: {error.strerror or error}.", "Tell the person."
            ) from error
        raise ToolError(f"{page} changes all the time, so nothing was written.", "Try again in a moment.")

    def _replace(self, folder: Path, page: MemoryPage, text: str, before: Stamp, kept: str) -> bool:
        """Write the page, unless its file has changed since `before`. Return whether it was written."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in folder.glob(f".{page}.*"):  # by a writer that was killed
            left.unlink(missing_ok=True)
        draft = folder / f".{page}.{secrets.token_hex(4)}"
        try:
            write_new(draft, text.encode())
            if kept.strip():
                _keep_earlier(folder, page, kept)
            if _stamp(folder / page) != before:
                return False
            hit(Failpoint.REMEMBERING)
            draft.replace(folder / page)
        finally:
            draft.unlink(missing_ok=True)
        sync(folder)
        hit(Failpoint.REMEMBERED)
        return True

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Let one writer of all processes in. The lock is free when its process has ended."""
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with lock_file(self._root / ".lock"):
            yield


def _stamp(path: Path | str) -> Stamp:
    try:
        found = os.stat(path)  # noqa: PTH116 - for each message, and several times as fast
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _read(folder: Path, page: MemoryPage) -> PageContent:
    try:
        # A pipe that somebody put there would block: only plain files are read.
        if (folder / page).exists() and not (folder / page).is_file():
            return PageContent(page, "", "", 0, f"{page} is not a file.")
        with (folder / page).open("rb") as file:
            data = file.read(MAX_READ_BYTES + 1)
    except FileNotFoundError:
        data = b""
    except OSError as error:
        return PageContent(page, "", "", 0, f"{page} cannot be read: {error.strerror or error}.")
    if len(data) > MAX_READ_BYTES:
        return PageContent(page, "", "", len(data), f"{page} has more than {MAX_READ_BYTES} bytes.")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return PageContent(page, "", "", len(data), f"{page} is not text in UTF-8.")
    text = text.removeprefix("\ufeff").replace("\0", "")
    return PageContent(page, text, page_digest(text), len(data))


def _keep_earlier(folder: Path, page: MemoryPage, text: str) -> None:
    earlier = folder / "earlier"
    earlier.mkdir(exist_ok=True, mode=0o700)
    stem = page.removesuffix(".md")
    when = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    write_new(earlier / f"{stem}-{when}.md", f"{body(text)}\n".encode())
    for old in sorted(earlier.glob(f"{stem}-*.md"))[:-_EARLIER_KEPT]:
        old.unlink(missing_ok=True)
