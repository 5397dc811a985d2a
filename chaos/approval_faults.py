"""Planted faults of approvals: what they are bound to, who decides, and how long they last."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_ALTERED = "tests/tools/test_altered_approvals.py::test_an_altered_approval_never_runs"
_GRANTING = "tests/turns/test_granting.py"

APPROVAL_FAULTS = (
    Mutant(
        "line breaks of a folder in a question",
        "the name of a working folder adds lines to an approval request",
        (Edit("tools/approvals.py", "visible_text(around.cwd)", "around.cwd"),),
        Tests("tests/tools/test_approvals.py"),
    ),
    Mutant(
        "approval by name",
        "a person approves one command and another one runs",
        (Edit("access/approvals.py", "call.name, call.arguments)", "call.name)"),),
        Tests(_ALTERED),
    ),
    Mutant(
        "approval for everybody",
        "another person's call runs on the approval of the first",
        (Edit("access/approvals.py", "(grantee, requester, call.name", "(grantee, call.name"),),
        Tests(_ALTERED),
    ),
    Mutant(
        "approval for every session",
        "a grant of one session holds in another",
        (Edit("access/approvals.py", "(grantee, requester, call.name", "(requester, call.name"),),
        Tests(_ALTERED),
    ),
    Mutant(
        "approval without its surroundings",
        "the approved command runs in another folder or without the sandbox",
        (Edit("access/approvals.py", "encode((*parts, around))", "encode(parts)"),),
        Tests(_ALTERED),
    ),
    Mutant(
        "approval not compared",
        "what runs need not be what was approved",
        (Edit("tools/approvals.py", "if question.digest != draft.digest:", "if not question.digest:"),),
        Tests(_ALTERED),
    ),
    Mutant(
        "approval used again",
        "an approval of one call lets another call run",
        (
            Edit(
                "tools/approvals.py",
                "if decision is None or (question.turn_id, question.call_id) != (self.turn_id, call.id):",
                "if decision is None:",
            ),
        ),
        Tests(_ALTERED),
    ),
    Mutant(
        "approval without an end",
        "an approval of last week lets a call run",
        (
            Edit(
                "tools/approvals.py",
                "if question.is_expired(self.clock.now()) or self.clock.now() >= question.expires_at:",
                "if False:",
            ),
        ),
        Tests(_ALTERED),
    ),
    Mutant(
        "any word approves",
        "a decision that is no approval lets the call run",
        (Edit("tools/approvals.py", "if decision.text != APPROVE:", "if not decision.text:"),),
        Tests(_ALTERED),
    ),
    Mutant(
        "any member decides",
        "another member of the group approves what a person asked for",
        (
            Edit(
                "access/approvals.py",
                "    is_requester = bool(decider.id) and decider.id == turn.inbound.sender.id\n",
                "    is_requester = bool(decider.id)\n",
            ),
        ),
        Tests(f"{_GRANTING}::test_another_person_in_the_chat_cannot_decide"),
    ),
    Mutant(
        "grants outlive their session",
        "a session that was ended and resumed still has its grants",
        (Edit("store/sql/leases.py", "    tx.execute(DROP_GRANTS, (session_id,))\n", ""),),
        Tests(f"{_GRANTING}::test_an_approval_for_the_session_covers_exactly_the_same_call"),
    ),
    Mutant(
        "nobody attends and it runs",
        "an unattended turn waits for a person, or runs what nobody approved",
        (Edit("access/risk.py", "    if is_unattended:", "    if False:"),),
        Tests(f"{_GRANTING}::test_an_unattended_turn_is_refused_unless_it_was_granted_before"),
    ),
    Mutant(
        "an undo keeps the taint",
        "calls are asked about for content that is not visible any more",
        (Edit("core/shown.py", "not None and entry.seq not in hidden)\n    ]", "not None)\n    ]"),),
        Tests(f"{_GRANTING}::test_content_from_outside_makes_calls_that_reach_out_ask_until_it_is_undone"),
    ),
    Mutant(
        "no taint",
        "content from outside lets the model write to other chats unasked",
        (Edit("core/messages.py", "result.untrusted is True", "result.untrusted is None"),),
        Tests(f"{_GRANTING}::test_content_from_outside_makes_calls_that_reach_out_ask_until_it_is_undone"),
    ),
)
