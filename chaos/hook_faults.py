"""Planted faults of webhooks and of messages that are sent outside of turns."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_HOOKS = "tests/channels/hooks/test_hooks.py"
_LOG = "tests/store/test_contract.py::TestStoreContract"

HOOK_FAULTS = (
    Mutant(
        "webhook without a signature",
        "a forged call of a webhook starts a turn",
        (
            Edit(
                "channels/hooks/signatures.py",
                "if not hmac.compare_digest(header.strip(), expected):",
                "if not header:",
            ),
        ),
        Tests(f"{_HOOKS}::test_forged_call_is_refused"),
    ),
    Mutant(
        "webhook of any time",
        "a call that was recorded long ago starts a turn",
        (Edit("channels/hooks/signatures.py", "if abs(now - int(text)) > TOLERANCE:", "if int(text) < 0:"),),
        Tests(f"{_HOOKS}::test_time_that_is_signed_must_be_near"),
    ),
    Mutant(
        "webhook known by its id only",
        "a recorded call under another id starts a second turn",
        (Edit("channels/hooks/hook.py", "if not proof.is_signed:", "if not names:"),),
        Tests(f"{_HOOKS}::test_other_event_id_does_not_make_a_body_new"),
    ),
    Mutant(
        "webhook repeated",
        "an event that comes again starts a second turn",
        (
            Edit(
                "store/sql/orders.py",
                "    if order.names:\n        repeats.check(tx, order.scope, order.names)\n",
                "",
            ),
        ),
        Tests(f"{_HOOKS}::test_calls_at_the_same_time_are_one_turn"),
    ),
    Mutant(
        "webhook trusted",
        "what a webhook brought does not count as content from outside",
        (Edit("channels/hooks/hook.py", "            untrusted=True,\n", ""),),
        Tests(f"{_HOOKS}::test_what_came_is_quoted_and_taints_the_conversation"),
    ),
    Mutant(
        "announcement in a turn",
        "a sent message comes between a call and its result",
        (
            Edit(
                "store/sql/announcements.py",
                "if lease.expires > tx.now or lease.waiting_turn:",
                "if lease.expires > tx.now:",
            ),
        ),
        Tests(f"{_LOG}::test_message_never_comes_between_a_call_and_its_result"),
    ),
    Mutant(
        "announcement without a fence",
        "a process that lost its lease writes after a sent message",
        (
            Edit("store/sql/announcements.py", "(lease.fence + 1, head.epoch", "(lease.fence, head.epoch"),
            Edit("store/sql/announcements.py", "lease_fence = ?, lease_expires = 0,", "lease_fence = ?,"),
        ),
        Tests(f"{_LOG}::test_holder_of_an_expired_lease_cannot_write_after_the_message"),
    ),
    Mutant(
        "message to anybody",
        "a model writes to another person's chat unasked",
        (Edit("tools/approvals.py", "if reason is None and is_foreign(arguments):", "if spec.asks:"),),
        Tests("tests/tools/test_send_message.py"),
    ),
)
