"""Splitting streamed markdown where it can be printed for good."""

from __future__ import annotations

import re

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")


class BlockSplitter:
    """Feed text, get the blocks that it completes; `tail` is what may still change.

    A block ends at a blank line, or with its fence when it is code. Joining all blocks and the tail gives the
    text back, blank lines between blocks apart.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._rest = ""  # the line that has not ended yet
        self._fence = ""  # what closes the open code block

    @property
    def tail(self) -> str:
        return "\n".join([*self._lines, self._rest]).strip("\n")

    def feed(self, text: str) -> list[str]:
        *lines, self._rest = (self._rest + text).split("\n")
        blocks: list[str] = []
        for line in lines:
            blocks += self._take(line)
        return blocks

    def flush(self) -> list[str]:
        """The text has ended here: everything that is left."""
        blocks = self.feed("\n") if self._rest else []
        self._fence = ""
        return blocks + self._cut()

    def _take(self, line: str) -> list[str]:
        fence = _FENCE.fullmatch(line)
        if self._fence:
            self._lines.append(line)
            if fence and fence[1].startswith(self._fence) and not fence[2].strip():
                self._fence = ""
                return self._cut()
            return []
        if fence and not (fence[1][0] == "`" and "`" in fence[2]):
            before = self._cut()
            self._fence = fence[1]
            self._lines.append(line)
            return before
        if not line.strip():
            return self._cut()
        self._lines.append(line)
        return []

    def _cut(self) -> list[str]:
        lines, self._lines = self._lines, []
        return ["\n".join(lines)] if lines else []
