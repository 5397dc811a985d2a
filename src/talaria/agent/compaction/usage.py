"""The filling of a model's window: prompt, tools, memory, summaries, messages, results."""

from __future__ import annotations

from collections.abc import Sequence

from talaria.agent.compaction.sizes import TOKENS_PER_BYTE, WindowLimits, rate_of, seed
from talaria.agent.transcript import Transcript
from talaria.agent.warm import WarmAgent, can_recall
from talaria.commands.window_use import WindowUse
from talaria.core.entries import Entry, Summary
from talaria.core.messages import ToolResults
from talaria.core.ports import WireFormat
from talaria.core.shown import find_summary, shown_messages


def measure_use(
    view: WarmAgent, wire: WireFormat, entries: Sequence[Entry], limits: WindowLimits, reported: int | None
) -> WindowUse:
    """Return the tokens of each kind. `view` shows these entries; `reported` is the size of the last request
    that a provider answered, if one is known."""
    if reported is not None:
        seed(view, reported)
    rate, spec, prefix = rate_of(view), view.pinned.spec, view.pinned.prefix
    found, weights = find_summary(entries), {"summaries": 0, "messages": 0, "results": 0}
    scratch = Transcript(wire, spec)
    for shown in shown_messages(entries, can_recall=can_recall(spec)):
        before = scratch.weight
        scratch.append(shown.message)
        is_summary = found is not None and shown.seq == found.seq
        kind = "results" if isinstance(shown.message, ToolResults) else "messages"
        weights["summaries" if is_summary else kind] += scratch.weight - before
    memory = len(spec.remembered.encode())
    weights = {
        "prompt": max(0, len(prefix.system) - memory),
        "tools": len(prefix.tools),
        "memory": memory,
        **weights,
    }
    summary = found.body if found is not None and isinstance(found.body, Summary) else None
    return WindowUse(
        tuple((name, round(weight * rate)) for name, weight in weights.items()),
        limits.window,
        limits.at,
        0 if summary is None else summary.last,
        view.measured is None and rate == TOKENS_PER_BYTE,
    )
