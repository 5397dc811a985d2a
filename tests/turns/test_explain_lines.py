"""Each line of a turn's history, for every state that a row of the ledger can have."""

from __future__ import annotations

from typing import Any

import pytest

from talaria.core.delivery import OutboxRow, OutboxState
from talaria.core.errors import ErrorInfo
from talaria.core.ids import ChatKey, OwnerId, QuestionId, SessionId, TurnId
from talaria.core.ledger import StepUsage, TurnHistory, TurnRecord
from talaria.core.messages import TokenUsage, ToolOutcome, ToolResult
from talaria.core.questions import APPROVE, DENY, Decision, Question, QuestionKind
from talaria.core.spending import show_usd
from talaria.core.turns import Inbound, Sender, Step, StepKind, StepState, Turn, TurnState
from talaria.turns.explain import explain_history

TURN, CHAT = TurnId("turn_1"), ChatKey("agent:main:telegram:dm:7")


def make_turn(
    state: TurnState = TurnState.ACCEPTED, sender: Sender | None = None, key: str = "", **more: Any
) -> Turn:
    inbound = Inbound(CHAT, sender or Sender("7", "Ada"), (), key or None)
    return Turn(TURN, CHAT, SessionId("ses_1"), state, inbound, 1.0, **more)


def told(
    turn: Turn, *, steps: Any = (), replies: Any = (), questions: Any = (), **more: Any
) -> list[tuple[Any, ...]]:
    record = TurnRecord(turn, steps, replies, questions=questions)
    lines = explain_history(TurnHistory(record, **more))
    return [(line.at, line.kind, line.text) for line in lines]


@pytest.mark.parametrize(
    ("turn", "ahead", "lines"),
    [
        (make_turn(), 0, ["Accepted a message of Ada (7) durably."]),
        (make_turn(sender=Sender("7")), 0, ["Accepted a message of 7 durably."]),
        (make_turn(sender=Sender("")), 0, ["Accepted a message of somebody durably."]),
        (make_turn(command="new"), 0, ["Accepted the command /new of Ada (7) durably."]),
        (make_turn(key="m5"), 0, ["Accepted a message of Ada (7) durably, known there as m5."]),
        (make_turn(), 1, ["Accepted a message of Ada (7) durably.", "Queued behind 1 turn of its session."]),
        (make_turn(), 2, ["Accepted a message of Ada (7) durably.", "Queued behind 2 turns of its session."]),
        (
            make_turn(merged_into=TurnId("turn_0")),
            0,
            [
                "Accepted a message of Ada (7) durably.",
                "Joined the running turn turn_0 and ends as that does.",
            ],
        ),
    ],
)
def test_how_it_came(turn: Turn, ahead: int, lines: list[str]) -> None:
    *found, last = told(turn, ahead=ahead)
    assert [text for _, _, text in found] == lines
    assert {at for at, _, _ in found} == {1.0}
    assert last == (None, "waiting", "Not begun yet: it waits its turn.")


@pytest.mark.parametrize(
    ("attempts", "forgiven", "lines"),
    [
        (1, 0, [(2.0, "begun", "Begun by process own_1.")]),
        (
            2,
            0,
            [
                (2.0, "begun", "Begun."),
                (None, "interrupted", "Interrupted: its process ended without a word."),
                (5.0, "begun", "Taken up again, attempt 2 by process own_1."),
            ],
        ),
        (
            2,
            1,
            [
                (2.0, "begun", "Begun."),
                (None, "interrupted", "Interrupted: its process released it in good order."),
                (5.0, "begun", "Taken up again, attempt 2 by process own_1."),
            ],
        ),
        (
            3,
            1,
            [
                (2.0, "begun", "Begun."),
                (
                    None,
                    "interrupted",
                    "Interrupted: its process ended without a word. It was interrupted 2 times in all.",
                ),
                (5.0, "begun", "Taken up again, attempt 3 by process own_1."),
            ],
        ),
    ],
)
def test_how_often_it_was_begun(attempts: int, forgiven: int, lines: list[Any]) -> None:
    turn = make_turn(TurnState.RUNNING, started_at=2.0, attempts=attempts, forgiven=forgiven)
    found = told(turn, begun_at=5.0, begun_by=OwnerId("own_1"))
    assert found[1:-1] == lines
    assert found[-1][1:] == ("running", "Not settled yet: it runs, or the next start takes it up.")


def test_a_turn_that_is_taken_up_again_tells_from_which_step() -> None:
    turn = make_turn(TurnState.RUNNING, started_at=2.0, attempts=2)
    steps = (
        Step(TURN, 1, StepKind.MODEL, "m", StepState.ENDED, ended_at=3.0),
        Step(TURN, 2, StepKind.TOOL, "now", StepState.ENDED, started_at=3.0, ended_at=6.0),
        Step(TURN, 3, StepKind.TOOL, "now", StepState.ENDED, started_at=3.0, ended_at=4.0),
    )
    found = told(turn, steps=steps, begun_at=5.0)
    again = "Taken up again, attempt 2. It continued at step 2; no step before was repeated."
    assert (5.0, "begun", again) in found


@pytest.mark.parametrize(
    ("turn", "line"),
    [
        (make_turn(TurnState.DONE, ended_at=9.0, reply="a\n b"), (9.0, "done", "Done: “a b”")),
        (make_turn(TurnState.DONE, ended_at=9.0, reply="x" * 80), (9.0, "done", f"Done: “{'x' * 80}”")),
        (make_turn(TurnState.DONE, ended_at=9.0, reply="x" * 81), (9.0, "done", f"Done: “{'x' * 80}…”")),
        (make_turn(TurnState.DONE, ended_at=9.0), (9.0, "done", "Done, with nothing to say.")),
        (
            make_turn(TurnState.FAILED, ended_at=9.0, error=ErrorInfo("t", "No.", "Try.")),
            (9.0, "failed", "Failed: No. Try."),
        ),
        (make_turn(TurnState.FAILED, ended_at=9.0), (9.0, "failed", "Failed: no reason is known.")),
        (make_turn(TurnState.CANCELLED, ended_at=9.0), (9.0, "cancelled", "Cancelled.")),
        (make_turn(TurnState.WAITING), (None, "waiting", "Parked: waits for a person to decide.")),
    ],
)
def test_how_it_ended(turn: Turn, line: tuple[Any, ...]) -> None:
    assert told(turn)[-1] == line


def test_what_its_steps_did_and_used() -> None:
    ok = ToolResult("c", "now", "12:00")
    bad = ToolResult("c", "now", "no", ToolOutcome.ERROR)
    steps = (
        Step(TURN, 1, StepKind.MODEL, "m", StepState.ENDED, ended_at=3.0),
        Step(TURN, 2, StepKind.MODEL, "m", StepState.ENDED, ended_at=4.0),
        Step(TURN, 3, StepKind.MODEL, "m", StepState.ENDED, ended_at=5.0),
        Step(TURN, 4, StepKind.TOOL, "now", StepState.PENDING),
        Step(TURN, 5, StepKind.TOOL, "now", StepState.STARTED, started_at=6.0),
        Step(TURN, 6, StepKind.TOOL, "now", StepState.ENDED, result=ok, started_at=7.0, ended_at=8.0),
        Step(TURN, 7, StepKind.TOOL, "now", StepState.ENDED, result=bad, ended_at=9.0),
        Step(TURN, 8, StepKind.TOOL, "now", StepState.ENDED, ended_at=9.5),
    )
    usage = (
        StepUsage(1, "p", "m", 1, TokenUsage(input=10, output=5, cached=4), 3.0),
        StepUsage(2, "p", "m", 3, TokenUsage(input=20, output=6), 4.0, cost=2_000_000, estimated=2),
        StepUsage(9, "", "", 1, TokenUsage(input=7, output=8), 4.5, estimated=1),
    )
    _, *found, _ = told(make_turn(), steps=steps, usage=usage)
    assert found == [
        (3.0, "model", "Step 1: m answered (10 tokens in, 4 of them cached, 5 out)."),
        (4.0, "model", "Step 2: m answered after 3 calls (20 tokens in, 0 of them cached, 6 out, $0.002)."),
        (5.0, "model", "Step 3: m answered."),
        (None, "tool", "Step 4: tool now was asked for and has not run."),
        (6.0, "tool", "Step 5: tool now started; no end of it is known."),
        (7.0, "tool", "Step 6: tool now started."),
        (8.0, "tool", "Step 6: tool now ended: ok."),
        (9.0, "tool", "Step 7: tool now ended: error."),
        (9.5, "tool", "Step 8: tool now ended: nothing."),
        (
            4.0,
            "estimate",
            "Step 2: 2 of 3 calls to p/m broke off or reported no usage. That part of what is counted "
            f"(20 tokens in, 6 out, {show_usd(2_000_000)}) is an estimate.",
        ),
        (
            4.5,
            "estimate",
            "Step 9: the call broke off or reported no usage. That part of what is counted "
            "(7 tokens in, 8 out) is an estimate.",
        ),
        (
            None,
            "cost",
            "Cost $0.002 without that. The price of p/m is not known; this sets it, in dollars for a million "
            "tokens: `talaria config set 'prices.\"p/m\"' '{input = 1.00, output = 2.00}'`",
        ),
    ]


@pytest.mark.parametrize(
    ("costs", "lines"),
    [((0, 0), []), ((2_000_000, 500_000), [(None, "cost", "Cost $0.0025 in all.")]), ((), [])],
)
def test_what_it_cost(costs: tuple[int, ...], lines: list[tuple[Any, ...]]) -> None:
    usage = tuple(StepUsage(n, "p", "m", 1, TokenUsage(), 3.0, cost=each) for n, each in enumerate(costs))
    assert [line for line in told(make_turn(), usage=usage) if line[1] == "cost"] == lines


@pytest.mark.parametrize(
    ("kind", "decision", "state", "lines"),
    [
        ("approval", (APPROVE, 5.0), TurnState.DONE, [(5.0, "decided", "Step 1: ada approved it.")]),
        ("approval", (DENY, 5.0), TurnState.DONE, [(5.0, "decided", "Step 1: ada denied it.")]),
        ("approval", (DENY, 20.0), TurnState.DONE, [(20.0, "decided", "Step 1: ada denied it, too late.")]),
        ("answer", (APPROVE, 5.0), TurnState.DONE, [(5.0, "decided", f"Step 1: ada answered “{APPROVE}”.")]),
        ("answer", None, TurnState.WAITING, []),
        ("answer", None, TurnState.DONE, [(10.0, "decided", "Step 1: nobody decided in time.")]),
    ],
)
def test_what_was_asked_and_decided(kind: str, decision: Any, state: TurnState, lines: list[Any]) -> None:
    is_approval = kind == "approval"
    decided = decision and Decision(decision[0], "ada", decision[1])
    question = Question(
        QuestionId("q_1"),
        TURN,
        1,
        "c",
        QuestionKind.APPROVAL
        if is_approval
        else next(k for k in QuestionKind if k is not QuestionKind.APPROVAL),
        "May\nI?",
        4.0,
        10.0,
        decision=decided,
    )
    other = Question(QuestionId("q_2"), TURN, 2, "c", QuestionKind.APPROVAL, "Another?", 4.0, 10.0)
    steps = (Step(TURN, 1, StepKind.TOOL, "now", StepState.PENDING),)
    _, asked, *found, _, _ = told(make_turn(state), steps=steps, questions=(question, other))
    what = "whether it may run" if is_approval else "for an answer"
    assert asked == (4.0, "asked", f"Step 1: Asked a person {what}: “May I?”")
    assert found == lines


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (
            {"state": OutboxState.SENT, "attempts": 1, "platform_id": "55", "sent_at": 9.0},
            (9.0, "delivered", "The reply (reply:3) to telegram 7 was delivered as 55 after 1 attempt."),
        ),
        (
            {"state": OutboxState.FAILED, "attempts": 2, "error": "Blocked.", "part": 1},
            (
                None,
                "undelivered",
                "Message 2 of the reply (reply:3) to telegram 7 was given up after 2 attempts. "
                "The last one met: Blocked.",
            ),
        ),
        (
            {"state": OutboxState.SENDING, "attempts": 2},
            (
                None,
                "sending",
                "The reply (reply:3) to telegram 7 is being sent, attempt 2; the outcome is open.",
            ),
        ),
        (
            {"state": OutboxState.PENDING, "edits": "44"},
            (
                8.0,
                "unsent",
                "The reply (reply:3) to telegram 7, in place of its message 44 waits to be sent, "
                "0 attempts so far.",
            ),
        ),
    ],
)
def test_what_became_of_the_reply(more: dict[str, Any], line: tuple[Any, ...]) -> None:
    state = more.pop("state")
    row = OutboxRow(3, TURN, CHAT, "telegram", "7::", "body", state, 8.0, 8.0, **more)
    assert told(make_turn(), replies=(row,))[-1] == line
