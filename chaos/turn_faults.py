"""Planted faults of the turns of a cluster."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_HERE = "turns/turns_here.py"
_TESTS = "tests/turns/test_turns_here.py"
_ORDER = Tests(f"{_TESTS}::test_a_message_that_was_accepted_elsewhere_goes_before_later_ones")
_OUT = Tests(f"{_TESTS}::test_a_member_that_is_out_begins_nothing_until_it_is_in_again")

TURN_FAULTS = (
    Mutant(
        "turns begun unplaced",
        "a turn begins before those are known that other members accepted before it",
        (Edit(_HERE, "live.turn.id not in self._unplaced", "True"),),
        _ORDER,
    ),
    Mutant(
        "turns as they are found",
        "turns of other members are put behind those that were accepted here later",
        (Edit(_HERE, "        self._lanes.arrange(", "        dict("),),
        _ORDER,
    ),
    Mutant(
        "begun without time",
        "a member whose time could not be renewed begins turns",
        (Edit("turns/runner.py", "                await keeper.wait_until_in()\n", ""),),
        _OUT,
    ),
    Mutant(
        "accepted and begun without time",
        "a member whose time could not be renewed begins the turns that it accepts",
        (Edit("turns/intake.py", " and not self._keeper.is_out:", ":"),),
        _OUT,
    ),
    Mutant(
        "no end of waiting",
        "a member that was out for a moment that nobody was told of never begins anything again",
        (Edit("cluster/membership.py", "            self._changed.set()  # it", "            # it"),),
        _OUT,
    ),
    Mutant(
        "kept what others have",
        "a member that comes back keeps turns that are for another one now",
        (
            Edit(
                _HERE,
                "if self._lanes.withdraw(live) or live.state is LiveState.PARKED:",
                "if live.state.is_over:",
            ),
        ),
        Tests(f"{_TESTS}::test_a_member_that_comes_back_lets_go_of_what_waits_elsewhere_now"),
    ),
    Mutant(
        "taken up twice",
        "a turn that ends while the rows are read is run again",
        (Edit(_HERE, "known | self._opened | self._intake.accepting", "known"),),
        Tests(f"{_TESTS}::test_a_turn_that_ends_during_a_look_is_not_taken_up_again"),
    ),
    Mutant(
        "drain in secret",
        "others do not take over what a member that shuts down has not begun",
        (Edit("turns/turns.py", "            await self._cluster.drain()\n", "            pass\n"),),
        Tests(f"{_TESTS}::test_a_draining_member_gives_up_what_it_has_not_begun"),
    ),
    Mutant(
        "no limit elsewhere",
        "a chat of another member takes any number of messages",
        (Edit("store/sql/homes.py", "if waiting >= order.most_waiting:", "if waiting < 0:"),),
        Tests(
            "tests/store/test_contract.py::TestClusterContract::test_a_chat_elsewhere_takes_so_many_messages"
        ),
    ),
)
