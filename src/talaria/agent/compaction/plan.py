"""The plan of a compaction: a pure function of what the model sees and of how much fits.

The newest turns stay, as far as they fit into their share of the window. Large results of tools are cut to
their beginning first, which needs no model. If that is not enough, everything before the kept turns is
summarised. If the turn that runs is itself too large, its oldest settled steps become one line each, and then
its longest messages are cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import msgspec

from talaria.agent.settings import ContextSettings
from talaria.agent.transcript import Transcript
from talaria.agent.warm import WarmAgent, can_recall
from talaria.commands.replies import WindowUse
from talaria.core.entries import Entry, Summary
from talaria.core.messages import AssistantMessage, Message, ToolResults, UserMessage
from talaria.core.shown import ShownLog, entry_id, result_id, shorten, stub_result
from talaria.models.known import Abilities
from talaria.models.wire import Wire

# -- sizes in tokens: how much of a model's window a request takes, and how much it may take --------------
# Providers report the tokens of each request. In between, bytes are counted and converted at the rate of
# the last report. Nothing is tokenised.


TOKENS_PER_BYTE = 1 / 3
"""The rate for text of which no report is known, and for all new text: English has a lower rate."""
_LEAST_RATE, _HIGHEST_RATE = 1 / 12, 1.0  # another rate is no measurement
_LEAST_SEEDED = 1 / 4
_USUAL_ANSWER = 4096
_KEPT_SHARE = 0.3
_ANSWER_SHARE = 8  # an answer takes at most one part of so many of the window


class WindowLimits(msgspec.Struct, frozen=True):
    """Numbers of tokens. A request of more than `at` is compacted, to `target` if that can be done. The last
    turns may keep `kept`. No request is sent with more than `most`. `window` is the model's, or as large as
    the settings allow if it is not known."""

    window: int
    at: int
    target: int
    kept: int
    most: int

    @classmethod
    def of(cls, settings: ContextSettings, known: Abilities, learned: int | None = None) -> WindowLimits:
        """`learned` is a size that an endpoint has refused."""
        largest = round(settings.max_tokens / settings.compact_at)
        sizes = [size for size in (known.context, learned) if size is not None]
        window = min(sizes) if sizes else largest
        used = min(window, largest)
        answer = min(known.output or _USUAL_ANSWER, window // _ANSWER_SHARE)
        return cls(
            window,
            at=min(round(used * settings.compact_at), window - answer),
            target=used // 2,
            kept=round(used * _KEPT_SHARE),
            most=window - answer,
        )


def request_weight(view: WarmAgent) -> int:
    """Return the bytes of a request that count as input."""
    prefix = view.pinned.prefix
    return len(prefix.system) + len(prefix.tools) + view.transcript.weight


def count_tokens(view: WarmAgent) -> int:
    """Return about how many tokens the next request has."""
    weight = request_weight(view)
    if view.measured is None:
        return round(weight * TOKENS_PER_BYTE)
    measured_weight, tokens = view.measured
    return round(tokens + max(0, weight - measured_weight) * max(_rate(view), TOKENS_PER_BYTE))


def rate_of(view: WarmAgent) -> float:
    """Return the tokens of the next request for each of its bytes."""
    return count_tokens(view) / max(1, request_weight(view))


def _rate(view: WarmAgent) -> float:
    if view.measured is None:
        return TOKENS_PER_BYTE
    weight, tokens = view.measured
    return tokens / max(1, weight)


def seed(view: WarmAgent, reported: int) -> None:
    """Let a view without a measurement count with the size of the session's last request. That may have shown
    more or less than the next one, so it can lower the estimate by a quarter at most."""
    weight = request_weight(view)
    rate = max(reported / max(1, weight), _LEAST_SEEDED)
    if rate < TOKENS_PER_BYTE:
        view.measured = (weight, round(weight * rate))


def measure(view: WarmAgent, weight: int, reported: int) -> None:
    """Note that a request of `weight` bytes had so many tokens. A report that cannot be true is ignored."""
    if weight and _LEAST_RATE <= reported / weight <= _HIGHEST_RATE:
        view.measured = (weight, reported)


# -- the plan of a compaction: a pure function of what the model sees and of how much fits ----------------


_LEAST_GAIN = 200  # tokens; a stub that saves less is not worth the loss of the text
_FOLD_TOKENS = 30
_SUMMARY_SHARE = 6  # a summary takes about one part of so many of what a compaction leaves
_MOST_SUMMARY = 4000

Measure = Callable[[Message], int]
"""Returns about how many tokens a message has."""


class CompactionRequest(msgspec.Struct, frozen=True):
    """The material of a compaction. `entries` are the session's log behind its floor, `tokens` the size of
    the next request, of which the prompt and the tools take `fixed`. One call of the model
    that summarises may have `room` tokens of material. A compaction that `is_wished` was asked for
    by a person, and `focus` is what to keep in view: it summarises although there is room."""

    entries: Sequence[Entry]
    limits: WindowLimits
    tokens: int
    fixed: int
    measure: Measure
    keep_turns: int
    room: int
    focus: str = ""
    is_wished: bool = False

    @property
    def summary_tokens(self) -> int:
        """The tokens that a summary should have at most."""
        return max(200, min(_MOST_SUMMARY, self.limits.target // _SUMMARY_SHARE))


class Plan(msgspec.Struct, frozen=True):
    """A compaction to be done. The entries up to `last` are summarised, if those are more than the summary in
    force stands for."""

    last: int
    stubs: tuple[str, ...]
    folds: tuple[tuple[int, int], ...]


class _Item(msgspec.Struct):
    """A message that is shown. `size` is as it is shown now, `cut` with its large results cut, by `stubs`."""

    entry: Entry
    message: Message
    size: int
    cut: int
    stubs: tuple[str, ...]


def plan_compaction(request: CompactionRequest) -> Plan:
    """Return what a compaction does. It is always well formed, and may be nothing if nothing can go."""
    limits = request.limits
    log = ShownLog(request.entries)
    before, floor = log.summary, log.floor
    turns = group_turns(_items(request, log))
    if not turns:
        return Plan(floor, before.stubs, before.folds)
    kept, stubs = _choose_kept(turns, request)
    old = [item for turn in turns[: len(turns) - kept] for item in turn]
    new = [item for turn in turns[len(turns) - kept :] for item in turn]
    size = sum(item.cut if stubs.issuperset(item.stubs) else item.size for item in new)
    spoken = request.measure(UserMessage(())) + len(before.text) // 3 if before.text else 0
    shortened = sum(item.cut for item in old)
    base = request.fixed + size
    if old and base + spoken + shortened <= limits.target and not request.is_wished:
        cut = stubs.union(*(item.stubs for item in old))
        return Plan(floor, tuple(sorted(cut)), before.folds)
    last = new[0].entry.seq - 1 if old else floor
    rest = base + (request.summary_tokens if old else spoken)
    folds, saved = _fold(turns[-1], stubs, rest - limits.target, before.folds)
    cut = _cut_messages(new, stubs, folds, rest - saved - limits.most, request)
    return Plan(last, tuple(sorted(stubs | cut)), folds)


def _items(request: CompactionRequest, log: ShownLog) -> list[_Item]:
    """Return the messages that are shown, behind the range of the summary in force."""
    stubs = frozenset(log.summary.stubs)
    items = []
    for entry, message in log.behind_floor():
        shown = shorten(entry.seq, message, stubs)
        size, own = request.measure(shown), frozenset(_known(entry, stubs))
        cut = own | frozenset(_large_results(entry.seq, shown, request.measure))
        least = request.measure(shorten(entry.seq, message, cut)) if cut != own else size
        items.append(_Item(entry, shown, size, least, tuple(sorted(cut))))
    return items


def _known(entry: Entry, stubs: frozenset[str]) -> Iterator[str]:
    """Yield the stubs of the entry."""
    if entry_id(entry.seq) in stubs:
        yield entry_id(entry.seq)
    if isinstance(entry.body, ToolResults):
        names = (result_id(entry.seq, nth) for nth in range(1, len(entry.body.results) + 1))
        yield from (name for name in names if name in stubs)


def _large_results(seq: int, message: Message, measure: Measure) -> Iterator[str]:
    if isinstance(message, ToolResults):
        for nth, result in enumerate(message.results, 1):
            name = result_id(seq, nth)
            whole, cut = (measure(ToolResults((each,))) for each in (result, stub_result(name, result)))
            if whole - cut >= _LEAST_GAIN:
                yield name


def group_turns(items: Sequence[_Item]) -> list[list[_Item]]:
    """Group messages into turns. A turn begins with a user's message of another turn than the one before it;
    a message that joined a running turn begins none."""
    turns: list[list[_Item]] = []
    for item in items:
        begins = isinstance(item.entry.body, UserMessage) and not (
            turns and item.entry.turn_id is not None and turns[-1][0].entry.turn_id == item.entry.turn_id
        )
        if begins or not turns:
            turns.append([])
        turns[-1].append(item)
    return turns


def _choose_kept(turns: Sequence[list[_Item]], request: CompactionRequest) -> tuple[int, frozenset[str]]:
    """Return how many of the last turns stay, at least one, and which of their results are cut for it."""
    used, count, stubs = 0, 0, frozenset[str]()
    for turn in reversed(turns[-request.keep_turns :]):
        whole, cut = sum(item.size for item in turn), sum(item.cut for item in turn)
        is_first = count == 0
        if used + whole <= request.limits.kept:
            used += whole
            stubs |= {name for item in turn if item.cut == item.size for name in item.stubs}
        elif is_first or used + cut <= request.limits.kept:
            used += cut
            stubs = stubs.union(*(item.stubs for item in turn))
        else:
            break
        count += 1
    return count, stubs


def _fold(
    turn: Sequence[_Item], stubs: frozenset[str], excess: int, known: tuple[tuple[int, int], ...]
) -> tuple[tuple[tuple[int, int], ...], int]:
    """Return ranges of settled steps of the turn, oldest first, until so much is saved; and what is saved.

    A step is a message with calls and the results behind it. The last step stays: the model has to answer it.
    """
    pairs = [
        (call, results)
        for call, results in itertools.pairwise(turn)
        if isinstance(call.entry.body, AssistantMessage)
        and call.entry.body.tool_calls
        and isinstance(results.entry.body, ToolResults)
    ]
    folded = {seq for first, last in known for seq in range(first, last + 1)}
    steps = [pair for pair in pairs[:-1] if pair[0].entry.seq not in folded]
    folds, saved = list(known), 0
    for call, results in steps:
        if excess - saved <= 0:
            break
        first, last = call.entry.seq, results.entry.seq
        if folds and folds[-1][1] == first - 1:
            first = folds.pop()[0]
            saved += _FOLD_TOKENS
        folds.append((first, last))
        saved += sum(item.cut if stubs.issuperset(item.stubs) else item.size for item in (call, results))
        saved -= _FOLD_TOKENS
    return tuple(folds), saved


def _cut_messages(
    items: Sequence[_Item],
    stubs: frozenset[str],
    folds: Sequence[tuple[int, int]],
    excess: int,
    request: CompactionRequest,
) -> frozenset[str]:
    """Return stubs for the longest messages and results, until so much is saved."""
    folded = {seq for first, last in folds for seq in range(first, last + 1)}
    cuts, saved = frozenset[str](), 0
    open_items = [item for item in items if item.entry.seq not in folded]
    for item in sorted(open_items, key=lambda item: -item.size):
        if excess - saved <= 0:
            break
        seq, message = item.entry.seq, item.entry.message
        assert message is not None
        if isinstance(message, ToolResults):
            names = frozenset(result_id(seq, nth) for nth in range(1, len(message.results) + 1))
        else:
            names = frozenset({entry_id(seq)})
        now = item.cut if stubs.issuperset(item.stubs) else item.size
        gain = now - request.measure(shorten(seq, message, names))
        if gain > 0:
            cuts |= names
            saved += gain
    return cuts


# -- checks -------------------------------------------------------------------------------------------------


def find_fault(entries: Sequence[Entry], summary: Summary) -> str:
    """Return what is wrong with a summary that an engine made; empty if it may be used.

    It must stand for a beginning of what is shown, end where a turn ends, leave the last turn, and split no
    call from its results.
    """
    log = ShownLog(entries)
    shown = [entry for entry in entries if entry.seq not in log.hidden and entry.message is not None]
    behind = shown if summary.of else [entry for entry in shown if entry.seq > summary.last]
    folded = {seq for first, last in summary.folds for seq in range(first, last + 1)}
    splits = any(
        isinstance(results.body, ToolResults) and (call.seq in folded) is not (results.seq in folded)
        for call, results in itertools.pairwise(behind)
    )
    faults = {
        "it brings back what an earlier summary stands for": not summary.of and summary.last < log.floor,
        "it is empty": bool(summary.last) and not summary.text,
        "it leaves no message": bool(shown) and not behind,
        "it does not end where a turn ends": summary.last > log.floor
        and bool(behind)
        and isinstance(behind[0].body, AssistantMessage | ToolResults),
        "it splits a call from its results": splits,
        "it leaves out what a person said": any(
            entry.seq in folded and not isinstance(entry.body, AssistantMessage | ToolResults)
            for entry in behind
        ),
    }
    return next((fault for fault, holds in faults.items() if holds), "")


# -- the filling of a model's window: prompt, tools, memory, summaries, messages, results -----------------


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
