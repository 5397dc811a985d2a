"""Planted faults of memory: whose it is, what running sessions hear, and what a kill leaves."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_SCENARIOS = "tests/scenarios/test_memory.py"
_FILES = "tests/memory/test_memory_files.py"
_PINNED = "                return pinned, began.before\n"
_PINNED_ANEW = """\
                pinned = self.specs.refresh_memory(turn.chat_key, pinned)
                if pinned.id == session.spec_id:
                    return (pinned, began.before)
                return pinned, await journal.commit((SpecSet(pinned.id),), specs=(pinned,))
"""
_DRAFT = "            _write(draft, text)\n"
_IN_PLACE = "            (folder / page).write_text(text[: len(text) // 2])\n"
_BEFORE = "            before = _stamp(folder / page)\n"

MEMORY_FAULTS = (
    Mutant(
        "memory for everybody",
        "what one person said is shown to another",
        (
            Edit(
                "core/memory.py",
                'return MemoryPlace(unquote(key.split(":", 2)[1]), person)',
                'return MemoryPlace("main", OWNER)',
            ),
            Edit("core/memory.py", "import KnownPeople, PersonId", "import OWNER, KnownPeople, PersonId"),
        ),
        Tests(f"{_SCENARIOS}::test_what_one_person_said_is_never_shown_to_another"),
    ),
    Mutant(
        "page about a person in a group",
        "USER.md is used in a group",
        (
            Edit(
                "core/memory.py",
                "(MemoryPage.MEMORY,) if self.person is None else tuple(MemoryPage)",
                "tuple(MemoryPage)",
            ),
        ),
        Tests(f"{_SCENARIOS}::test_in_a_group_the_page_about_a_person_is_refused"),
    ),
    Mutant(
        "prefix follows memory",
        "a memory write changes the prompt of a running session",
        (
            Edit(
                "turns/agents.py",
                _PINNED,
                _PINNED_ANEW,
            ),
        ),
        Tests(f"{_SCENARIOS}::test_no_memory_write_breaks_a_prefix"),
    ),
    Mutant(
        "compaction without memory",
        "a session that goes on for weeks never has new facts in its prefix",
        (
            Edit(
                "app.py",
                "Compaction(store, calls, specs.refresh_memory, engine)",
                "Compaction(store, calls, engine=engine)",
            ),
        ),
        Tests(f"{_SCENARIOS}::test_a_compaction_takes_memory_into_the_prefix"),
    ),
    Mutant(
        "own edits are news",
        "a session is told of what it wrote itself",
        (
            Edit(
                "turns/memories.py",
                "if result.name == MEMORY_TOOL and result.outcome is ToolOutcome.OK:",
                'if result.name == "":',
            ),
        ),
        Tests(f"{_SCENARIOS}::test_a_running_session_hears_of_a_change_once_and_not_of_its_own"),
    ),
    Mutant(
        "a change is told again",
        "a session hears of the same change after each restart",
        (
            Edit(
                "turns/memories.py",
                "case UserMessage(text=text) if text.startswith(_HEARD):",
                "case UserMessage(text=text) if not text:",
            ),
        ),
        Tests(f"{_SCENARIOS}::test_a_running_session_hears_of_a_change_once_and_not_of_its_own"),
    ),
    Mutant(
        "memory written in place",
        "a kill leaves half a page",
        (
            Edit(
                "memory/memory_files.py",
                _DRAFT,
                _IN_PLACE + _DRAFT.replace("(draft, text)", "(draft, text, )") + _BEFORE,
            ),
        ),
        Tests(f"{_FILES}::test_a_kill_leaves_the_old_page_or_the_new_one_and_a_repeat_doubles_nothing"),
    ),
    Mutant(
        "an edit twice",
        "an edit that was cut off by a kill is made again",
        (Edit("memory/pages.py", "    if mark in marks:\n", "    if mark in ():\n"),),
        Tests("tests/memory/test_pages.py::test_an_edit_is_carried_out_once"),
    ),
    Mutant(
        "writers without a lock",
        "two processes overwrite each other's facts",
        (
            Edit("memory/memory_files.py", "            fcntl.flock(descriptor, fcntl.LOCK_EX)\n", ""),
            Edit(
                "memory/memory_files.py",
                "            if _stamp(folder / page) != before:\n                return False\n",
                "",
            ),
        ),
        Tests(f"{_FILES}::test_writers_of_several_processes_lose_nothing"),
    ),
    Mutant(
        "hand overwritten",
        "what a person saves while an edit is prepared is lost",
        (
            Edit(
                "memory/memory_files.py",
                "            if _stamp(folder / page) != before:\n                return False\n",
                "",
            ),
        ),
        Tests(f"{_FILES}::test_a_hand_that_edits_meanwhile_is_not_overwritten"),
    ),
    Mutant(
        "memory unasked",
        "content from outside writes memory without an approval",
        (Edit("tools/file_memory.py", "    reaches_out=True,\n", ""),),
        Tests(f"{_SCENARIOS}::test_content_from_outside_writes_no_memory_without_an_approval"),
    ),
    Mutant(
        "secrets remembered",
        "a secret that a hand wrote reaches the model",
        (
            Edit(
                "tools/file_memory.py",
                'redact("\\n\\n".join(sections))',
                '"\\n\\n".join(sections)',
            ),
        ),
        Tests(f"{_SCENARIOS}::test_secrets_are_taken_out_of_what_is_written_and_read"),
    ),
    Mutant(
        "shortened to nothing",
        "a bad answer of the model replaces a full page",
        (Edit("memory/shortening.py", "if size < page.max_bytes * _LEAST:", "if size < 0:"),),
        Tests("tests/memory/test_shortening.py::test_an_answer_that_is_no_shorter_list_is_refused"),
    ),
    Mutant(
        "person by the beginning of an id",
        "the reach of one person includes another's chats",
        (Edit("core/people.py", 'key.startswith(f"{root}:")', "key.startswith(root)"),),
        Tests("tests/access/test_people.py"),
    ),
    Mutant(
        "owner in a group",
        "in a group everything can be seen, because the owner asks",
        (
            Edit(
                "access/people.py",
                "        if person is None:\n",
                "        if person is None and address.kind != _GROUP:\n",
            ),
            Edit(
                "access/people.py",
                "return self.reach_of(person, address.agent)",
                "return self.reach_of(person or OWNER, address.agent)",
            ),
        ),
        Tests("tests/access/test_people.py"),
    ),
)
