"""The filling of a model's window: prompt, tools, memory, summaries, messages, results."""

from __future__ import annotations

from collections.abc import Sequence

from talaria.agent.compaction.sizes import TOKENS_PER_BYTE, WindowLimits, rate_of, seed
from talaria.agent.transcript import Transcript
from talaria.agent.warm import WarmAgent, can_recall
from talaria.commands.replies import WindowUse
from talaria.core.entries import Entry
from talaria.core.messages import ToolResults
from talaria.core.shown import ShownLog
from talaria.models.wire import Wire


def measure_use(
    view: WarmAgent, wire: Wire, entries: Sequence[Entry], limits: WindowLimits, reported: int | None
) -> WindowUse:
    """Return the tokens of each kind. `view` shows these entries; `reported` is the size of the last request
    that a provider answered, if one is known."""
    if reported is not None:
        seed(view, reported)
    rate, spec, prefix = rate_of(view), view.pinned.spec, view.pinned.prefix
    log, weights = ShownLog(entries), {"summaries": 0, "messages": 0, "results": 0}
    scratch = Transcript(wire, spec)
    for shown in log.messages(can_recall=can_recall(spec)):
        before = scratch.weight
        scratch.append(shown.message)
        kind = "results" if isinstance(shown.message, ToolResults) else "messages"
        weights["summaries" if shown.seq == log.summary_seq else kind] += scratch.weight - before
    memory = len(spec.remembered.encode())
    weights = {
        "prompt": max(0, len(prefix.system) - memory),
        "tools": len(prefix.tools),
        "memory": memory,
        **weights,
    }
    return WindowUse(
        tuple((name, round(weight * rate)) for name, weight in weights.items()),
        limits.window,
        limits.at,
        log.summary.last,
        view.measured is None and rate == TOKENS_PER_BYTE,
    )
