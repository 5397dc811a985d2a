"""The cache watch: whether a provider's prompt cache served what the frozen prefix lets one expect.

A request repeats the one before it byte for byte, so its answer should report about as many cached tokens as
that one had input. When it does not, there is a cause, and the log names it.
"""

from __future__ import annotations

import logging
from enum import StrEnum

import msgspec

from talaria.core.ids import SessionId, SpecId
from talaria.core.messages import TokenUsage
from talaria.observe.metrics import Metrics

_log = logging.getLogger("talaria.agent")
CACHE_SECONDS = 300.0  # how long providers keep a prefix at least
LEAST_TOKENS = 2048  # shorter prompts are not cached by everyone
_DUE_PERCENT = 80  # providers cache in blocks, and count the last of them in their own ways


class Cause(StrEnum):
    """Why a request found less in the cache; the order is that of the search."""

    MODEL = "model"
    FALLBACK = "fallback"
    SPEC = "spec"
    REWRITTEN = "rewritten"
    IDLE = "idle"
    UNEXPLAINED = "unexplained"


_WORDS = {
    Cause.MODEL: "the session's model was changed",
    Cause.FALLBACK: "another model than the session's own answered, before or now",
    Cause.SPEC: "the session's prompt or tools were changed",
    Cause.REWRITTEN: "its history was rewritten (undo, retry or compaction)",
    Cause.IDLE: f"it was not used for longer than the {CACHE_SECONDS / 60:.0f} minutes that caches last",
    Cause.UNEXPLAINED: "nothing on our side changed; the provider did not serve it",
}


class Sight(msgspec.Struct, frozen=True):
    """One answer as the watch sees it. `own` is the session's model, `answered` who answered, both as
    provider/model; `at` is elapsed time; `caches` is whether this agent ever got cached tokens."""

    at: float
    own: str
    answered: str
    spec_id: SpecId
    epoch: int
    tokens: TokenUsage
    caches: bool = False


def find_cause(before: Sight, now: Sight) -> Cause | None:
    """Why less came from the cache than was due; None when enough did, or none could be expected."""
    due = before.tokens.input
    if not (before.caches or now.caches) or due < LEAST_TOKENS:
        return None
    if now.tokens.cached * 100 >= due * _DUE_PERCENT:
        return None
    causes = {
        Cause.MODEL: now.own != before.own,
        Cause.FALLBACK: now.answered != before.answered,
        Cause.SPEC: now.spec_id != before.spec_id,
        Cause.REWRITTEN: now.epoch != before.epoch,
        Cause.IDLE: now.at - before.at > CACHE_SECONDS,
    }
    return next((cause for cause, holds in causes.items() if holds), Cause.UNEXPLAINED)


def watch(session_id: SessionId, before: Sight | None, now: Sight, metrics: Metrics) -> Sight:
    """Compare and tell; answers what to compare the next one with."""
    caches = now.tokens.cached > 0 or (before is not None and before.caches)
    now = msgspec.structs.replace(now, caches=caches)
    cause = None if before is None else find_cause(before, now)
    if cause is not None:
        assert before is not None
        metrics.cache_missed(cause)
        _log.log(
            logging.WARNING if cause is Cause.UNEXPLAINED else logging.INFO,
            "the prompt cache of %s served %d of about %d tokens to session %s: %s",
            now.answered,
            now.tokens.cached,
            before.tokens.input,
            session_id,
            _WORDS[cause],
        )
    return now
