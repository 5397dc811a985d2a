"""Planted faults of skills: texts that nobody accepted, shadowed commands, and ways out of a skill."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_TOOL = "tests/tools/test_skill.py"
_LIBRARY = "tests/skills/test_library.py"
_SCENARIOS = "tests/scenarios/test_skills.py"
_PINNED = Edit("tools/skill.py", "    if content.digest != pin.digest:\n", "    if not content.digest:\n")

SKILL_FAULTS = (
    Mutant(
        "edited skill counts",
        "agents read a skill's folder in place of the copy that was accepted",
        (
            Edit(
                "skills/pins.py",
                "        return accepted_folder(self.root) / name\n",
                "        return self.root / name\n",
            ),
            _PINNED,
        ),
        Tests(f"{_SCENARIOS}::test_a_session_reads_what_counts_now"),
    ),
    Mutant(
        "accepted copy not compared",
        "a copy that was changed by hand is shown to agents",
        (_PINNED,),
        Tests(_TOOL),
    ),
    Mutant(
        "another skill accepted than was shown",
        "a folder that changes while a person reads it counts as it is then",
        (
            Edit(
                "skills/library.py",
                "read_skill(folder, draft).digest != digest",
                "not read_skill(folder, draft)",
            ),
        ),
        Tests(_LIBRARY),
    ),
    Mutant(
        "skill shadows a command",
        "a skill named status answers for /status",
        (
            Edit(
                "commands/extra.py", "        known = {*SLASH_COMMANDS, *ALIASES}\n", "        known = {''}\n"
            ),
            Edit(
                "commands/extra.py",
                "        if not name or name in SLASH_COMMANDS or name in ALIASES:\n",
                "        if not name:\n",
            ),
        ),
        Tests(f"{_SCENARIOS}::test_a_skill_is_called_by_its_name_and_shadows_no_command"),
    ),
    Mutant(
        "path out of a skill",
        "`..` in the file leads to other files of the home",
        (
            Edit(
                "tools/skill.py",
                "        named = folder.resolve(file) if file else None\n",
                "        named = FolderPath((file,)) if file else None\n",
            ),
            Edit("tools/skill.py", "    if str(wanted) not in paths:\n", "    if not str(wanted):\n"),
            Edit(
                "tools/skill.py",
                "    data = read[str(wanted)]\n",
                "    data = (copy / str(wanted)).read_bytes()\n",
            ),
            Edit("tools/skill.py", "folder import Folder\n", "folder import Folder, FolderPath\n"),
        ),
        Tests(_TOOL),
    ),
    Mutant(
        "skill read again",
        "a file that is replaced after the comparison of the hash is shown",
        (
            Edit(
                "tools/skill.py",
                "    data = read[str(wanted)]\n",
                "    data = folder.read(wanted, MAX_FILE_BYTES)\n",
            ),
        ),
        Tests(_TOOL),
    ),
    Mutant(
        "link in a skill followed",
        "a skill brings a file of the machine along",
        (
            Edit(
                "skills/skill_folder.py",
                "not entry.is_file(follow_symlinks=False):\n",
                "not entry.is_file():\n",
            ),
            Edit(
                "skills/skill_folder.py",
                "os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK",
                "os.O_RDONLY | os.O_NONBLOCK",
            ),
        ),
        Tests(_LIBRARY),
    ),
)
