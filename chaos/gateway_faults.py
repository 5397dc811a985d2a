"""Planted faults of several gateways that `./dev chaos --store postgres` found, or must find."""

from __future__ import annotations

from chaos.planted import Cluster, Edit, Mutant, Tests

_SUITE = "tests/store/test_contract.py::TestClusterContract::test"

GATEWAY_FAULTS = (
    Mutant(
        "turn placed before the look",
        "a turn begins while the gateway still looks for those before it",
        (
            Edit(
                "turns/turns_here.py",
                "            self._opened, unplaced = set(), set(self._unplaced)\n",
                "            self._opened, unplaced, self._unplaced = set(), set(self._unplaced), set()\n",
            ),
        ),
        Cluster(60),
    ),
    Mutant(
        "turns passed while out",
        "what waits behind a command begins before the command, which was let go",
        (
            Edit(
                "turns/lanes.py",
                "                    self._placing.doubt(lane)\n",
                "                    pass\n",
            ),
        ),
        Cluster(60),
    ),
    Mutant(
        "chat moved away from its turn",
        "a message takes the chat of a dead gateway, and leaves a turn behind that is still leased",
        (
            Edit(
                "store/sql/homes.py",
                "is_moved and home.owes is not None and tx.execute(IS_LEFT_LEASED, left).fetchone()",
                "not left",
            ),
        ),
        Tests(f"{_SUITE}_a_message_behind_a_turn_that_a_dead_member_left_under_a_lease_moves_with_it"),
    ),
    Mutant(
        "turn for a process that is gone",
        "a message is written for a process while the next one of its place takes its turns over",
        (Edit("store/sql/cluster.py", "        locks.whole(tx, locks.member(dead))\n", ""),),
        Tests(
            "tests/store/test_postgres_cluster_races.py"
            "::test_messages_for_a_place_whose_next_process_joins_are_found_by_it"
        ),
    ),
    Mutant(
        "half sent replies kept",
        "replies wait for the time limit of a sender that is gone",
        (Edit("store/sql/cluster.py", "        tx.execute(SEND_AGAIN, ", "        print(SEND_AGAIN, "),),
        Tests(f"{_SUITE}_what_the_last_holder_was_sending_is_due_for_the_next_one"),
    ),
    Mutant(
        "shown above the reply before it",
        "a turn is shown before the replies that are due",
        (Edit("turns/delivery.py", "            if await self._is_next(live):\n", "            if live:\n"),),
        Tests("tests/turns/test_delivery.py::test_a_turn_is_shown_below_the_reply_before_it"),
    ),
    Mutant(
        "schema changed under old gateways",
        "gateways at work meet a schema that they do not know",
        (Edit("store/postgres/schema.py", "    if rows:\n", "    if rows == 0:\n"),),
        Tests(
            "tests/store/test_postgres_schema.py"
            "::test_an_upgrade_that_older_gateways_cannot_follow_waits_for_their_end"
        ),
    ),
)
