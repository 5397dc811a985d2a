"""Planted faults of compaction: what is shown, what is kept, and when it is tried again."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_TURNS = "tests/turns/test_compaction.py"
_SHOWN = "tests/core/test_shown.py"
_NO_CHECK = "            summary, failure"
_TAKE = "        if view is not self._agent:\n            revision"
_STORE = "tests/store/test_contract.py::TestCompactionContract"

CONTEXT_FAULTS = (
    Mutant(
        "request beyond the window",
        "a conversation is never compacted",
        (Edit("agent/compaction/keeper.py", "        if tokens <= limits.at:\n", "        if tokens:\n"),),
        Tests(f"{_TURNS}::test_a_conversation_that_outgrows_the_window_goes_on"),
    ),
    Mutant(
        "compaction in a loop",
        "a compaction that failed is tried again with every request",
        (Edit("agent/compaction/keeper.py", "        view.failed_at = before\n", "        pass\n"),),
        Tests(f"{_TURNS}::test_a_compaction_that_fails_is_told_once_and_not_repeated_in_a_loop"),
    ),
    Mutant(
        "summary longer than its source",
        "a summary is committed whatever its size",
        (
            Edit(
                "agent/compaction/keeper.py",
                "after >= before:\n            summary, failure",
                "False:\n            summary, failure",
            ),
            Edit("agent/compaction/keeper.py", "summary is None or after >= before", "summary is None"),
            Edit(
                "agent/compaction/engine.py",
                "            if len(text) >= len(told):\n",
                "            if False:\n",
            ),
        ),
        Tests(f"{_TURNS}::test_a_compaction_that_fails_is_told_once_and_not_repeated_in_a_loop"),
    ),
    Mutant(
        "summary behind an undo",
        "a summary counts although a part of its range was undone",
        (Edit("core/shown.py", "if entry.seq < dropped and not is_touched:", "if entry.seq < dropped:"),),
        Tests(f"{_SHOWN}::test_the_newest_summary_that_is_not_void_is_in_force"),
    ),
    Mutant(
        "floor stays behind an undo",
        "an undo behind the floor does not move it",
        (Edit("store/sql/log.py", "body.first > row[0]", "True"),),
        Tests(f"{_STORE}::test_a_warm_agent_is_built_from_behind_the_floor"),
    ),
    Mutant(
        "thoughts in a stub",
        "signed thoughts of a shortened message are dropped",
        (
            Edit(
                "core/shown.py",
                "                text=short_text(text, name),\n",
                "                reasoning=(), text=short_text(text, name),\n",
            ),
        ),
        Tests(f"{_SHOWN}::test_stubs_keep_ids_calls_and_signed_thoughts"),
    ),
    Mutant(
        "trust after a compaction",
        "content from outside is forgotten when it is summarised",
        (
            Edit(
                "agent/compaction/engine.py",
                "before.untrusted or brought, plan.stubs",
                "False, plan.stubs",
            ),
        ),
        Tests(f"{_TURNS}::test_what_came_from_outside_still_counts_after_a_compaction"),
    ),
    Mutant(
        "compaction of a fallback for good",
        "the shorter view of a fallback is committed",
        (
            Edit(
                "agent/compaction/keeper.py",
                _TAKE,
                f"        await self._journal.commit((summary,))\n{_TAKE.replace('not self', 'not  self')}",
            ),
        ),
        Tests(f"{_TURNS}::test_a_smaller_fallback_gets_a_shorter_view_for_its_turn_only"),
    ),
)
