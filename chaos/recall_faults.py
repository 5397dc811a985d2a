"""Planted faults of recall and search: entries that are lost, doubled, or shown to the wrong person."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_INDEX = "tests/search/test_index.py"
_TOOLS = "tests/tools/test_recall.py"
_BRANCHES = "tests/store/test_contract.py::TestMemoryContract"

RECALL_FAULTS = (
    Mutant(
        "index moves on before it is filled",
        "what a killed process was about to index is never found",
        (
            Edit("search/index.py", "        hit(Failpoint.INDEXING)\n", ""),
            Edit(
                "search/index.py",
                "        is_whole = await self._use(_add, batch)\n",
                "        heads = [Addition(*each[:3], [], each.entries[-1].seq) for each in batch]\n"
                "        await self._use(SideFile.add, heads)\n"
                "        hit(Failpoint.INDEXING)\n"
                "        behind = [each._replace(after_seq=each.entries[-1].seq) for each in batch]\n"
                "        is_whole = await self._use(_add, behind)\n",
            ),
        ),
        Tests("tests/search/test_killed.py"),
    ),
    Mutant(
        "two fill the index",
        "entries that two searches index at once are found twice",
        (
            Edit(
                "search/side_file.py",
                "        if (known.head if known else 0) != new.after_seq:\n            return False\n",
                "",
            ),
        ),
        Tests(f"{_INDEX}::test_two_that_fill_it_at_once_add_nothing_twice"),
    ),
    Mutant(
        "damaged index stays",
        "search fails until a person deletes a file",
        (Edit("search/index.py", "if kind_of(error) is not DiskFault.DAMAGED:", "if True:"),),
        Tests(f"{_INDEX}::test_damage_that_a_search_meets_costs_no_hit"),
    ),
    Mutant(
        "search trusts its index",
        "a chat that moved is shown to the person who had its key before",
        (
            Edit(
                "search/index.py",
                "if session is None or not reach.includes(session.chat_key)",
                "if session is None",
            ),
        ),
        Tests(f"{_INDEX}::test_a_chat_that_moved_is_seen_by_its_new_key"),
    ),
    Mutant(
        "recall without reach",
        "an agent reads the sessions of another person",
        (Edit("tools/recall.py", " or not reach.includes(session.chat_key)", ""),),
        Tests(f"{_TOOLS}::test_another_session_is_read_only_within_reach"),
    ),
    Mutant(
        "pages that cut characters",
        "what is expanded page by page has gaps",
        (Edit("tools/recall.py", "data[at] & 0xC0 == 0x80", "data[at] & 0xC0 == 0xC1"),),
        Tests(f"{_TOOLS}::test_pages_of_an_expansion_are_the_whole_text"),
    ),
    Mutant(
        "a deleted parent takes its branches along",
        "a branch cannot recall what it was made from",
        (Edit("store/sql/deletion.py", "kept = branches.kept_seq(tx, session_id)", "kept = 0"),),
        Tests(f"{_BRANCHES}::test_a_deleted_session_has_no_log_but_what_its_branches_know"),
    ),
    Mutant(
        "a deleted parent stays for ever",
        "what a person deleted stays in the database",
        (
            Edit(
                "store/sql/branches.py",
                "        tx.execute(PURGE_PARENT, (row[0], chat_key))\n",
                "        pass\n",
            ),
        ),
        Tests(f"{_BRANCHES}::test_the_last_branch_takes_what_was_kept_along"),
    ),
)
