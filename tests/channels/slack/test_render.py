"""Markdown as mrkdwn, and how it is split into sections."""

from __future__ import annotations

import pytest

from talaria.channels.slack.outlet import SlackOutlet
from talaria.channels.slack.render import LIMIT, split, to_blocks, to_mrkdwn
from talaria.core.delivery import Button


@pytest.mark.parametrize(
    ("markdown", "mrkdwn"),
    [
        ("**bold** and *it* and _it_ and ~~no~~", "*bold* and _it_ and _it_ and ~no~"),
        ("__init__ and snake_case_name and 2*3*4", "*init* and snake_case_name and 2*3*4"),
        ("# A **big** title #", "*A big title*"),
        ("- one\n  * two\n1. three", "• one\n  • two\n1. three"),
        ("> said\n---", ">said\n———"),
        ("`a < b` and **x `*` y**", "`a &lt; b` and *x `*` y*"),
        ("```py\nif a < b:\n    *x*\n```\nend", "```\nif a &lt; b:\n    *x*\n```\nend"),
        ("````\n```\n````", "```\n``\u200b`\n```"),
        ("|a|b|\n|-|-|\nend", "```\n|a|b|\n|-|-|\n```\nend"),
        ("[x](https://ex.org/a?b=1&c=2)", "<https://ex.org/a?b=1&amp;c=2|x>"),
        ("![p|q](https://ex.org/p.png)", "<https://ex.org/p.png|p/q>"),
        ("see https://ex.org/x.", "see <https://ex.org/x>."),
    ],
)
def test_markdown_becomes_mrkdwn(markdown: str, mrkdwn: str) -> None:
    assert to_mrkdwn(markdown) == mrkdwn


@pytest.mark.parametrize(
    "text", ["<!channel>", "<!here|x>", "<@U7ADA>", "<#C1>", "<!subteam^S1>", "`<!channel>`", "# <!everyone>"]
)
def test_no_text_of_a_model_mentions_anyone(text: str) -> None:
    assert "<" not in to_mrkdwn(text)


@pytest.mark.parametrize(
    "address", ["http://localhost/x", "http://10.0.0.1:80", "192.168.1.1", "router.lan", "file:///etc/passwd"]
)
def test_an_inner_address_is_no_link(address: str) -> None:
    for text in (address, f"[here]({address})", f"**{address}**", f"- {address} now"):
        assert "<" not in to_mrkdwn(text)
    assert "<" not in to_mrkdwn("https://my.example.org/x", frozenset({"my.example.org"}))


def test_every_section_is_verbatim_so_that_slack_makes_no_links() -> None:
    for block in to_blocks("one 10.0.0.1\n\n" * 500):
        assert block["text"]["verbatim"] is True
        assert len(block["text"]["text"]) <= 3000


@pytest.mark.parametrize("text", ["&" * 9000, "<" * 9000, "a b " * 3000, "```\n" + "x<y\n" * 3000 + "```"])
def test_pieces_fit_into_a_section_however_much_is_escaped(text: str) -> None:
    pieces = list(split(text))
    assert all(len(to_mrkdwn(piece)) <= LIMIT < 3000 for piece in pieces)
    letters = "".join(pieces).replace("```", "")
    assert "".join(letters.split()) == "".join(text.replace("```", "").split())


def test_buttons_stay_within_slacks_limits() -> None:
    many = tuple(Button(f"{number} " + "x" * 100, f"/answer q {number}") for number in range(40))
    *_, actions = to_blocks("Which?", buttons=(*many[:3], Button("too long", "y" * 2001), *many[3:]))
    labels = [element["text"]["text"] for element in actions["elements"]]
    assert len(labels) <= 25 and all(len(label) <= 75 for label in labels)
    assert len({element["action_id"] for element in actions["elements"]}) == len(labels)


def test_the_outlet_says_how_long_a_message_may_be() -> None:
    assert SlackOutlet.longest == LIMIT
