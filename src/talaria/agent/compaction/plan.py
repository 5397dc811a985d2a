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

from talaria.agent.compaction.sizes import WindowLimits
from talaria.core.entries import Entry, Summary
from talaria.core.messages import AssistantMessage, Message, ToolResults, UserMessage
from talaria.core.recall_ids import entry_id, result_id
from talaria.core.shown import ShownLog, shorten, stub_result

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
