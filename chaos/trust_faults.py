"""Planted faults of trust: untrusted content that acts beyond its chat, or carries data away, unasked."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_ALL = "tests/scenarios/test_injections.py"
_EFFECTS = f"{_ALL}::test_an_effect_beyond_the_chat_needs_approval_however_the_content_came"

TRUST_FAULTS = (
    Mutant(
        "any address after a page",
        "a page makes the model carry data away in an address",
        (Edit("tools/approvals.py", "return not await self.trust.may_open(url, call.id)", "return False"),),
        Tests(
            "tests/tools/test_web.py::test_an_address_that_nobody_has_shown_needs_approval_in_a_tainted_session"
        ),
    ),
    Mutant(
        "addresses in the text of results",
        "the model prints an address, and may open it from then on",
        (
            Edit(
                "access/egress.py",
                "offered.update(normalize(link) for result in results for link in result.links or ())",
                "offered.update(url for result in results for url in urls_in(result.text))",
            ),
        ),
        Tests(f"{_ALL}::test_the_model_cannot_show_an_address_to_itself"),
    ),
    Mutant(
        "links without an end",
        "a page learns a byte from each of its links that is opened",
        (Edit("access/egress.py", " and seen.opened < MAX_FOLLOWED)", ")"),),
        Tests(f"{_ALL}::test_offered_links_are_followed_until_there_are_too_many"),
    ),
    Mutant(
        "uncounted links through tool_call",
        "a page learns a byte from each link that the model opens through another tool",
        (Edit("access/egress.py", "for call in map(inner_call, calls):", "for call in calls:"),),
        Tests("tests/access/test_egress.py::test_calls_through_tool_call_count_too"),
    ),
    Mutant(
        "wake-ups that count as the person's words",
        "the model wakes itself by a background process, and may open links again",
        (Edit("access/egress.py", " or is_from_gateway(message):", ":"),),
        Tests(
            "tests/access/test_egress.py::"
            "test_the_gateway_does_not_reset_how_many_offered_addresses_are_opened"
        ),
    ),
    Mutant(
        "files trusted in a new session",
        "an injection waits in a file for the next session",
        (
            Edit(
                "tools/execution.py", "if spec.reads_files and await trust.is_folder_tainted():", "if False:"
            ),
        ),
        Tests(_EFFECTS),
    ),
    Mutant(
        "writing leaves no taint",
        "a session that read a page writes files that the next one trusts",
        (
            Edit(
                "tools/execution.py",
                "            await trust.taint_folder(call.name)\n",
                "            pass\n",
            ),
        ),
        Tests(_EFFECTS),
    ),
    Mutant(
        "long results leave no taint",
        "the whole of a long page is in a file that the next session trusts",
        (
            Edit(
                "tools/execution.py",
                "                await self.gate.trust.taint_folder(call.name)\n",
                "                pass\n",
            ),
        ),
        Tests(f"{_ALL}::test_the_file_of_a_long_page_is_untrusted_in_the_next_session"),
    ),
    Mutant(
        "sent files trusted in a new session",
        "a file that was sent is trusted after /new",
        (
            Edit(
                "turns/intake.py",
                '                await trust.mark(key, "sent file")\n',
                "                pass\n",
            ),
        ),
        Tests(f"{_ALL}::test_a_sent_file_is_untrusted_in_the_next_session"),
    ),
    Mutant(
        "other people's words in a search",
        "what another person said reaches the owner's model as trusted",
        (
            Edit(
                "tools/recall.py",
                "if session is None or not _is_own(scope, session.chat_key, context.chat_key):",
                "if session is None:",
            ),
        ),
        Tests(f"{_ALL}::test_what_other_people_said_is_untrusted"),
    ),
    Mutant(
        "earlier answers trusted",
        "the answer of a tainted session is found by a search, and trusted",
        (
            Edit(
                "tools/recall.py",
                "    if await scope.store.recall.is_tainted(session_id):\n",
                "    if False:\n",
            ),
        ),
        Tests(_EFFECTS),
    ),
    Mutant(
        "downloads trusted",
        "a command loads instructions from a host",
        (
            Edit(
                "net/proxy.py",
                "            await self._proxy.on_reach(told.session_id)\n",
                "            pass\n",
            ),
        ),
        Tests(f"{_ALL}::test_a_command_that_reaches_a_host_taints_the_folder"),
    ),
    Mutant(
        "task lists leave no taint",
        "a tainted session writes its task list into the folder that the next one trusts",
        (Edit("tools/todo.py", "    risk=Risk.FILES,\n", ""),),
        Tests(_EFFECTS),
    ),
    Mutant(
        "sent histories trusted",
        "a front end sends the answers of a tainted session back, and they are trusted",
        (Edit("turns/branching.py", "sent = [exchange.distrusted() for exchange in sent]", "pass"),),
        Tests(f"{_ALL}::test_the_history_of_a_front_end_is_untrusted_after_an_untrusted_session"),
    ),
    Mutant(
        "nested projects trusted",
        "a chat taints a folder in the project of another chat, which goes on trusting it",
        (
            Edit(
                "core/trust.py",
                "    return paths[0].is_relative_to",
                "    return False and paths[0].is_relative_to",
            ),
        ),
        Tests(
            "tests/store/test_contract.py::TestStoreContract::test_project_folders_in_each_other_share_their_taint"
        ),
    ),
)
