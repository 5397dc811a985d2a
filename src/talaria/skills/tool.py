"""The tool `skill`, and what the prompt of a session says about the skills in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from talaria.commands.command import ExtraCommand
from talaria.core.errors import ToolError
from talaria.core.text import clean, clean_line, did_you_mean
from talaria.core.tools import SKILL_TOOL, ToolSpec
from talaria.core.units import format_size
from talaria.skills.pins import SkillPin, SkillsInUse
from talaria.tools.function import Arguments, FunctionTool, parameters, text
from talaria.tools.tool import BuiltinSource, Findable, Tool, ToolContext
from talaria.workspace.folder import Folder

MAX_LISTED_BYTES: Final = 4 << 10
_HEAD: Final = """\
# Skills

Instructions for special tasks. When a task fits one of them, read it with the tool `skill` before you \
begin. A skill permits nothing that you may not do already."""
_MORE: Final = "{count} more skills are not listed: `tool_search` finds them."
_LENGTHS: Final = (1024, 400, 250, 160)  # characters of a description, longest first
_ROOM_FOR_MORE: Final = len(_MORE.encode()) + 8


def list_skills(skills: Mapping[str, SkillPin]) -> tuple[str, tuple[str, ...]]:
    """Return the section of the prompt, which has at most `MAX_LISTED_BYTES`, and the names of skills that
    had no room in it. Descriptions are shortened before a skill is left out."""
    offered = {name: pin.description for name, pin in sorted(skills.items()) if pin.is_offered}
    if not offered:
        return "", ()
    for length in _LENGTHS:
        lines = [_line(name, description, length) for name, description in offered.items()]
        text = "\n".join((_HEAD, "", *lines))
        if len(text.encode()) <= MAX_LISTED_BYTES:
            return text, ()
    kept, left = [_HEAD, ""], list(offered)
    room = MAX_LISTED_BYTES - len(_HEAD.encode()) - 1 - _ROOM_FOR_MORE
    for line in lines:
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
        left.pop(0)
    return "\n".join((*kept, _MORE.format(count=len(left)))), tuple(left)


def _line(name: str, description: str, length: int) -> str:
    shown = description if len(description) <= length else description[: length - 1].rstrip() + "…"
    return f"- {name}: {shown}"


# -- the tool `skill`, which reads the accepted skills ----------------------------------------------------
# Only accepted copies are read, and their hash is compared with the pin before a byte is shown. So the text
# is the operator's, and does not taint the conversation.


FAMILY: Final = "skills"  # in `tools.enabled`
MAX_FILE_BYTES: Final = 1 << 20
_LISTED_FILES: Final = 100
_LISTED_NAMES: Final = 20
_NAME_FILES: Final = "`file` is relative to the skill's folder; '.' lists its files."
_ABOUT: Final = 80  # characters of a description in /help
# How the texts of other programs' skills call the folder of the skill.
_PLACES: Final = ("${CLAUDE_SKILL_DIR}", "${HERMES_SKILL_DIR}", "{baseDir}")

SKILL_SPEC: Final = ToolSpec(
    name=SKILL_TOOL,
    description="Read a skill: its instructions, or one of its files.",
    parameters=parameters(
        {
            "name": text("The name of the skill."),
            "file": text("A path in the skill's folder. Default: SKILL.md."),
        },
        required=["name"],
    ),
    idempotent=True,
    read_only=True,
    uses_files=False,
)


class SkillSource(BuiltinSource):
    """The built-in source of `skill`, which is offered only while a skill counts."""

    name = FAMILY

    def __init__(self, skills: SkillsInUse) -> None:
        self._skills = skills
        self._tool = FunctionTool(SKILL_SPEC, self._run)
        self._listed: tuple[Mapping[str, SkillPin], str, tuple[Findable, ...]] | None = None

    def tools(self) -> tuple[Tool, ...]:
        return (self._tool,) if self._skills.get() else ()

    def subscribe(self, changed: Callable[[], None]) -> None:
        self._skills.subscribe(changed)

    def section(self) -> str:
        return self._list()[1]

    def findables(self) -> tuple[Findable, ...]:
        return self._list()[2]

    def commands(self) -> Iterator[ExtraCommand]:
        for name, pin in self._skills.get().items():
            if pin.is_callable:
                message = partial(_message, name)
                about = clean_line(pin.description, _ABOUT)
                yield ExtraCommand(name=name, help=about, origin="skill", arguments="[TEXT]", message=message)

    def _list(self) -> tuple[Mapping[str, SkillPin], str, tuple[Findable, ...]]:
        """Return the skills that count, the section of the prompt, and those that it has no room for."""
        skills = self._skills.get()
        if self._listed is None or self._listed[0] is not skills:
            section, left = _list_skills(skills)
            found = tuple(Findable(name, skills[name].description, SKILL_TOOL) for name in left)
            self._listed = (skills, section, found)
        return self._listed

    async def _run(self, arguments: Arguments, context: ToolContext) -> str:
        skills, name = self._skills.get(), arguments["name"].strip()
        pin = skills.get(name)
        if pin is None:
            known = ", ".join(list(skills)[:_LISTED_NAMES]) or "none"
            hint = did_you_mean(name, skills, f"There are: {known}.")
            raise ToolError(f"There is no skill {clean(name)[:80]!r}.", hint)
        copy, file = self._skills.copy_of(name), arguments.get("file", "").strip()
        return await context.resources.in_thread(_read, name, pin, copy, file)


def _list_skills(skills: Mapping[str, SkillPin]) -> tuple[str, tuple[str, ...]]:
    if not skills:
        return "", ()

    return list_skills(skills)


def _message(name: str, args: str) -> str:
    """Return the message that `/NAME args` stands for."""
    text = (
        f"[Use the skill {name} for this: read it with the tool `{SKILL_TOOL}` first. If you do not have "
        "that tool, say that /reload brings it.]"
    )
    return f"{args}\n\n{text}" if args else text


def _read(name: str, pin: SkillPin, copy: Path, file: str) -> str:
    """Return what the model reads of a skill. Blocks. Raises `ToolError`."""
    from talaria.skills.front_matter import SkillError  # noqa: PLC0415 - without skills, none is imported
    from talaria.skills.skill_folder import instructions_name, read_skill  # noqa: PLC0415

    folder = Folder(copy)
    try:
        named = folder.resolve(file) if file else None
    except ToolError:
        raise ToolError(f"{clean(file)[:80]!r} is no path in the skill {name}.", _NAME_FILES) from None
    read: dict[str, bytes] = {}  # the bytes that were hashed: the file could be another one afterwards

    def take(path: str, data: bytes) -> None:
        if path == str(named) or (named is None and path.upper() == "SKILL.MD"):
            read[path] = data

    try:
        content = read_skill(copy, take=take)
    except (OSError, SkillError) as error:
        raise ToolError(f"The skill {name} cannot be read: {error}", "Tell the person.") from error
    if content.digest != pin.digest:
        raise ToolError(
            f"The copy of the skill {name} is not what the operator accepted, so it is not shown.",
            f"Tell the person: `talaria skills accept {name}` on the gateway's machine makes it again.",
        )
    paths = [each.path for each in content.files]
    wanted = named or folder.resolve(instructions_name(content))
    if wanted.is_root or any(path.startswith(f"{wanted}/") for path in paths):
        below = [path for path in paths if wanted.is_root or path.startswith(f"{wanted}/")]
        return f"[{copy}]\n{_list_files(below)}"
    if str(wanted) not in paths:
        raise ToolError(f"The skill {name} has no file {wanted}.", _NAME_FILES)
    data = read[str(wanted)]
    if len(data) > MAX_FILE_BYTES:
        text = f"{wanted} has {format_size(len(data))}, which is too much to read."
        raise ToolError(text, f"A command can use it: it is {copy / str(wanted)}.")
    if b"\0" in data:
        raise ToolError(f"{wanted} is not a text.", f"A command can use it: it is {copy / str(wanted)}.")
    shown = data.decode(errors="replace")
    if file:
        return shown
    for place in _PLACES:
        shown = shown.replace(place, str(copy))
    files = [f"{each.path} ({format_size(each.size)})" for each in content.files]
    return f"{_introduce(name, copy)}\n\n{shown.strip()}\n\n{_list_files(files)}"


def _introduce(name: str, copy: Path) -> str:
    return (
        f"[Skill {name}. Its files are in {copy}, which commands can read and run but not change; the "
        "working directory stays this conversation's folder. Paths in the text are relative to the skill's "
        "folder. Tools that it names and you do not have: use those that you have.]"
    )


def _list_files(files: list[str]) -> str:
    lines = [f"- {file}" for file in files[:_LISTED_FILES]]
    if len(files) > _LISTED_FILES:
        lines.append(f"- and {len(files) - _LISTED_FILES} more; name a folder to see what is in it")
    return "\n".join(("Files of the skill:", *lines))
