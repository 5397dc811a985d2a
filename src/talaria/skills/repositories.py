"""Skills from git repositories: fetched as data. Nothing of a repository is run, and nothing is checked out.

The files are read out of the object store, so hooks, filters, submodules, links and attributes of a
repository have no effect. Everything here blocks.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from talaria.core.text import clean_line
from talaria.core.units import format_size
from talaria.core.whole_files import write_new
from talaria.skills.front_matter import SkillError

_SECONDS: Final = 300
_MAX_PACK: Final = 1 << 30  # bytes of a file that git writes
_MAX_FILES: Final = 100_000
_MAX_TAKEN: Final = 512 << 20  # bytes of all skills of a repository
_MAX_DEPTH: Final = 64  # folders around a file
_MAX_NAME: Final = 255  # bytes
_SCHEMES: Final = ("https", "ssh", "file")
_SCP: Final = re.compile(r"[\w.-]+@[\w.-]+:(?!//).+")
_TREE: Final = re.compile(r"(/[^/]+/.+?)/(?:-/)?tree/([^/]+)(?:/(.*))?\Z")
_COMMIT: Final = re.compile(r"[0-9a-f]{40,64}")
_OF_A_REPOSITORY: Final = {
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR"),
    *(
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_NAMESPACE",
        "GIT_PREFIX",
        "GIT_SHALLOW_FILE",
        "GIT_TEMPLATE_DIR",
    ),
}
_LINK, _SUBMODULE, _PROGRAM = "120000", "160000", "100755"


class Repository(msgspec.Struct, frozen=True):
    """A place to fetch from: a branch or tag of a repository, and a folder in it. Empty means its default."""

    url: str
    branch: str = ""
    folder: str = ""


class FetchedFile(msgspec.Struct, frozen=True):
    """A file of a commit. `mode` is that of git."""

    path: str
    mode: str
    object_id: str
    size: int


def parse_source(text: str) -> Repository | None:
    """Return the repository that a text names; None for the path of a folder. Pages of a folder on GitHub and
    GitLab (`…/tree/BRANCH/FOLDER`) are understood. Raises `SkillError` for an address that is not taken."""
    if _SCP.fullmatch(text):
        return Repository(text)
    if "://" not in text:
        return None
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise SkillError(f"The address is not understood: {error}.", "Is it typed right?") from None
    if parts.scheme not in _SCHEMES:
        raise SkillError(
            f"Skills are not fetched by {parts.scheme}.", "Use an https:// or ssh:// address, or a path."
        )
    if parts.scheme == "https" and (found := _TREE.fullmatch(parts.path.rstrip("/"))):
        url = urlunsplit((parts.scheme, parts.netloc, found[1], "", ""))
        return Repository(url, unquote(found[2]), unquote(found[3] or ""))
    return Repository(text)


def spoken_address(url: str) -> str:
    """Return an address without the credentials in it."""
    if _SCP.fullmatch(url):
        return url
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


@contextmanager
def fetched(repository: Repository) -> Iterator[tuple[Path, str]]:
    """Fetch the newest commit, and yield a folder with the files of its skills, and where they come from.
    The folder is removed afterwards. Raises `SkillError`."""
    with tempfile.TemporaryDirectory(prefix="talaria-skills-") as name:
        store, target = Path(name, "objects.git"), Path(name, "files")
        target.mkdir()
        words = ["clone", "--bare", "--depth=1", "--no-tags", "--single-branch", "--template=", "--quiet"]
        if repository.branch:
            words.append(f"--branch={repository.branch}")
        _git([*words, "--", repository.url, str(store)], repository)
        commit = _git(["--git-dir", str(store), "rev-parse", "HEAD"], repository).decode().strip()
        if not _COMMIT.fullmatch(commit):
            raise SkillError(f"{spoken_address(repository.url)} has no commit.")
        try:
            _write_skills(store, repository, target)
        except FileExistsError as error:
            path = Path(error.filename).relative_to(target)
            raise _unusable(repository, f"it has several entries named {clean_line(str(path))}") from error
        except OSError as error:
            raise SkillError(
                f"The skills of {spoken_address(repository.url)} cannot be written: {error.strerror}.",
                f"Is there room in {tempfile.gettempdir()}?",
            ) from error
        yield target, f"{spoken_address(repository.url)}@{commit[:12]}"


def _write_skills(store: Path, repository: Repository, target: Path) -> None:
    """Write the folders with a SKILL.md, each with all that is below it."""
    files = _list_files(store, repository)
    tops = {PurePosixPath(file.path).parent for file in files if _is_instructions(file.path)}
    taken = [file for file in files if not tops.isdisjoint(PurePosixPath(file.path).parents)]
    if (total := sum(file.size for file in taken)) > _MAX_TAKEN:
        raise SkillError(
            f"The skills of the repository have {format_size(total)}.", "Name a folder of it: --folder."
        )
    contents = _read_objects(store, repository, taken)
    for file, content in zip(taken, contents, strict=True):
        path = target / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if file.mode == _LINK:  # found and refused when the skill is read
            path.symlink_to("a-link-of-the-repository")
            continue
        write_new(path, content, 0o700 if file.mode == _PROGRAM else 0o600, is_durable=False)


def _unusable(repository: Repository, why: str) -> SkillError:
    where = spoken_address(repository.url)
    return SkillError(f"{where} cannot be used: {why}.", "Report it to the authors, or use another source.")


def _is_instructions(path: str) -> bool:
    return PurePosixPath(path).name.upper() == "SKILL.MD"


def _list_files(store: Path, repository: Repository) -> list[FetchedFile]:
    folder = PurePosixPath(repository.folder.strip("/") or ".")
    if ".." in folder.parts:
        raise SkillError(f"{repository.folder} is not a folder of the repository.", "Name one without `..`.")
    words = ["--git-dir", str(store), "ls-tree", "-r", "-l", "-z", "--full-tree", "--", "HEAD"]
    listed = _git([*words, *([f"{folder}/"] if str(folder) != "." else [])], repository)
    files = []
    for row in listed.decode(errors="replace").split("\0"):
        if not row:
            continue
        about, _, path = row.partition("\t")
        mode, _kind, object_id, size = about.split()
        parts = PurePosixPath(path).parts
        if mode == _SUBMODULE or ".." in parts or path.startswith("/") or ".git" in map(str.lower, parts):
            continue
        if len(parts) > _MAX_DEPTH or any(len(part.encode()) > _MAX_NAME for part in parts):
            raise _unusable(repository, f"the path {clean_line(path, 60)} is too long or too deep")
        if not size.isdecimal():
            raise _unusable(repository, f"{clean_line(path, 60)} is not a file")
        files.append(FetchedFile(path, mode, object_id, int(size)))
    if len(files) > _MAX_FILES:
        raise SkillError(f"The repository has more than {_MAX_FILES} files.", "Name a folder: --folder.")
    if not any(_is_instructions(file.path) for file in files):
        where = f"The folder {folder} of it" if str(folder) != "." else spoken_address(repository.url)
        raise SkillError(f"{where} has no SKILL.md.", "A skill is a folder with a file of this name.")
    return files


def _read_objects(store: Path, repository: Repository, files: list[FetchedFile]) -> Iterator[bytes]:
    asked = "".join(f"{file.object_id}\n" for file in files).encode()
    answer = _git(["--git-dir", str(store), "cat-file", "--batch"], repository, asked)
    at = 0
    for file in files:
        head = f"{file.object_id} blob {file.size}\n".encode()
        if not answer.startswith(head, at):
            raise _unusable(repository, f"{clean_line(file.path, 60)} is not a file")
        at += len(head)
        yield answer[at : at + file.size]
        at += file.size + 1


def _git(words: list[str], repository: Repository, given: bytes = b"") -> bytes:
    """Run git as data only: no hooks, no prompts, no other protocols. Raises `SkillError`."""
    fixed = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "submodule.recurse=false")
    command = ["git", *(word for each in fixed for word in ("-c", each)), *words]
    environ = {name: value for name, value in os.environ.items() if name not in _OF_A_REPOSITORY}
    environ |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": ":".join(_SCHEMES), "LC_ALL": "C"}
    environ |= {"GIT_LFS_SKIP_SMUDGE": "1", "GIT_NO_REPLACE_OBJECTS": "1"}
    where = spoken_address(repository.url)
    try:
        done = subprocess.run(  # noqa: S603 - the address stands behind `--`
            command,
            input=given,
            capture_output=True,
            check=False,
            timeout=_SECONDS,
            env=environ,
            preexec_fn=_limit,  # the program has one thread here
        )
    except FileNotFoundError:
        raise SkillError("git is not installed.", "Install git, or give the path of a folder.") from None
    except subprocess.TimeoutExpired:
        raise SkillError(f"{where} took more than {_SECONDS // 60} minutes.", "Try again later.") from None
    if done.returncode:
        said = clean_line(done.stderr.decode(errors="replace").replace(repository.url, where))
        raise SkillError(f"{where} cannot be fetched: {said}", "Is the address right, and public?")
    return done.stdout


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_PACK, _MAX_PACK))
