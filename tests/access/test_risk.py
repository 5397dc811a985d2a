"""Which calls need a person's word: the whole table, written a second time."""

from __future__ import annotations

from itertools import product

import pytest

from talaria.access.approvals import ApprovalMode, AskReason, CallFacts, find_reason, refuse_to_ask

MODES: tuple[ApprovalMode, ...] = ("risky", "always", "never")


def expected(facts: CallFacts, mode: ApprovalMode) -> AskReason | None:
    """The rules of docs/approvals.md, one after the other."""
    rules = [
        (facts.is_high, AskReason.DECLARED),
        (facts.reaches_out and facts.is_tainted, AskReason.TAINTED),
        (facts.opens_new, AskReason.NEW_ADDRESS),
        (facts.tells_new, AskReason.NEW_TEXT),
        (facts.is_foreign, AskReason.FOREIGN),
        (facts.runs_commands and not facts.is_sandboxed and not facts.only_reads, AskReason.UNSANDBOXED),
        (mode == "always" and not facts.only_reads, AskReason.ALWAYS),
    ]
    return next((reason for holds, reason in rules if holds), None)


@pytest.mark.parametrize("mode", MODES)
def test_every_row_of_the_table(mode: ApprovalMode) -> None:
    rows = [CallFacts(*values) for values in product((False, True), repeat=9)]
    assert len(rows) == 512
    wrong = [facts for facts in rows if find_reason(facts, mode) is not expected(facts, mode)]
    assert wrong == []


@pytest.mark.parametrize("mode", ["risky", "never"])
def test_commands_inside_a_sandbox_need_no_approval(mode: ApprovalMode) -> None:
    assert find_reason(CallFacts(runs_commands=True, is_tainted=True), mode) is None


@pytest.mark.parametrize(
    ("mode", "is_unattended", "can_ask"),
    [
        ("risky", False, True),
        ("always", False, True),
        ("never", False, False),
        ("risky", True, False),
        ("always", True, False),
        ("never", True, False),
    ],
)
def test_who_can_be_asked(mode: ApprovalMode, is_unattended: bool, can_ask: bool) -> None:
    assert (refuse_to_ask(mode, is_unattended=is_unattended) is None) is can_ask
