"""Questions that a turn puts to a person before one of its tool calls runs.

A question belongs to a tool step that is still `pending`. Putting it parks the turn: the turn is `waiting`,
holds no lease and no permit, and is resumed from its journal once each of its questions has a decision.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from talaria.core.ids import QuestionId, TurnId


class QuestionKind(StrEnum):
    APPROVAL = "approval"  # may this call run? The decision is `APPROVE` or `DENY`
    ANSWER = "answer"  # the person's words are the call's result


APPROVE = "approve"
DENY = "deny"


class Decision(msgspec.Struct, frozen=True):
    """What a person decided. `text` is `APPROVE`, `DENY` or the answer; `by` is the person's immutable id."""

    text: str
    by: str
    decided_at: float


class Question(msgspec.Struct, frozen=True):
    """One question about step `n` of a turn. `text` is what the person is shown, whole.

    `choices` are suggested answers. A question without a decision at `expires_at` counts as denied.
    """

    id: QuestionId
    turn_id: TurnId
    n: int
    call_id: str
    kind: QuestionKind
    text: str
    asked_at: float
    expires_at: float
    choices: tuple[str, ...] = ()
    decision: Decision | None = None

    def is_denied(self) -> bool:
        """Whether a person refused the call. An unanswered question is not denied until it expires."""
        return (
            self.kind is QuestionKind.APPROVAL and self.decision is not None and self.decision.text != APPROVE
        )
