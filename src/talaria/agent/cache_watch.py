"""Notices when a provider's prompt cache serves less than it should, and logs the cause.

A request repeats the one before it byte for byte. So its answer should report about as many cached tokens as
the request before had input tokens.
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
LEAST_TOKENS = 2048  # some providers do not cache shorter prompts
_DUE_PERCENT = 80  # providers cache in blocks, and count the last block differently


class MissCause(StrEnum):
    """Why less was served from the cache, in the order in which causes are looked for."""

    MODEL = "model"
    FALLBACK = "fallback"
    SPEC = "spec"
    REWRITTEN = "rewritten"
    IDLE = "idle"
    UNEXPLAINED = "unexplained"


_WORDS = {
    MissCause.MODEL: "the session's model was changed",
    MissCause.FALLBACK: "another model than the session's own answered, before or now",
    MissCause.SPEC: "the session's prompt or tools were changed",
    MissCause.REWRITTEN: "its history was rewritten (undo, retry or compaction)",
    MissCause.IDLE: f"it was not used for longer than the {CACHE_SECONDS / 60:.0f} minutes that caches last",
    MissCause.UNEXPLAINED: "nothing on our side changed; the provider did not serve it",
}


class CacheSample(msgspec.Struct, frozen=True):
    """The cached tokens of an answer, and what may explain a miss. `at` is elapsed time.

    `own` is the session's model and `answered` the one that answered, both as provider/model. `caches` is
    whether this agent ever got cached tokens.
    """

    at: float
    own: str
    answered: str
    spec_id: SpecId
    epoch: int
    tokens: TokenUsage
    caches: bool = False


def find_cause(before: CacheSample, now: CacheSample) -> MissCause | None:
    """Return why less was served than expected; None if enough was served, or nothing can be expected."""
    due = before.tokens.input
    if not (before.caches or now.caches) or due < LEAST_TOKENS:
        return None
    if now.tokens.cached * 100 >= due * _DUE_PERCENT:
        return None
    causes = {
        MissCause.MODEL: now.own != before.own,
        MissCause.FALLBACK: now.answered != before.answered,
        MissCause.SPEC: now.spec_id != before.spec_id,
        MissCause.REWRITTEN: now.epoch != before.epoch,
        MissCause.IDLE: now.at - before.at > CACHE_SECONDS,
    }
    return next((cause for cause, holds in causes.items() if holds), MissCause.UNEXPLAINED)


def watch(
    session_id: SessionId, before: CacheSample | None, now: CacheSample, metrics: Metrics
) -> CacheSample:
    """Log a miss and count it. Return the sample to compare the next answer with."""
    caches = now.tokens.cached > 0 or (before is not None and before.caches)
    now = msgspec.structs.replace(now, caches=caches)
    cause = None if before is None else find_cause(before, now)
    if cause is not None:
        assert before is not None
        metrics.cache_missed(cause)
        _log.log(
            logging.WARNING if cause is MissCause.UNEXPLAINED else logging.INFO,
            "the prompt cache of %s served %d of about %d tokens to session %s: %s",
            now.answered,
            now.tokens.cached,
            before.tokens.input,
            session_id,
            _WORDS[cause],
        )
    return now
