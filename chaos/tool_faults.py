"""Planted faults of many tools: hidden tools that are wrong, unasked, unnamed or not the session's."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_TURNS = "tests/turns/test_found_tools.py"
_SEARCH = "tests/tools/test_tool_search.py"
_SETS = "tests/tools/test_toolset.py"

TOOL_FAULTS = (
    Mutant(
        "wrapped calls stay wrapped",
        "a person is not asked about what tool_call runs",
        (Edit("agent/journal.py", "tuple(map(inner_call, calls))", "calls"),),
        Tests(f"{_TURNS}::test_a_person_is_asked_about_the_inner_call"),
    ),
    Mutant(
        "steps of the wrapper",
        "the steps of a turn do not name the tool that ran",
        (Edit("agent/loop.py", "_tool_step(n, inner_call(call), ", "_tool_step(n, call, "),),
        Tests(f"{_TURNS}::test_a_call_that_a_kill_ended_is_not_repeated"),
    ),
    Mutant(
        "digests that nobody compares",
        "a server changes a hidden tool, and the conversation runs what it never read",
        (Edit("tools/offering.py", " and spec_digest(now[name].spec) == told", ""),),
        Tests(f"{_TURNS}::test_a_tool_that_has_changed_is_refused_until_reload"),
    ),
    Mutant(
        "hidden tools for every turn",
        "a job calls tools that it was not given",
        (Edit("tools/offering.py", "        names &= set(only)\n", "        names &= {*only, *found}\n"),),
        Tests(f"{_TURNS}::test_a_turn_that_may_use_some_tools_reaches_no_other_through_the_search"),
    ),
    Mutant(
        "search over everything",
        "a session reads of tools that it may not use",
        (Edit("tools/tool_search.py", "if _is_usable(self._items[number], names)", "if True"),),
        Tests(f"{_SEARCH}::test_a_search_finds_only_what_the_session_may_use"),
    ),
    Mutant(
        "spec without the hidden",
        "a restart forgets what a session may find",
        (Edit("agent/spec_resolver.py", "            searched=offer.searched,\n", ""),),
        Tests(f"{_TURNS}::test_what_is_shown_stays_while_use_and_sources_change_and_over_restarts"),
    ),
    Mutant(
        "sources without a bound",
        "one server's 10,000 tools are everybody's",
        (Edit("tools/toolset.py", "counts[origin] >= MOST_OF_ORIGIN", "counts[origin] < 0"),),
        Tests(f"{_SETS}::test_a_source_that_floods_with_tools_gets_no_more_than_its_share"),
    ),
    Mutant(
        "names of ours are free",
        "two tools of a request have one name",
        (Edit("tools/toolset.py", "taken = {TOOL_SEARCH, TOOL_CALL, *", "taken = {*"),),
        Tests(f"{_TURNS}::test_names_are_unique_in_every_request_whatever_a_source_offers"),
    ),
)
