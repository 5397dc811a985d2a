"""The bench in its short form: every figure is measured. How good it is does not matter here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.compare import compare, python_of, render
from bench.instructions import compare_instructions, read_total
from bench.table import Row, Wanted
from bench.turns import TurnLoad

ROOT = Path(__file__).parents[2]


class Figure(msgspec.Struct):
    name: str
    value: float
    unit: str
    wanted: str
    limit: float
    ratio: float | None
    verdict: str


TURNS = [
    "durable turn through HTTP, alone",
    "durable turn, 16 sessions at once",
    "turns with 16 sessions",
    "durable turn at 2 messages",
    "durable turn at 100 messages",
    "growth from 2 to 100 messages",
    "start to ready",
    "idle RSS",
]
AGENTS = ["agent built from 100 messages", "agent in memory over its allowance"]
ALL = [
    "bare aiohttp call, streamed",
    "openai SDK call at 2 messages",
    "openai SDK call at 100 messages",
    *TURNS,
    "streamed piece, openai-chat",
    "streamed piece, anthropic-messages",
    "streamed piece, openai SDK",
    "streamed piece, anthropic SDK",
    "open stream, openai-chat",
    "open stream, anthropic-messages",
    "open stream, openai SDK",
    "open stream, anthropic SDK",
    "piece through /v1/chat/completions",
    "piece through /v1/responses",
    "piece, responses over chat completions",
    "p50 of 64 sessions over the model's 2 s",
    "RSS with 50 live chats",
    "durable accepts, 64 tasks over one",
    "durable accept through HTTP, 64 at once",
    *AGENTS,
    "agent built from 5,000 messages, compacted",
    "turn at 5,000 messages, compacted, against 2",
    "command `true`, until its result",
    "command `true`, in the gateway",
    "gateway's growth by 10 MB of output",
    "first token of a 0.2 s model beside it",
    "p99 of a person's turn with a 0.5 s model",
    "… while 50 jobs are due at once",
    "… runs of jobs meanwhile",
    "idle job, for an hour",
    "durable turn with 1,000 stored jobs over one without",
    "recall_search in 2 MB, words",
    "recall_search in 2 MB, words, the slowest of 30",
    "recall_search in 2 MB, a regex",
    "indexing a megabyte",
    "search over 1,000 sessions",
    "search over 1,000 sessions, the slowest of 30",
    "turn while the index is filled over one at rest",
]


def bench(*options: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.upper().startswith("TALARIA_")}
    command = [sys.executable, "-m", "bench", *options]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_turns_and_agents_are_measured() -> None:
    said = bench("--quick", "--only", "turns", "--only", "agents", "--json")
    figures = msgspec.json.decode(said, type=list[Figure])
    assert [figure.name for figure in figures] == [*TURNS, *AGENTS]
    assert all(figure.value > 0 and figure.ratio is None for figure in figures)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_short_form_measures_every_figure() -> None:
    figures = msgspec.json.decode(bench("--quick", "--json"), type=list[Figure])
    assert [figure.name for figure in figures] == ALL
    for figure in figures:
        assert figure.value > 0, figure
        assert (figure.ratio is not None and figure.ratio > 0) == (figure.unit == "ms CPU"), figure


@pytest.mark.parametrize(
    ("wanted", "limit", "verdict"),
    [
        (Wanted.AT_MOST, 2.0, "reached"),
        (Wanted.AT_MOST, 1.9, "missed"),
        (Wanted.AT_LEAST, 2.0, "reached"),
        (Wanted.AT_LEAST, 2.1, "missed"),
        (Wanted.FOR_COMPARISON, 0.0, ""),
    ],
)
def test_a_figure_is_judged_by_its_limit(wanted: Wanted, limit: float, verdict: str) -> None:
    assert Row("figure", 2.0, "ms", wanted, limit).verdict == verdict


def test_a_comparison_prints_medians_and_their_ratio() -> None:
    head, _, row = render({"turn, ms CPU": (1.5, 2.0)}).splitlines()
    assert head.split("  ")[-3:] == ["this", "other", "ratio"]
    assert row.split()[-3:] == ["1.5", "2", "0.750"]


def test_a_checkout_without_its_own_interpreter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has no \.venv"):
        python_of(tmp_path)


def test_the_sum_of_a_count_of_instructions_is_its_last_line() -> None:
    assert read_total("version: 1\nevents: Ir\nfn=(1) totals\n1 20\n\ntotals: 1082186988\n") == 1082186988


@pytest.mark.long
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
async def test_the_same_checkout_runs_the_same_instructions() -> None:
    counts = await compare_instructions(ROOT, lambda text: None, turns=16)
    assert len(counts) == 3
    assert all(0.9 < ours / theirs < 1.1 for ours, theirs in counts.values())


@pytest.mark.long
async def test_this_checkout_is_compared_with_another() -> None:
    load = TurnLoad(rounds=1, warm_up=2, alone=10, each=2, samples=4, length=10)
    medians = await compare(ROOT, lambda text: None, rounds=1, load=load)
    assert len(medians) == 6
    assert all(ours > 0 and theirs > 0 for ours, theirs in medians.values())
