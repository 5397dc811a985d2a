"""A few days of a light user, and a page that is written section by section."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.processes import model_server
from soak import docs
from soak.home_probe import ProbeSize
from soak.job_load import JobLoad
from soak.mcp_servers import DyingServer
from soak.months import BEYOND_LIMIT, Months, read_stored
from soak.report import Curve, Figure, Progress, render_svg
from talaria.core.turns import TurnState
from talaria.testing.clock import FakeClock


@pytest.fixture(autouse=True)
def no_folder_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert [path for path in tmp_path.iterdir() if path.name != "docs"] == []


def test_days_are_lived_on_a_virtual_clock_and_results_are_stored_once() -> None:
    months = Months(Progress(is_quiet=True), share=0.02, days=2)

    async def live(home: Path) -> None:
        with model_server() as model:
            await months.live(home, model.url, FakeClock(), range(2))

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(live(Path(folder)))
        size, bodies, messages = read_stored(Path(folder))
    assert [day.day for day in months.days] == [1, 2]
    assert (months.failed, messages) == (0, months.days[-1].messages)
    assert messages > 300 and (size - bodies) / messages < BEYOND_LIMIT


def test_runs_of_jobs_end_in_every_way_and_leave_nothing() -> None:
    load = JobLoad(20, 40, Progress(is_quiet=True))
    figures = asyncio.run(load.run())
    assert [figure.name for figure in figures if not figure.is_reached] == []
    assert load.states[TurnState.DONE] > load.states[TurnState.FAILED] > 0
    assert load.samples[-1].runs >= 40 and load.edits > 10
    assert "18 MB an hour" in render_svg("runs", load.curves(), "runs")


@pytest.mark.long
def test_days_of_chats_and_runs_are_lived_measured_saved_and_forgotten() -> None:
    months = Months(Progress(is_quiet=True), share=0.02, days=2, size=ProbeSize(1, 1, 4))
    figures = {figure.name: figure for figure in asyncio.run(months.run())}
    beyond = figures["… database beyond the bytes of the messages"]
    whole = figures["… backups, made while it ran, that were not whole"]
    assert (months.failed, whole.value, beyond.limit) == (0, 0, BEYOND_LIMIT)
    assert [day.day for day in months.days] == [1, 2]
    assert months.days[-1].messages > 300
    assert months.kept[-1] <= max(months.kept)


def test_a_section_is_replaced_and_the_rest_of_the_page_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "soak.md").write_text("# What holds\n\n| a |\n\n## One\n\nold\n\n## Two\n\nstays\n")
    monkeypatch.setattr(docs, "_DOCS", folder)
    monkeypatch.setattr(docs, "_PAGE", folder / "soak.md")
    curve = Curve("a", "MB", "#000", [(0, 1), (1, 2)])
    docs.write_section(docs.Section("One", "one.svg", "new", "days"), [Figure("f", 1, "", 2)], [curve])
    page = (folder / "soak.md").read_text()
    assert page.startswith("# What holds\n\n| a |\n\n## Two\n\nstays\n\n## One\n\nnew\n")
    assert "| f | 1 | ≤ 2 | reached |" in page and "1 days" in (folder / "one.svg").read_text()


def test_a_server_that_dies_at_every_call_is_started_by_the_rule_only() -> None:
    soak = DyingServer(8, Progress(is_quiet=True), large=16 << 20, kills=False)
    figures = asyncio.run(soak.run())
    assert [figure.name for figure in figures if not figure.is_reached] == []
    assert len(soak.starts) >= 3
