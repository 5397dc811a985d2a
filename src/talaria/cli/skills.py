"""`talaria skills`: adds, lists, checks, accepts and removes skills, in the files of the home."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from talaria.cli.options import Invocation, confirm, group
from talaria.cli.text import columns
from talaria.core.text import clean_line
from talaria.core.units import format_size
from talaria.skills.front_matter import SkillError
from talaria.skills.library import SkillLibrary, SkillState, Standing
from talaria.skills.pins import FOLDER, read_pins
from talaria.skills.repositories import Repository, fetched, parse_source
from talaria.skills.skill_folder import (
    SkillContent,
    count_hidden,
    find_skills,
    read_skill,
    reveal,
    show_changes,
)

_LISTED = 60  # characters of a description
_FEW = 12  # files that are named
_SCRIPTS = (".py", ".sh", ".js", ".mjs", ".ts", ".rb", ".pl")
_WAITING = (SkillState.NEW, SkillState.CHANGED)


@group("skills", "talaria skills add ~/Downloads/pdf", "talaria skills list")
def command() -> None:
    """Add, list, check, accept and remove skills: folders with instructions for special tasks.

    A skill is enabled when you add or accept it, with its content at that time. If you create or edit a
    folder in the home's `skills` by hand, `list` shows it. Run `talaria skills accept` to enable it.
    """


@command.verb(
    "add",
    "talaria skills add ~/Downloads/pdf",
    "talaria skills add https://github.com/anthropics/skills --only pdf",
    "talaria skills add https://github.com/anthropics/skills/tree/main/skills/pdf",
)
@click.argument("source", metavar="PATH|GIT-URL")
@click.option("--only", multiple=True, metavar="NAME", help="Of several skills, this one. Can be repeated.")
@click.option("--all", "takes_all", is_flag=True, help="Of several skills, all.")
@click.option("--folder", default="", metavar="PATH", help="A folder of the repository.")
@click.option("--yes", is_flag=True, help="Do not ask, also about a skill that has changed.")
def _add(
    invocation: Invocation,
    source: str,
    only: tuple[str, ...],
    folder: str,
    *,
    takes_all: bool,
    yes: bool,
) -> None:
    """Copy skills into the home and let them count. A skill that is there already is shown as a diff first.

    Of a git repository the newest commit is fetched; nothing of it is run.
    """
    library = _library(invocation)
    with _opened(source, folder) as (top, origin):
        found = _read_all(top)
        chosen = _choose(found, only, takes_all=takes_all)
        for path, content in chosen:
            if _may_replace(library, path, content, yes=yes):
                library.add(path, content, origin)
                click.echo("\n".join(_describe(content)))
    _tell_how(invocation, [content.head.name for _, content in chosen])


@contextmanager
def _opened(source: str, folder: str) -> Iterator[tuple[Path, str]]:
    """Give a folder with skills on this machine, and where they come from."""
    repository = parse_source(source)
    if repository is not None:
        if folder:
            repository = Repository(repository.url, repository.branch, folder)
        click.echo("Fetching …", err=True)
        with fetched(repository) as given:
            yield given
        return
    path = Path(source).expanduser()
    path = path.parent if path.name.upper() == "SKILL.MD" else path
    if not path.is_dir():
        raise SkillError(f"There is no folder {source}.", "Give the path of a folder, or a git address.")
    yield Path(os.path.realpath(path / folder)), str(Path(os.path.realpath(path)))


def _read_all(top: Path) -> list[tuple[Path, SkillContent | SkillError]]:
    found: list[tuple[Path, SkillContent | SkillError]] = []
    for path in find_skills(top):
        try:
            found.append((path, read_skill(path)))
        except SkillError as error:
            found.append((path, error))
    if not found:
        raise SkillError(f"{top} has no SKILL.md.", "A skill is a folder with a file of this name.")
    return found


def _choose(
    found: Sequence[tuple[Path, SkillContent | SkillError]], only: Sequence[str], *, takes_all: bool
) -> list[tuple[Path, SkillContent]]:
    """Return the skills to be added: the only one, those that are named, all, or what the person says."""
    names = [
        each.head.name if not isinstance(each, SkillError) else clean_line(path.name) for path, each in found
    ]
    if unknown := [name for name in only if name not in names]:
        raise SkillError(f"There is no skill {unknown[0]!r} in it.", f"There are: {', '.join(names)}.")
    if len(found) > 1 and not only and not takes_all:
        for name, (_, each) in zip(names, found, strict=True):
            about = each.user_text if isinstance(each, SkillError) else each.head.description
            click.echo(f"  {name}: {clean_line(about, _LISTED)}")
        if not sys.stdin.isatty():
            raise click.UsageError(f"There are {len(found)} skills: say --only NAME or --all.")
        said = click.prompt("Which ones? Names, or all", default="all")
        only = () if said.strip() == "all" else tuple(said.replace(",", " ").split())
        return _choose(found, only, takes_all=said.strip() == "all")
    chosen: list[tuple[Path, SkillContent]] = []
    for name, (path, each) in zip(names, found, strict=True):
        if only and name not in only:
            continue
        if not isinstance(each, SkillError):
            chosen.append((path, each))
        elif len(found) == 1 or only:
            raise each
        else:
            click.echo(f"{name} is left out: {each}", err=True)
    return chosen


def _may_replace(library: SkillLibrary, path: Path, content: SkillContent, *, yes: bool) -> bool:
    """Return whether a skill may be added. If there is another version, it is shown what would change."""
    name = content.head.name
    if (edited := library.find_edited(path, content)) is not None:
        click.echo(f"{edited} has changes that were not accepted. They would be lost.")
        if not confirm(f"Replace {edited}?", yes=yes, abort=False):
            return False
    pin = read_pins(library.root).get(name)
    if pin is None or not library.copy_of(name).is_dir():
        return True
    if pin.digest == content.digest:
        return True
    click.echo(f"{name} is there already. What would change:")
    _show_diff(library, name, path, content)
    return confirm(f"Replace {name}?", yes=yes, abort=False)


def _describe(content: SkillContent) -> Iterator[str]:
    """Yield what a person should know of a skill before it counts."""
    head = content.head
    programs = [file.path for file in content.files if file.is_program or file.path.endswith(_SCRIPTS)]
    yield f"{head.name}: {clean_line(head.description, 200)}"
    some = f"; scripts: {', '.join(programs[:_FEW])}{' …' if len(programs) > _FEW else ''}"
    count = "1 file" if len(content.files) == 1 else f"{len(content.files)} files"
    yield f"  {count}, {format_size(content.size)}{some if programs else ''}"
    if head.allowed_tools:
        yield f"  It asks for the tools {', '.join(head.allowed_tools)}: that gives it nothing."
    for note in head.notes:
        yield f"  {note}"


def _tell_how(invocation: Invocation, names: Sequence[str]) -> None:
    if not names:
        return
    from talaria.skills.tool import FAMILY
    from talaria.turns.slash import ALIASES, SLASH_COMMANDS

    free = [name for name in names if name not in SLASH_COMMANDS and name not in ALIASES]
    said = f" `/{free[0]} …` calls it yourself." if len(free) == 1 else ""
    what = "it" if len(names) == 1 else "them"
    click.echo(f"New conversations know of {what}; `/reload` tells one that runs.{said}")
    for name in set(names) - set(free):
        click.echo(f"/{name} is a command of Talaria, so this skill cannot be called by name.")
    if FAMILY not in _enabled(invocation):
        text = "tools.enabled in config.toml does not name `skills`, so agents are not told of them."
        click.echo(invocation.spoken(f"{text} `talaria config edit` opens it."), err=True)


def _enabled(invocation: Invocation) -> Sequence[str]:
    from talaria.config.load import load
    from talaria.parts import PARTS

    return load(invocation.any_home().path, os.environ, PARTS).settings.tools.enabled


@command.verb("list", "talaria skills list")
def _list(invocation: Invocation) -> None:
    """The skills, and whether they count."""
    standings = _library(invocation).survey()
    if not standings:
        click.echo(invocation.spoken("There are no skills. `talaria skills add` adds one."))
        return
    rows = [("NAME", "STATE", "FILES", "ABOUT")]
    for each in standings:
        about = each.problem.text or (each.content.head.description if each.content else "")
        files = str(len(each.content.files)) if each.content else "-"
        rows.append((each.name, each.state.value, files, clean_line(about, _LISTED)))
    click.echo(columns(rows))
    if any(each.state in _WAITING for each in standings):
        text = "New ones do not count yet, changed ones count as they were: `talaria skills accept`."
        click.echo(invocation.spoken(text), err=True)


@command.verb("check", "talaria skills check", "talaria skills check pdf", "talaria skills check ./my-skill")
@click.argument("names", nargs=-1, metavar="[NAME|PATH]…")
def _check(invocation: Invocation, names: tuple[str, ...]) -> None:
    """Say what is wrong with skills, and what has changed since they were accepted. Changes nothing.

    A path checks a folder that is not added yet.
    """
    library = _library(invocation)
    standings = library.survey()
    known = {name for each in standings for name in (each.name, each.folder.name)}
    is_broken = False
    for name in names:
        if name not in known:
            for path, content in _read_all(Path(name)):
                if isinstance(content, SkillError):
                    is_broken = True
                    click.echo(f"{clean_line(path.name)}: {content}")
                else:
                    _show(path, content)
    for each in standings:
        if not names or {each.name, each.folder.name} & set(names):
            is_broken |= each.state is SkillState.BROKEN
            _show_standing(invocation, library, each)
    if any(each.state in _WAITING for each in standings):
        click.echo(invocation.spoken("`talaria skills accept` lets new and changed skills count."))
    if not names and not standings:
        click.echo(invocation.spoken("There are no skills. `talaria skills add` adds one."))
    if is_broken:
        click.get_current_context().exit(1)


@command.verb("accept", "talaria skills accept", "talaria skills accept pdf --yes")
@click.argument("names", nargs=-1, metavar="[NAME]…")
@click.option("--yes", is_flag=True, help="Do not ask.")
def _accept(invocation: Invocation, names: tuple[str, ...], yes: bool) -> None:
    """Let new and changed skills count, as they are now. Each is shown first: a changed one as a diff."""
    library = _library(invocation)
    chosen = [library.find(name) for name in names] or [
        each for each in library.survey() if each.state in _WAITING
    ]
    if not chosen:
        click.echo("There is nothing to accept: no skill is new or changed.")
        return
    accepted = []
    for each in chosen:
        _show_standing(invocation, library, each)
        if each.content is None:
            raise SkillError(f"{each.name} cannot be accepted. {each.problem.text}", each.problem.hint)
        if confirm(f"Let {each.name} count?", yes=yes, abort=False):
            library.accept(each)
            accepted.append(each.name)
            click.echo(f"{each.name} counts now.")
    _tell_how(invocation, accepted)


@command.verb("remove", "talaria skills remove pdf")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def _remove(invocation: Invocation, name: str, yes: bool) -> None:
    """Delete a skill's folder. Conversations that list it get an error when they use it."""
    library = _library(invocation)
    standing = library.find(name)
    if confirm(f"Delete {standing.folder}?", yes=yes, abort=False):
        library.remove(standing)
        click.echo(f"{standing.name} is removed.")


def _library(invocation: Invocation) -> SkillLibrary:
    return SkillLibrary(invocation.home().path / FOLDER)


def _show_standing(invocation: Invocation, library: SkillLibrary, each: Standing) -> None:
    if each.content is None:
        click.echo(f"{each.name}: {each.state}. {invocation.spoken(each.problem.sentence())}")
        return
    _show(each.folder, each.content)
    match each.state:
        case SkillState.CHANGED:
            click.echo("  changed since it was accepted; it counts as it was. The changes:")
            _show_diff(library, each.name, each.folder, each.content)
        case SkillState.NEW:
            click.echo("  new: it does not count yet")
        case _:
            click.echo("  in use")


def _show(folder: Path, content: SkillContent) -> None:
    click.echo("\n".join(_describe(content)))
    for file in content.files:
        if count := count_hidden((folder / file.path).read_bytes()):
            click.echo(f"  {reveal(file.path)} has {count} hidden characters.")


def _show_diff(library: SkillLibrary, name: str, path: Path, content: SkillContent) -> None:
    copy = library.copy_of(name)
    for line in show_changes(read_skill(copy), copy, content, path):
        click.echo(f"  {line}")
