"""Markdown as Telegram shows it, and pieces that fit."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from talaria.channels import pieces
from talaria.channels.pieces import shorten, tail, units
from talaria.channels.telegram.render import to_html
from talaria.testing.telegram_text import parse, utf16_length

LIMIT = 4000


def split(markdown: str, limit: int = LIMIT) -> tuple[str, ...]:
    return tuple(piece for piece in pieces.split(markdown, limit) if piece)


@pytest.mark.parametrize(
    ("markdown", "html"),
    [
        ("plain", "plain"),
        ("a < b & c", "a &lt; b &amp; c"),
        ("**bold** and __bold__", "<b>bold</b> and <b>bold</b>"),
        ("*it* and _it_ and ~~gone~~", "<i>it</i> and <i>it</i> and <s>gone</s>"),
        ("**a *b* c**", "<b>a <i>b</i> c</b>"),
        ("**open", "**open"),
        ("**a *b** c*", "<b>a *b</b> c*"),
        ("a ****b", "a ****b"),
        ("snake_case_name and 2*3*4", "snake_case_name and 2<i>3</i>4"),
        ("2 * 3 * 4", "2 * 3 * 4"),
        ("`a < *b*`", "<code>a &lt; *b*</code>"),
        ("# Title #", "<b>Title</b>"),
        ("- one\n  * two", "• one\n  • two"),
        ("> said\n> twice\nno", "<blockquote>said\ntwice</blockquote>\nno"),
        ("---", "———"),
        ('[x](https://e.x/?a="1")', '<a href="https://e.x/?a=&quot;1&quot;">x</a>'),
        ("[x](javascript:alert)", "x (<code>javascript:alert</code>)"),
        ("![x](https://e.x/p.png)", '<a href="https://e.x/p.png">x</a>'),
        ("see http://127.0.0.1/a_b_c.", "see <code>http://127.0.0.1/a_b_c</code>."),
        ("[127.0.0.1](http://10.0.0.1)", "<code>127.0.0.1</code> (<code>http://10.0.0.1</code>)"),
        ("**https://e.x/a_b_c**", "<b>https://e.x/a_b_c</b>"),
        ("http://12*7*.0.0.1", "<code>http://12*7*.0.0.1</code>"),
        ("12*7*.0.0.1", "12*7*.0.0.1"),
        ("12[7.0.0.1](http://10.0.0.1)", "12[7.0.0.1](<code>http://10.0.0.1</code>)"),
        ("version 10.4, *10.0.0.1*", "version 10.4, <i><code>10.0.0.1</code></i>"),
        ("```py\na < b\n```", '<pre><code class="language-py">a &lt; b</code></pre>'),
        ("```\nopen", "<pre>open</pre>"),
        ("| a | b |\n|---|---|", "<pre>| a | b |\n|---|---|</pre>"),
    ],
)
def test_markdown_becomes_telegrams_html(markdown: str, html: str) -> None:
    assert to_html(markdown) == html


MARKDOWN = st.lists(
    st.sampled_from(
        [*"*_`>-#|<&é😀", "**", "__", "~~", "```", "```py", "[x](https://e.x)", "\n", "\n\n", " ", "word "]
    ),
    max_size=60,
).map("".join)


@given(MARKDOWN | st.text(max_size=200))
def test_whatever_is_rendered_telegram_can_parse(markdown: str) -> None:
    text, _ = parse(to_html(markdown), "HTML")
    assert utf16_length(text) <= utf16_length(markdown) + 2 * markdown.count("\n") + 2


@given(MARKDOWN, st.integers(150, 400))
@example("~~~~\n[x](https://e.x)", 150)
def test_pieces_fit_and_nothing_is_missing(markdown: str, limit: int) -> None:
    long = markdown * 8
    pieces = split(long, limit=limit)
    assert all(0 < units(piece) <= limit for piece in pieces)
    for piece in pieces:
        assert utf16_length(parse(to_html(piece), "HTML")[0]) <= limit + 4
    if long.strip() and "```" not in long and "~~~" not in long:  # else fences are added
        assert "".join("".join(pieces).split()) == "".join(long.split())


def test_a_code_block_that_is_cut_is_closed_and_opened_again() -> None:
    code = "\n".join(f"line {number}" for number in range(100))
    pieces = split(f"before\n\n```py\n{code}\n```\nafter", limit=300)
    assert len(pieces) == 3
    for piece in pieces[1:-1]:
        assert piece.startswith("```py\n")
        assert piece.endswith("\n```")
    assert pieces[-1].endswith("after")
    body = "\n".join(piece for piece in pieces).replace("```py\n", "").replace("\n```", "")
    assert body == f"before\n\n{code}\nafter"


def test_pieces_are_cut_between_paragraphs_where_there_are_any() -> None:
    paragraph = "word " * 30
    first, second = split(f"{paragraph}\n\n{paragraph}\n\n{paragraph}", limit=400)
    assert (first.count("\n\n"), second) == (1, paragraph)


def test_lengths_are_counted_as_telegram_counts() -> None:
    assert units("a😀é") == utf16_length("a😀é") == 4
    assert all(units(piece) <= LIMIT for piece in split("😀" * 5000))
    assert "".join(split("😀" * 5000)) == "😀" * 5000
    assert units(shorten("😀" * 900, 1024)) <= 1024
    assert split("") == ()
    assert tail("x" * 5000, 3000).startswith("…\n")
    assert units(tail("😀" * 5000, 3000)) <= 3002


def test_a_code_block_with_a_long_fence_is_closed_with_it() -> None:
    code = "\n".join(["```", *(f"line {number}" for number in range(100)), "```"])
    first, second = split(f"````md\n{code}\n````", limit=600)
    assert first.endswith("\n````")
    assert second.startswith("````md\n")
