"""`python -m bench.locomo FOLDER`: how much of what was said in real conversations `recall_search` finds.

FOLDER has conversations as JSON files: `sessions[]` with `at` and `turns[]` (`id`, `speaker`, `text`,
`image`), and `questions[]` with the ids of the turns that hold the answer (`evidence`). Each conversation
is the log of a session, one entry for each turn; the question, word for word, is the query. The measure is
the share of a question's evidence among the first ten hits, and among these hits with one neighbour on each
side.

--fit fits the weights on all files but one and measures on that one, for each file, and then prints the
weights for all files together. --without shows what is lost without each feature, with weights fitted anew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from talaria.core.ids import ChatAddress, OwnerId, SessionId, TurnId
from talaria.core.ledger import Accept, Begin, BranchPoint, Commit, Fresh, TurnEnd
from talaria.core.messages import Text, UserMessage
from talaria.core.turns import Inbound, Sender, TurnState
from talaria.search import ranking
from talaria.search.index import LogIndex
from talaria.search.side_file import open_side_file
from talaria.store.in_memory import MemoryStore

HITS = 10
_AT = re.compile(r"(\d+):(\d+) (am|pm) on (\d+) (\w+), (\d+)")
_OWNER, _LEASE = OwnerId("own_bench"), 60.0
_CANDIDATES, _STEPS, _RATE, _DECAY = 60, 150, 0.08, 3e-3


class _Clock:
    """A clock that stands where it was set."""

    time = 0.0

    def now(self) -> float:
        return self.time

    def elapsed(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing sleeps here")


class Candidate(NamedTuple):
    seq: int
    features: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """A question: the seqs of its evidence, its hits, and the candidates with their features."""

    evidence: frozenset[int]
    hits: tuple[int, ...]
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """The share of evidence among the hits, and among them and their neighbours."""

    hits: float
    neighbours: float

    def __str__(self) -> str:
        return f"{self.hits:.3f} {self.neighbours:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.locomo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fit", action="store_true", help="fit weights on the other files")
    parser.add_argument("--without", action="store_true", help="leave out each feature in turn")
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.json"))
    if not files:
        parser.error(f"no conversations in {options.folder}")
    asked = asyncio.run(_ask_all(files))
    print("file        questions  first 10  with neighbours")
    for name, questions in asked.items():
        print(f"{name:<12}{len(questions):>9}  {measure(questions)}")
    everything = [each for questions in asked.values() for each in questions]
    print(f"{'all':<12}{len(everything):>9}  {measure(everything)}")
    if options.fit:
        print(f"cross-validated        {cross_validate(asked)}")
        print(f"weights for all files: {fit(everything)}")
    if options.without:
        for index, name in enumerate(ranking.Features._fields):
            print(f"without {name:<15}{cross_validate(asked, frozenset({index}))}", flush=True)


# -- asking -------------------------------------------------------------------------------------------------


async def _ask_all(files: Iterable[Path]) -> dict[str, list[Asked]]:
    clock = _Clock()
    store = MemoryStore(clock)
    with tempfile.TemporaryDirectory() as folder:
        index = LogIndex(Path(folder) / "search.db", store.recall, clock, UTC)
        try:
            return {file.stem: await _ask(store, index, clock, file) for file in files}
        finally:
            await index.close()
            await store.close()


async def _ask(store: MemoryStore, index: LogIndex, clock: _Clock, file: Path) -> list[Asked]:
    conversation = json.loads(file.read_text())
    session_id, seqs = SessionId(f"ses_{file.stem}"), dict[str, int]()
    head = 0
    for number, sitting in enumerate(conversation["sessions"]):
        clock.time = _when(sitting["at"])
        head = await _say(store, session_id, f"{file.stem}_{number}", sitting["turns"])
        for place, turn in enumerate(sitting["turns"]):
            seqs[turn["id"]] = head - len(sitting["turns"]) + 1 + place
    log = BranchPoint(session_id, head)
    asked = []
    for question in conversation["questions"]:
        evidence = frozenset(seqs[name] for name in question["evidence"] if name in seqs)
        if not evidence:
            continue
        text = question["question"]
        hits = await index.find(text, [log], HITS)
        asked.append(Asked(evidence, tuple(hit.seq for hit in hits), _candidates(index.path, text, log)))
    return asked


def _candidates(path: Path, text: str, log: BranchPoint) -> tuple[Candidate, ...]:
    file = open_side_file(path)
    try:
        session = file.session(log.session_id)
        assert session is not None
        extent = ranking.Extent([session.span(log.seq)], log.seq)
        found = ranking.gather(file, ranking.parse_query(text), extent, UTC)
    finally:
        file.close()
    return tuple(Candidate(document.seq, features) for document, features in found.values())


async def _say(store: MemoryStore, session_id: SessionId, name: str, turns: Sequence[dict[str, str]]) -> int:
    key = ChatAddress("main", "http", "api", str(session_id)).key()
    turn_id = TurnId(f"turn_{name}")
    messages = [_message(turn) for turn in turns]
    begin = Begin(turn_id, _OWNER, _LEASE, messages[0])
    inbound = Inbound(key, Sender("bench"), (Text("."),))
    accepted = await store.accept(Accept(turn_id, inbound, Fresh(session_id, None), begin=begin))
    assert accepted.began is not None
    committed = await store.commit(
        Commit(
            session_id, accepted.began.fence, turn_id, tuple(messages[1:]), end=TurnEnd(TurnState.DONE, ".")
        )
    )
    return committed.revision.seq


def _message(turn: dict[str, str]) -> UserMessage:
    shown = f"\n[image: {turn['image']}]" if turn.get("image") else ""
    return UserMessage((Text(turn["text"] + shown),), name=turn["speaker"])


def _when(text: str) -> float:
    found = _AT.fullmatch(text)
    assert found is not None, text
    hour, minute, half, day, month, year = found.groups()
    date = datetime.strptime(f"{day} {month} {year} {hour}:{minute} {half}", "%d %B %Y %I:%M %p")
    return date.replace(tzinfo=UTC).timestamp()


# -- measuring ----------------------------------------------------------------------------------------------


def measure(questions: Sequence[Asked], weights: Sequence[float] | None = None) -> Measured:
    """Return the shares for the hits of the index, or for those that other weights would give."""
    shares = [
        _shares(each.evidence, each.hits if weights is None else pick(each, weights)) for each in questions
    ]
    return Measured(*(sum(column) / len(questions) for column in zip(*shares, strict=True)))


def _shares(evidence: frozenset[int], hits: Sequence[int]) -> tuple[float, float]:
    near = {seq + offset for seq in hits for offset in (-1, 0, 1)}
    return len(evidence & set(hits)) / len(evidence), len(evidence & near) / len(evidence)


def pick(asked: Asked, weights: Sequence[float]) -> list[int]:
    scores = {
        each.seq: sum(weight * value for weight, value in zip(weights, each.features, strict=True))
        for each in asked.candidates
    }
    return ranking.pick(scores, HITS)


def cross_validate(asked: dict[str, list[Asked]], without: frozenset[int] = frozenset()) -> Measured:
    """Fit on all files but one and measure on that one, for each file; return the mean over all questions."""
    total, hits, neighbours = 0, 0.0, 0.0
    for name, held_back in asked.items():
        others = [each for other, questions in asked.items() if other != name for each in questions]
        found = measure(held_back, fit(others, without))
        total += len(held_back)
        hits += found.hits * len(held_back)
        neighbours += found.neighbours * len(held_back)
    return Measured(hits / total, neighbours / total)


def fit(questions: Sequence[Asked], without: frozenset[int] = frozenset()) -> ranking.Features:
    """Return the weights under which the evidence is likeliest, if candidates are drawn by their scores."""
    kept = [index for index in range(len(ranking.WEIGHTS)) if index not in without]
    rows = [list(_training(each, kept)) for each in questions]
    spread = [_deviation([values[at] for row in rows for values, _ in row]) for at in range(len(kept))]
    scaled = [
        [(tuple(map(float.__truediv__, values, spread)), target) for values, target in row]
        for row in rows
        if row
    ]
    weights, mean, square = ([0.0] * len(kept) for _ in range(3))
    for step in range(1, _STEPS + 1):
        slope = [_DECAY * weight for weight in weights]
        for row in scaled:
            _add_slope(slope, row, weights, 1 / len(scaled))
        for at, each in enumerate(slope):  # Adam
            mean[at] = 0.9 * mean[at] + 0.1 * each
            square[at] = 0.999 * square[at] + 0.001 * each * each
            moved = mean[at] / (1 - 0.9**step) / (math.sqrt(square[at] / (1 - 0.999**step)) + 1e-8)
            weights[at] -= _RATE * moved
    found = [0.0] * len(ranking.WEIGHTS)
    for at, index in enumerate(kept):
        found[index] = round(weights[at] / spread[at], 3)
    return ranking.Features(*found)


def _training(asked: Asked, kept: Sequence[int]) -> Iterable[tuple[tuple[float, ...], float]]:
    """Yield the best candidates of a question, each with its share of the evidence."""
    target = 1 / max(1, sum(each.seq in asked.evidence for each in asked.candidates))
    best = sorted(asked.candidates, key=lambda each: -sum(map(float.__mul__, ranking.WEIGHTS, each.features)))
    for place, each in enumerate(best):
        if place < _CANDIDATES or each.seq in asked.evidence:
            values = tuple(each.features[index] for index in kept)
            yield values, target if each.seq in asked.evidence else 0.0


def _add_slope(
    slope: list[float], row: Sequence[tuple[tuple[float, ...], float]], weights: Sequence[float], share: float
) -> None:
    if not any(target for _, target in row):
        return
    scores = [sum(map(float.__mul__, values, weights)) for values, _ in row]
    highest = max(scores)
    likely = [math.exp(score - highest) for score in scores]
    total = sum(likely)
    for (values, target), each in zip(row, likely, strict=True):
        factor = (each / total - target) * share
        for at, value in enumerate(values):
            slope[at] += factor * value


def _deviation(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values)) or 1.0


if __name__ == "__main__":
    main()
