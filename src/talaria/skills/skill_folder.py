"""A skill's folder as it is on the disk: its SKILL.md, its files, and the hash of all of them.

Only plain files count. A folder with a link, a special file, or more than the limits is refused as a whole.
Folders are opened one below the other without following links, so the files that were checked are the ones
that are read. Everything here blocks.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from talaria.core.text import (
    CONTROLS,
    CONTROLS_8_BIT,
    DIRECTION_MARKS,
    LINE_SEPARATORS,
    MISLEADING,
    clean_line,
    cut,
)
from talaria.core.units import format_size
from talaria.core.whole_files import write_new
from talaria.skills.front_matter import SkillError, Value, read_front_matter

MAX_FILES: Final = 1000
MAX_BYTES: Final = 32 << 20
MAX_INSTRUCTIONS: Final = 256 << 10  # bytes of SKILL.md
MAX_DESCRIPTION: Final = 1024
_MAX_NAME: Final = 64
_MAX_ALLOWED: Final = 2000  # characters of `allowed-tools`
_MAX_PATH: Final = 240
_MAX_DEPTH: Final = 12
_LEFT_OUT: Final = {".git", ".hg", ".svn", ".DS_Store", "__pycache__"}  # are no part of a skill
_UNSUITABLE: Final = re.compile("[^a-z0-9_]+")
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SkillHead(msgspec.Struct, frozen=True):
    """The part of a SKILL.md that says what the skill is.

    The model is not told of a skill that is not `is_offered`; a person can still call it. One that is not
    `is_callable` is no command. `allowed_tools` is shown to people and gives the skill nothing. `notes` are
    sentences about fields that were missing or had to be changed.
    """

    name: str
    description: str
    license: str = ""
    compatibility: str = ""
    allowed_tools: tuple[str, ...] = ()
    is_offered: bool = True
    is_callable: bool = True
    notes: tuple[str, ...] = ()


class SkillFile(msgspec.Struct, frozen=True):
    """A file of a skill. `path` is relative to the skill's folder."""

    path: str
    size: int
    digest: str
    is_program: bool = False


class SkillContent(msgspec.Struct, frozen=True):
    """All that a skill's folder has. Two folders with the same `digest` have the same files, byte by byte,
    with the same ones executable."""

    head: SkillHead
    files: tuple[SkillFile, ...]
    digest: str

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def read_skill(
    folder: Path, copy: Path | None = None, take: Callable[[str, bytes], None] | None = None
) -> SkillContent:
    """Read a skill's folder. With `copy`, the bytes that were read are also written to this new folder. With
    `take`, it is called with the path and the bytes of each file.

    Raises `SkillError` that says what is wrong with it, and `OSError`.
    """
    files: list[SkillFile] = []
    instructions: bytes | None = None
    total = 0
    whole = hashlib.sha256()
    with _opened(folder) as top:
        for path, data, is_program in _walk(top, ""):
            total += len(data)
            if len(files) >= MAX_FILES:
                raise SkillError(f"The skill has more than {MAX_FILES} files.", "Leave some of them out.")
            if total > MAX_BYTES:
                raise SkillError(
                    f"The skill has more than {format_size(MAX_BYTES)}.", "Leave large files out."
                )
            digest = hashlib.sha256(data).hexdigest()
            files.append(SkillFile(path, len(data), digest, is_program))
            whole.update(f"{len(path.encode())}:{path}:{int(is_program)}:{digest}\n".encode())
            if path.upper() == "SKILL.MD" and (instructions is None or path == "SKILL.md"):
                instructions = data
            if copy is not None:
                _write(copy, path, data, is_program=is_program)
            if take is not None:
                take(path, data)
    if instructions is None:
        raise SkillError(f"{folder} has no SKILL.md.", "A skill is a folder with a file of this name.")
    return SkillContent(read_head(instructions, folder.name), tuple(files), whole.hexdigest())


def instructions_name(content: SkillContent) -> str:
    """Return the path of the skill's SKILL.md, as it is written there."""
    paths = [file.path for file in content.files if file.path.upper() == "SKILL.MD"]
    return "SKILL.md" if "SKILL.md" in paths else paths[0]


def find_skills(folder: Path, depth: int = 5) -> Iterator[Path]:
    """Yield the folders with a SKILL.md in a folder and below it, in a stable order. A skill's own folders
    are not looked into, and links are not followed."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    if any(entry.name.upper() == "SKILL.MD" and entry.is_file(follow_symlinks=False) for entry in entries):
        yield folder
        return
    for entry in entries:
        if depth and entry.is_dir(follow_symlinks=False) and entry.name not in _LEFT_OUT:
            yield from find_skills(Path(entry.path), depth - 1)


def read_head(instructions: bytes, folder_name: str) -> SkillHead:
    """Read the front matter of a SKILL.md. Raises `SkillError`."""
    if len(instructions) > MAX_INSTRUCTIONS:
        limit = format_size(MAX_INSTRUCTIONS)
        raise SkillError(f"SKILL.md has more than {limit}.", "Move parts of it to other files.")
    try:
        fields, body = read_front_matter(instructions.decode())
    except UnicodeDecodeError:
        raise SkillError("SKILL.md is not text in UTF-8.", "Save it as UTF-8.") from None
    notes: list[str] = []
    said = _line(fields.get("name", ""))
    name = suitable_name(said) or suitable_name(folder_name)
    if not name:
        raise SkillError("The skill has no name.", "Write `name: my-skill` in its front matter.")
    if not said:
        notes.append(f"It has no name, so it is called {name} as its folder.")
    elif said != name:
        notes.append(f"Its name {said!r} is written {name} here: small letters, digits, - and _.")
    description = _line(fields.get("description", ""))
    if not description:
        description = _first_sentence(body)
        notes.append("It has no description, so the model reads the beginning of its text.")
    if not description:
        raise SkillError("The skill has no description.", "Write `description:` in its front matter.")
    if len(description) > MAX_DESCRIPTION:
        notes.append(f"Its description has more than {MAX_DESCRIPTION} characters; the rest is left out.")
    allowed = fields.get("allowed-tools", fields.get("allowed_tools", ""))
    return SkillHead(
        name,
        clean_line(description, MAX_DESCRIPTION),
        clean_line(_line(fields.get("license", ""))),
        clean_line(_line(fields.get("compatibility", "")), 500),
        tuple(clean_line(tool, 64) for tool in (_words(allowed))),
        is_offered=_line(fields.get("disable-model-invocation", "")).lower() != "true",
        is_callable=_line(fields.get("user-invocable", "")).lower() != "false",
        notes=tuple(notes),
    )


def suitable_name(text: str) -> str:
    """Return a name for a skill that is made of this text: small letters, digits, hyphens and underscores."""
    return _UNSUITABLE.sub("-", text.lower()).strip("-_")[:_MAX_NAME].strip("-_")


# -- reading ------------------------------------------------------------------------------------------------


def _line(value: Value) -> str:
    return " ".join((value if isinstance(value, str) else ", ".join(value)).split())


def _words(value: Value) -> tuple[str, ...]:
    if not isinstance(value, str):
        return value
    words = re.split(r",\s*|\s+(?![^()]*\))", value[:_MAX_ALLOWED])
    return tuple(word.strip() for word in words if word.strip())


def _first_sentence(body: str) -> str:
    for line in body.splitlines():
        if (text := line.strip()) and not text.startswith(("#", "```", "<", "---", "!")):
            return clean_line(text)
    return ""


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Open a folder that is no link."""
    try:
        descriptor = os.open(folder, _FOLDER)
    except NotADirectoryError:
        raise SkillError(f"{folder} is not a folder.", "A skill is a folder, and no link to one.") from None
    except FileNotFoundError:
        raise SkillError(f"There is no {folder}.", "Name a folder that exists.") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _walk(folder: int, above: str, depth: int = 0) -> Iterator[tuple[str, bytes, bool]]:
    """Yield path, content and whether it is executable of each file, sorted by name in each folder."""
    with os.scandir(folder) as found:
        entries = sorted((entry for entry in found if entry.name not in _LEFT_OUT), key=lambda one: one.name)
    for entry in entries:
        path = f"{above}{entry.name}"
        if not path.isprintable() or len(os.fsencode(path)) > _MAX_PATH:
            raise SkillError(
                f"The skill has a file with an unsuitable name: {clean_line(path)!r}.", "Rename it."
            )
        if entry.is_dir(follow_symlinks=False):
            if depth >= _MAX_DEPTH:
                raise SkillError(f"{path} lies too deep.", f"A skill has at most {_MAX_DEPTH} levels.")
            inner = os.open(entry.name, _FOLDER, dir_fd=folder)
            try:
                yield from _walk(inner, f"{path}/", depth + 1)
            finally:
                os.close(inner)
            continue
        if not entry.is_file(follow_symlinks=False):
            what = "a link" if entry.is_symlink() else "not a plain file"
            raise SkillError(f"{path} is {what}.", "A skill has plain files only.")
        fd = os.open(entry.name, _FILE, dir_fd=folder)
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise SkillError(f"{path} is not a plain file.", "A skill has plain files only.")
            yield path, file.read(MAX_BYTES + 1), bool(status.st_mode & 0o111)


def _write(top: Path, path: str, data: bytes, *, is_program: bool) -> None:
    """Write a file that everybody may read, since commands may run as another user. The home is closed to
    others."""
    folder = top
    for name in ("", *path.split("/")[:-1]):
        folder /= name
        with suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(0o755)
    write_new(top / path, data, 0o555 if is_program else 0o444, is_durable=False)


# -- the changes between two versions of a skill, as text for a person ------------------------------------
# Control characters are shown as escapes, so that a text cannot hide a part of itself. Blocks.


MAX_LINES: Final = 400
_MAX_COMPARED: Final = 256 << 10  # bytes of a file; a larger one is only named
_MAX_WIDTH: Final = 400
# The joiner U+200D is not among them: emoji are made with it.
_HIDDEN: Final = re.compile(
    f"[{CONTROLS}{CONTROLS_8_BIT}{LINE_SEPARATORS}{MISLEADING}{DIRECTION_MARKS}"
    "\u200b\u200c\u2060-\u2065\U000e0000-\U000e007f]"
)


def show_changes(
    before: SkillContent, old_folder: Path, after: SkillContent, new_folder: Path
) -> Iterator[str]:
    """Yield the lines of a unified diff over all files, at most `MAX_LINES`."""
    for count, line in enumerate(_changes(before, old_folder, after, new_folder)):
        if count == MAX_LINES:
            yield f"… and more: compare {old_folder} with {new_folder}."
            return
        yield reveal(line)


def reveal(text: str) -> str:
    """Return a line in which characters that nobody would see are written as escapes."""
    return _HIDDEN.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", cut(text, _MAX_WIDTH))


def count_hidden(data: bytes) -> int:
    """Return how many characters of a text nobody would see. A file that is no text has none."""
    if b"\0" in data:
        return 0
    text = data.decode(errors="replace").removeprefix("\ufeff").replace("\r\n", "\n")
    return len(_HIDDEN.findall(text))


def _changes(before: SkillContent, old_folder: Path, after: SkillContent, new_folder: Path) -> Iterator[str]:
    old = {file.path: file for file in before.files}
    new = {file.path: file for file in after.files}
    for path in sorted(old.keys() | new.keys()):
        was, now = old.get(path), new.get(path)
        if was == now:
            continue
        if was is not None and now is not None and was.digest == now.digest:
            yield f"{path}: {'may be run now' if now.is_program else 'is no program any more'}"
            continue
        texts = _text(old_folder, was), _text(new_folder, now)
        if texts[0] is None or texts[1] is None:
            yield f"{path}: {_describe(was)} → {_describe(now)}"
            continue
        yield from difflib.unified_diff(
            texts[0],
            texts[1],
            f"accepted/{path}" if was else "/dev/null",
            f"now/{path}" if now else "/dev/null",
            lineterm="",
        )


def _describe(file: SkillFile | None) -> str:
    return "nothing" if file is None else f"{format_size(file.size)} ({file.digest[:12]})"


def _text(folder: Path, file: SkillFile | None) -> list[str] | None:
    """Return the lines of a file; None for one that is large or no text."""
    if file is None:
        return []
    if file.size > _MAX_COMPARED:
        return None
    data = (folder / file.path).read_bytes()
    return None if b"\0" in data else data.decode(errors="replace").split("\n")
