"""Planted faults of the store's side of a cluster."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_CLUSTER = "store/sql/cluster.py"
_HOMES = "store/sql/homes.py"
_ORDERS = "store/sql/orders.py"
_RACES = "tests/store/test_postgres_cluster_races.py"
_SUITE = "tests/store/test_contract.py::TestClusterContract::test"

CLUSTER_FAULTS = (
    Mutant(
        "turn begun by any gateway",
        "a gateway begins a turn that is for another one",
        (Edit(_ORDERS, '    if member not in ("", order.owner):\n', "    if not position:\n"),),
        Tests(f"{_SUITE}_a_chat_stays_with_the_member_that_took_it"),
    ),
    Mutant(
        "own message first",
        "a gateway begins its own message before an older one that another gateway accepted for it",
        (Edit(_ORDERS, "place.is_here and not place.is_behind and not", "place.is_here and not"),),
        Tests(f"{_SUITE}_a_message_that_another_member_accepted_comes_first"),
    ),
    Mutant(
        "adoption of what runs",
        "a chat is taken from a gateway whose turn still has its lease",
        (Edit(_CLUSTER, "if all(turn.lease_expires <= now for turn in turns) and", "if"),),
        Tests(f"{_SUITE}_a_lease_that_has_not_expired_keeps_its_chat"),
    ),
    Mutant(
        "adoption without the files",
        "a chat is taken from a place that comes back with its files",
        (Edit(_CLUSTER, " and turns[0].place not in present\n", "\n"),),
        Tests(f"{_SUITE}_a_chat_with_files_waits_for_its_place_and_is_taken_over_when_that_is_gone"),
    ),
    Mutant(
        "turn left behind",
        "a turn that ran at a draining gateway is nobody's when that gateway dies",
        (
            Edit(
                _CLUSTER,
                "loss, first.chat_key, first.home, first.place)",
                "loss, first.chat_key, first.member, first.place)",
            ),
        ),
        Tests(f"{_SUITE}_what_ran_at_a_member_that_drained_and_died_follows_its_chat"),
    ),
    Mutant(
        "new turns for a draining gateway",
        "a gateway that drains gets more turns",
        (Edit(_HOMES, "row[0] > tx.now and not row[1] and home", "row[0] > tx.now and home"),),
        Tests(f"{_SUITE}_a_draining_member_keeps_what_runs_and_gives_up_the_rest"),
    ),
    Mutant(
        "later turn first",
        "a turn begins before an earlier one that a gateway which drained left in the middle",
        (Edit(_ORDERS, "    if member and _has_cut_off(", "    if not position and _has_cut_off("),),
        Tests(f"{_SUITE}_a_turn_that_was_cut_off_goes_on_before_later_ones_of_its_session"),
    ),
    Mutant(
        "new turn first",
        "a message is begun before a turn that a gateway which drained left in the middle",
        (Edit(_ORDERS, "return order.here is not None and _has", "return order.here is None and _has"),),
        Tests(f"{_SUITE}_a_turn_that_was_cut_off_goes_on_before_later_ones_of_its_session"),
    ),
    Mutant(
        "chat taken twice",
        "a chat moves although another gateway has moved it meanwhile",
        (
            Edit(
                _HOMES,
                "WHERE chat_key = ? AND member = ? AND place = ?\n",
                "WHERE chat_key = ? AND ? <> '-' AND ? <> '-'\n",
            ),
        ),
        Tests(f"{_RACES}::test_a_chat_that_two_orders_are_about_to_move_is_moved_by_the_first"),
    ),
    Mutant(
        "process before in the place",
        "the leases of the process before in the same home are left to expire",
        (Edit(_CLUSTER, "        leases.bury(tx, dead)\n", ""),),
        Tests(f"{_SUITE}_the_next_process_of_a_place_goes_on_at_once"),
    ),
    Mutant(
        "dead gateway renewed",
        "a gateway whose time had run out goes on as if others had not taken its chats",
        (Edit(_CLUSTER, 'WHERE owner = ? AND expires_at > ?"\nDRAIN', 'WHERE owner = ? AND ? > 0"\nDRAIN'),),
        Tests(f"{_SUITE}_renewal_extends_a_living_member_only"),
    ),
    Mutant(
        "role without a fence",
        "the next holder of a role has the fence of the one before",
        (Edit(_CLUSTER, "THEN 0 ELSE 1 END)", "THEN 0 ELSE 0 END)"),),
        Tests(f"{_SUITE}_a_role_has_one_holder_and_a_fence_that_grows"),
    ),
    Mutant(
        "role taken from its holder",
        "a channel with one consumer has two",
        (
            Edit(
                _CLUSTER,
                "excluded.owner OR roles.expires_at <= ?\n",
                "excluded.owner OR roles.expires_at > ?\n",
            ),
        ),
        Tests(f"{_SUITE}_a_role_has_one_holder_and_a_fence_that_grows"),
    ),
)
