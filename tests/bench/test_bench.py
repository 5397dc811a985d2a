"""The bench in its short form: every figure is measured and judged. How fast it was is not asked here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[2]


class Figure(msgspec.Struct):
    name: str
    value: float
    unit: str
    wanted: str
    limit: float
    ratio: float | None
    verdict: str


@pytest.mark.timeout(300)
def test_the_short_form_measures_every_figure() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.upper().startswith("TALARIA_")}
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--json"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = msgspec.json.decode(done.stdout, type=list[Figure])
    assert [figure.name for figure in figures] == [
        "bare aiohttp call, streamed",
        "openai SDK call at 2 messages",
        "openai SDK call at 100 messages",
        "durable turn through HTTP, alone",
        "durable turn, 16 sessions at once",
        "turns with 16 sessions",
        "durable turn at 2 messages",
        "durable turn at 100 messages",
        "growth from 2 to 100 messages",
        "start to ready",
        "idle RSS",
        "streamed piece, openai-chat",
        "streamed piece, anthropic-messages",
        "streamed piece, openai SDK",
        "streamed piece, anthropic SDK",
        "open stream, openai-chat",
        "open stream, anthropic-messages",
        "open stream, openai SDK",
        "open stream, anthropic SDK",
        "p50 of 64 sessions over the model's 2 s",
        "RSS with 50 live chats",
        "durable accepts, 64 tasks over one",
        "durable accept through HTTP, 64 at once",
        "agent built from 100 messages",
        "agent in memory over its allowance",
    ]
    for figure in figures:
        assert figure.value > 0, figure
        assert (figure.ratio is not None and figure.ratio > 0) == (figure.unit == "ms CPU"), figure
        match figure.wanted:
            case "≤":
                expected = "reached" if figure.value <= figure.limit else "missed"
            case "≥":
                expected = "reached" if figure.value >= figure.limit else "missed"
            case _:
                expected = ""
        assert figure.verdict == expected, figure
