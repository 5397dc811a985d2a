"""Questions that a turn puts to a person before one of its tool calls runs.

A question belongs to a tool step that is still `pending`. Putting it parks the turn: the turn is `waiting`,
holds no lease and no permit, and is resumed from its journal once each of its questions has a decision.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from talaria.core.ids import QuestionId, TurnId


class QuestionKind(StrEnum):
    APPROVAL = "approval"  # may this call run? The decision is `APPROVE` or `DENY`
    ANSWER = "answer"  # the person's words are the call's result
    HOST = "host"  # may commands of the session reach this host? Decided as an approval; no turn waits


class Span(StrEnum):
    """How far an approval reaches."""

    ONCE = "once"  # the call that was asked about
    SESSION = "session"  # also later calls of the session with the same digest
    ALWAYS = "always"  # every session; for hosts only, and written to the configuration


APPROVE = "approve"
DENY = "deny"


# In a group, a line that names the speaker comes before the text.
_NUMBERED = re.compile(r"(?:[^\n]* says:\n)?\s*([0-9]{1,2})[.)]?\s*")


def chosen(said: str, choices: Sequence[str]) -> str:
    """Return the choice whose number, from 1 on, the text is; else the text."""
    found = _NUMBERED.fullmatch(said)
    number = int(found[1]) if found is not None and said.strip() not in choices else 0
    return choices[number - 1] if 0 < number <= len(choices) else said


class QuestionDraft(msgspec.Struct, frozen=True):
    """A question for a person, to be asked before a call runs. The person has `timeout` seconds to decide;
    0 stands for `tools.question_expiry`. `digest` names what the decision is bound to."""

    kind: QuestionKind
    text: str
    timeout: float = 0.0
    choices: tuple[str, ...] = ()
    digest: str = ""


class Decision(msgspec.Struct, frozen=True):
    """A person's decision. `text` is `APPROVE`, `DENY` or the answer; `by` is the person's immutable id."""

    text: str
    by: str
    decided_at: float
    span: Span = Span.ONCE


class Question(msgspec.Struct, frozen=True):
    """A question about step `n` of a turn. `text` is the whole text that the person is shown.

    `choices` are suggested answers. A question without a decision at `expires_at` has expired: its call does
    not run, and the model is told that there was no decision. `name` is the tool's. `digest` is a hash of
    everything that the approval is bound to; a call with another digest does not run. `shown_id` is the
    platform's message that shows the question.
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
    name: str = ""
    digest: str = ""
    shown_id: str | None = None

    def is_open(self, now: float) -> bool:
        """Return whether the question can still be decided."""
        return self.decision is None and now < self.expires_at

    def is_expired(self, now: float) -> bool:
        """Return whether no decision came in time. A decision that came later does not count."""
        return now >= self.expires_at if self.decision is None else self.decision.decided_at > self.expires_at

    def is_denied(self) -> bool:
        """Return whether a person refused the call."""
        is_answer = self.kind is QuestionKind.ANSWER
        return not is_answer and self.decision is not None and self.decision.text != APPROVE
