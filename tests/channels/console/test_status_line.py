"""The line that moves while somebody waits: on terminals only, and gone afterwards."""

from __future__ import annotations

import asyncio
from io import StringIO

import pytest

from support.sim import run
from talaria.console.plain import StatusLine, await_with_status


class Tty(StringIO):
    def isatty(self) -> bool:
        return True


async def test_it_says_what_is_waited_for_and_leaves_nothing() -> None:
    out = Tty()
    async with StatusLine(out, "Trying a/b", 30) as line:
        await asyncio.sleep(0)
        line.say("tool\x1b[2J " + "x" * 500)
    drawn = out.getvalue().split("\r\033[K")
    assert drawn[1] == "Trying a/b … 0 s of 30"
    assert "\x1b" not in drawn[2]
    assert len(drawn[2]) < 500, "it fits its line"
    assert drawn[3:] == [""]


def test_it_counts_the_seconds() -> None:
    out = Tty()

    async def wait() -> None:
        async with StatusLine(out, "Trying a/b", 30):
            await asyncio.sleep(2.2)

    run(1, wait)
    drawn = out.getvalue().split("\r\033[K")[1:-1]
    assert drawn == [f"Trying a/b … {seconds} s of 30" for seconds in (0, 0, 1, 1, 2)]


async def test_nothing_is_drawn_while_it_is_hidden() -> None:
    out = Tty()
    async with StatusLine(out, "waiting") as line:
        await asyncio.sleep(0)
        line.hide()
        shown = out.getvalue()
    assert shown == out.getvalue()


async def test_without_a_terminal_one_line_stays_and_none_moves() -> None:
    out = StringIO()
    with pytest.raises(TimeoutError):
        await await_with_status(0.01, "Trying a/b", asyncio.Event().wait(), out)
    assert out.getvalue() == "Trying a/b …\n"
    async with StatusLine(out, "waiting") as line:
        line.say("more")
    assert out.getvalue() == "Trying a/b …\n"
