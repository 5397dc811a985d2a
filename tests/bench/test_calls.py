"""A change that adds calls to a turn is noticed: it has to remove others, or to justify them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.calls import Calls, Function, count_calls, package_of, record, recorded, render, version

MOST_CHANGE = 0.03
ADVICE = (
    "If the change is worth its calls, run `./dev bench --calls --record` and say why in the commit. "
    "`./dev bench --calls --top 40` lists the functions."
)


def test_a_turn_makes_about_as_many_calls_as_recorded() -> None:
    before = recorded()
    if before is None:
        pytest.skip(f"nothing is recorded for Python {version()}: run `./dev bench --calls --record` with it")
    now = count_calls().own()
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    listed = [f"{name}: {before.get(name, 0)} before, {now.get(name, 0)} now" for name in changed]
    change = sum(now.values()) / sum(before.values()) - 1
    assert abs(change) <= MOST_CHANGE, "\n".join([f"{change:+.1%} calls of a turn", *listed, ADVICE])


@pytest.mark.parametrize(
    ("file", "package"),
    [
        ("/home/ada/talaria/src/talaria/turns/live.py", "talaria.turns"),
        ("/home/ada/talaria/src/talaria/app.py", "talaria.app"),
        ("/home/ada/talaria/.venv/lib/python3.11/site-packages/aiohttp/client.py", "aiohttp"),
        ("/usr/lib/python3.11/site-packages/talaria/turns/live.py", "talaria.turns"),
        ("/usr/lib/python3.11/asyncio/tasks.py", "asyncio"),
        ("/usr/lib/python3.11/enum.py", "enum"),
        ("<string>", "<string>"),
    ],
)
def test_a_function_belongs_to_the_package_of_its_file(file: str, package: str) -> None:
    assert package_of(file) == package


def test_calls_are_shown_by_package_and_recorded_by_version(tmp_path: Path) -> None:
    own, foreign = Function("talaria.turns", "emit", ""), Function("asyncio", "wait", "")
    calls = Calls({own: 4, foreign: 2, own._replace(called="len"): 7})
    lines = [line.split() for line in render(calls, top=1).splitlines()]
    assert ["total", "6", "7"] in lines
    assert ["7", "talaria.turns", "emit", "len"] in lines
    path = tmp_path / "calls.json"
    record(calls, path)
    assert json.loads(path.read_text()) == {version(): {"talaria.turns": 4}}
    assert recorded(path) == {"talaria.turns": 4}
    path.write_text("{}")
    assert recorded(path) is None
