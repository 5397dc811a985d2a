"""The command line and the report of long runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mutants.blocks import SOURCE
from trial.__main__ import main
from trial.presets import PRESETS
from trial.report import (
    ROOT,
    Check,
    Curve,
    Figure,
    Outcome,
    Pages,
    add_up,
    missed,
    none_of,
    render_markdown,
    render_svg,
    render_text,
    select,
)


@pytest.mark.parametrize("words", ["trial trial", "bench", "mutants"])
def test_a_long_run_starts_without_the_folder_of_tests_on_its_path(words: str) -> None:
    command = [sys.executable, "-m", *words.split(), "--help"]
    done = subprocess.run(command, cwd=SOURCE.parents[1], capture_output=True, check=False)
    assert done.stdout.startswith(f"usage: ./dev {words.rsplit(maxsplit=1)[-1]}".encode()), done.stderr


@pytest.mark.parametrize(("words", "option"), [("chaos", "--workers"), ("soak", "--minutes")])
def test_the_names_of_presets_keep_their_options(
    words: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([words, "--help"])
    assert option in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("nothing", "no load or preset 'nothing'"),
        ("http --faults flood", "'flood' is not one of"),
        ("http --faults database", "needs PostgreSQL"),
        ("http --gateways 2", "need PostgreSQL"),
        ("shells --store postgres", "works with 1 gateway only"),
        ("http --faults disk", "has its own faults"),
        ("months --faults kill", "has its own faults"),
        ("http --checks luck", "'luck' is not one of"),
    ],
)
def test_a_combination_that_cannot_run_is_refused_with_its_reason(
    words: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["trial", *words.split()])
    assert why in capsys.readouterr().err


def test_every_row_has_its_place_on_a_page() -> None:
    for row in PRESETS.values():
        assert f"{{{{{row.name}}}}}" in (ROOT / "trial" / "pages" / row.page).read_text()


def test_a_page_is_written_whole_and_names_commit_seed_and_count(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    curve = Curve("a", "MB", "#000", [(0, 1), (1, 2)])
    outcome = Outcome([Figure("messages lost: 0", 1, "", 2)], [curve], "days", "a note", "kills.svg")
    Pages(results, tmp_path).keep("kills", outcome, seed=7, count=15)
    Pages(results, tmp_path).keep("pauses", Outcome([Figure("f", 3)]), seed=1, count=5)
    Pages(results, tmp_path).write("chaos.md")
    page = (tmp_path / "chaos.md").read_text()
    head = subprocess.check_output(["git", "rev-parse", "--short=7", "HEAD"], cwd=ROOT, text=True).strip()
    assert f"`./dev trial kills --count 15 --seed 7` at commit {head}" in page
    assert "| messages lost: 0 | 1 | ≤ 2 | reached |" in page and "a note" in page
    assert "| f | 3 |" in page and "Run `./dev trial jobs --docs`" in page and "{{" not in page
    assert "1 days" in (tmp_path / "kills.svg").read_text()


def test_only_the_selected_checks_decide() -> None:
    figures = [none_of("lost", ["m1"], Check.LOST), none_of("order", ["m2"], Check.ORDER)]
    assert missed(select(figures, [Check.ORDER])) == [("order: 1", "m2")]
    assert len(missed(select(figures, []))) == 2


def test_runs_of_the_same_kind_are_added_up_with_their_findings() -> None:
    (figure,) = add_up([[none_of("lost", ["a"])], [none_of("lost", ["b", "c"])]])
    assert (figure.value, figure.found) == (3, ("a", "b", "c"))


def test_figures_say_what_was_missed() -> None:
    figures = [Figure("one", 1.5, "MB", 2), Figure("two", 3, "", 2), Figure("three", 12_345)]
    text = render_text(figures)
    assert "1.5 MB" in text and "reached" in text and "MISSED" in text and "12,345" in text
    assert render_markdown(figures).count("\n") == 4


def test_a_picture_has_a_panel_for_each_curve() -> None:
    picture = render_svg(
        "a <title>", [Curve("one", "MB", "#000", [(0, 1), (10, 2)]), Curve("two", "", "#111", [])]
    )
    assert picture.count("<polyline") == 2
    assert "a &lt;title&gt;" in picture
