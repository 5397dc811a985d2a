"""The pictures of the terminal exist and show texts that the program still prints."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
# What each must show: texts that its command prints today, looked for in its source.
SHOWN = {
    "chat": ["Enter sends, /help lists commands, Ctrl-D leaves."],
    "connect-discord": [
        "turn on Message Content Intent",
        "Discord does not accept this token.",
        "The token works, but the bot is not allowed to read messages.",
        "Ada is paired.",
    ],
    "connect-slack": [
        "The app lacks the scope users:read.",
        "Slack does not know this app-level token.",
        "In Slack, open a direct message with",
        "is paired.",
    ],
    "doctor": ["is not a known key and has no effect.", "$ chmod 700", "warnings."],
    "serve": ["http://127.0.0.1:8765/#code=", "in another terminal)", "spend cap"],
    "setup": [
        "Looking for keys and model servers on this machine",
        "did not accept the key (HTTP 401)",
        "Next:",
    ],
}


def text_of(name: str) -> str:
    root = ElementTree.parse(DOCS / "pictures" / f"{name}.svg").getroot()
    rows: dict[float, list[tuple[float, str]]] = {}
    for node in root.iter("{http://www.w3.org/2000/svg}text"):
        if "x" in node.attrib:
            row = rows.setdefault(float(node.attrib["y"]), [])
            row.append((float(node.attrib["x"]), "".join(node.itertext())))
    lines = ("".join(part for _, part in sorted(rows[y])) for y in sorted(rows))
    return "\n".join(lines).replace("\xa0", " ")


def test_the_pages_show_all_of_them() -> None:
    pages = "".join((DOCS / f"{name}.md").read_text() for name in ("quickstart", "discord", "slack"))
    named = set(re.findall(r"\(pictures/([\w-]+)\.svg\)", pages))
    assert named == set(SHOWN) == {path.stem for path in (DOCS / "pictures").glob("*.svg")}


@pytest.mark.parametrize("name", SHOWN)
def test_a_picture_shows_what_the_program_says(name: str) -> None:
    text = text_of(name)
    for wanted in SHOWN[name]:
        assert wanted in text, text
    source = (DOCS / "pictures" / f"{name}.svg").read_text()
    assert not re.search(r"url\(['\"]?http|href=['\"]http", source), "a picture fetches nothing"
    assert "/tmp/" not in text
    assert not re.search("sk-an-example|xoxb-[0-9]|token-for-tests|api-url", text)
