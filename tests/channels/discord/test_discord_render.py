"""Markdown as Discord should get it."""

from __future__ import annotations

import pytest

from support.complexity import assert_linear
from talaria.channels.discord.render import LIMIT, to_discord
from talaria.channels.live_message import LiveText
from talaria.channels.pieces import split, units
from talaria.core.events import Delta, ToolStarted

HOSTS = frozenset(["talaria.example.org"])


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("**bold** and https://example.com/a", "**bold** and https://example.com/a"),
        ("see http://127.0.0.1:8765/x now", "see `http://127.0.0.1:8765/x` now"),
        ("see talaria.example.org/x", "see `talaria.example.org/x`"),
        ("[here](http://10.0.0.1/)", "here (`http://10.0.0.1/`)"),
        ("[here](https://example.com/)", "[here](https://example.com/)"),
        ("`http://127.0.0.1/`", "`http://127.0.0.1/`"),
        ("`http://127.0.0.1/``", "'`http://127.0.0.1/`''"),
        ("#### small", "**small**"),
        ("~~~py\nx\n~~~", "```py\nx\n```"),
        ("````\na\n```\nb\n````", "```\na\n`\u200b`\u200b`\nb\n```"),
        ("| a | b |\n|---|---|", "```\n| a | b |\n|---|---|\n```"),
    ],
)
def test_markdown_becomes_what_discord_reads(markdown: str, shown: str) -> None:
    assert to_discord(markdown, HOSTS) == shown


@pytest.mark.parametrize("unit", ["http://10.0.0.1/ ", "a.b ", "`" * 3 + "\n", "| ", "😀", "# ", "[a](b:c) "])
def test_each_piece_fits_into_a_message_and_hides_no_inner_link(unit: str) -> None:
    for piece in split(unit * 2000, 1800):
        assert units(to_discord(piece, HOSTS)) <= 2000


@pytest.mark.parametrize("unit", ["`", "[", "[a](http://", "| ", "# a ", "1.1.", "```\n", "a b\n", "x"])
def test_rendering_is_linear(unit: str) -> None:
    assert_linear(lambda size: unit * (size // 64 // len(unit)), to_discord)


@pytest.mark.parametrize("text", ["x " * 640, "🙂" * 900])
def test_a_running_turn_with_many_tools_fits_into_a_message(text: str) -> None:
    live = LiveText("full", max_shown=LIMIT * 3 // 4)
    for number in range(20):
        live.take(ToolStarted(f"c{number}", "terminal", f'{{"command": "{number}{"y" * 300}"}}'))
    live.take(Delta(text))
    shown = to_discord(live.body())
    assert units(shown) <= 2000
    assert "terminal 19" in shown and text[-20:] in shown
