"""Planted faults of finding: whose words a search shows, long messages, and titles."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_SEARCH = "tests/channels/http/test_search.py"
_LONG = "tests/turns/test_long_inputs.py"

FINDING_FAULTS = (
    Mutant(
        "search over everybody's chats",
        "a person hears what another person said",
        (
            Edit(
                "tools/session_search.py",
                "scope.people.reach(context.chat_key)",
                'scope.people.reach_of(PersonId("owner"), "main")',
            ),
            Edit(
                "tools/session_search.py",
                "from talaria.core.search_port import FoundEntry\n",
                "from talaria.core.people import PersonId\nfrom talaria.core.search_port import FoundEntry\n",
            ),
        ),
        Tests(f"{_SEARCH}::test_nobody_hears_what_another_person_or_a_group_said"),
    ),
    Mutant(
        "long message cut in its file",
        "the rest of a long message is lost",
        (
            Edit(
                "workspace/long_texts.py",
                "    folder.write(path, data, len(data))\n",
                "    folder.write(path, data[:shown_bytes], len(data))\n",
            ),
        ),
        Tests(_LONG),
    ),
    Mutant(
        "long message left behind",
        "a deleted session leaves its long messages in the chat's folder",
        (
            Edit(
                "store/sql/deletion.py", "        remove_messages(tx, session_id, chat_key, kept, last)\n", ""
            ),
        ),
        Tests(_LONG),
    ),
    Mutant(
        "title of a person replaced",
        "a model's title takes the place of one that a person gave",
        (Edit("store/sql/orders.py", "WHERE id = ? AND title = ?", "WHERE id = ? AND ? <> ''"),),
        Tests("tests/turns/test_titles.py"),
    ),
)
