"""Find sentences that are hard to read: long ones, and words that readers of this project stumbled over."""

from __future__ import annotations

import re
from collections.abc import Iterator

MOST_WORDS = 30
_NO_NOUN = (
    r"\bcounts? as no\b|\b(?<!there )(?:is|are) no "
    r"(?!longer|more|less|way\b|such\b)(?!\w+ (?:to|for|in|of|on|at)\b)\w+"
)
# Patterns of words, each with better ones.
_AVOIDED = {
    r"\bgoes on\b|\bgo on\b|\bwent on\b|\bbegins? anew\b": "continue, resume, restart",
    r"\b(?:is|are|was|were) told\b|\btells of\b": "is notified, receives, reads",
    _NO_NOUN: "negate the verb",
    r"\bmend(?:s|ed)?\b|\bsick\b|\bdear\b": "fix, failing, expensive",
    r"\bgiven (?:up|back)\b|\blets? go\b": "abandoned, returned, released",
    r"\bover (?:kills|restarts|crashes|a (?:kill|restart|crash))\b": "across kills, after a restart",
    r"\bthe ancestor\b|\bstrangers?\b|\bfresh eyes\b": "hermes-agent, unknown senders, new reviewers",
    r"\bwhoever\b|\bwhatever\b|^the one (?:that|who)\b": "name the actor",
    r"\blook(?:s|ed)? after\b": "manages, watches",
    r"\bfrom outside\b": "untrusted",
}
_SUBJECT = re.compile(r"^(?:What|Who|Whom|Whose|Whoever|Whatever)\b(?!.*\?)")


def faults(page: str) -> Iterator[str]:
    """Yield what is wrong with the sentences of a page of Markdown, each with its sentence."""
    for sentence in sentences(page):
        words = len(re.findall(r"[\w'’-]+", sentence))
        if words > MOST_WORDS:
            yield f"{words} words: {sentence}"
        if _SUBJECT.match(sentence) and words > 4:
            yield f"a question word is the subject: {sentence}"
        for pattern, better in _AVOIDED.items():
            if found := re.search(pattern, sentence, re.IGNORECASE):
                yield f"{found[0]!r} (better: {better}): {sentence}"


def sentences(page: str) -> Iterator[str]:
    """Yield the sentences of a page, without code blocks and headings. A code span is one word; a cell of a
    table and an item of a list are sentences."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", page, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"[*_]{1,2}(\S(?:.*?\S)?)[*_]{1,2}", r"\1", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.) )", text):
        for cell in paragraph.strip().lstrip("-*# ").split("|"):
            yield from (each for each in re.split(r"(?<=[.!?:;])\s+", " ".join(cell.split())) if each)
