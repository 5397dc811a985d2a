"""Where in config.toml a key stands, because `tomllib` does not say."""

from __future__ import annotations

import re
import tomllib

KeyPath = tuple[str, ...]

_TOKEN = re.compile(
    r'''
    (?P<string> """(?:\\.|[^\\])*?"{3,5} | \'\'\'.*?\'{3,5} | "(?:\\.|[^"\\\n])*" | '[^'\n]*' )
  | (?P<newline> \n )
  | (?P<blank> [ \t\r]+ | \#[^\n]* )
  | (?P<mark> [\[\]{}=,.] )
  | (?P<bare> [^\s\[\]{}=,.\#"']+ )
    ''',
    re.VERBOSE | re.DOTALL,
)


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line of each key and table, by its whole path; of one that is opened often, the first.

    `text` must be valid TOML. Keys in arrays of tables count as keys of the array.
    """
    scanner = _Scanner(text.replace("\r\n", "\n"))
    scanner.scan()
    return scanner.found


class _Scanner:
    """Reads tokens in order; values are skipped, except for the keys of inline tables."""

    def __init__(self, text: str) -> None:
        self.found: dict[KeyPath, int] = {}
        self._tokens: list[tuple[str, str, int]] = []
        self._next = 0
        line = 1
        for match in _TOKEN.finditer(text):
            kind, token = match.lastgroup or "", match[0]
            if kind != "blank":
                self._tokens.append((kind, token, line))
            line += token.count("\n")

    def scan(self) -> None:
        table: KeyPath = ()
        while self._next < len(self._tokens):
            if self._peek() == "\n":
                self._next += 1
            elif self._peek() == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> KeyPath:
        while self._peek() == "[":
            self._next += 1
        table = self._key(())
        while self._peek() == "]":
            self._next += 1
        return table

    def _pair(self, table: KeyPath) -> None:
        path = self._key(table)
        self._next += 1  # the equals sign
        self._value(path)

    def _key(self, table: KeyPath) -> KeyPath:
        """Reads `a."b c".d` and notes the line of each of its parts."""
        path = table
        while True:
            kind, token, line = self._tokens[self._next]
            name = tomllib.loads(f"key = {token}")["key"] if kind == "string" else token
            path = (*path, name)
            self.found.setdefault(path, line)
            self._next += 1
            if self._peek() != ".":
                return path
            self._next += 1

    def _value(self, path: KeyPath) -> None:
        if self._peek() == "{":
            self._inline_table(path)
        elif self._peek() == "[":
            self._array(path)
        else:
            self._scalar()

    def _inline_table(self, path: KeyPath) -> None:
        self._next += 1
        while self._skip_newlines() != "}":
            if self._peek() == ",":
                self._next += 1
            else:
                self._pair(path)
        self._next += 1

    def _array(self, path: KeyPath) -> None:
        self._next += 1
        while self._skip_newlines() != "]":
            if self._peek() == ",":
                self._next += 1
            else:
                self._value(path)
        self._next += 1

    def _scalar(self) -> None:
        """Numbers and dates are several tokens: `3.14`, `1979-05-27 07:32:00`."""
        while (token := self._peek()) and token not in (",", "]", "}", "\n"):
            self._next += 1

    def _skip_newlines(self) -> str:
        while self._peek() == "\n":
            self._next += 1
        return self._peek()

    def _peek(self) -> str:
        """The next token; empty at the end, where valid TOML has nothing open."""
        return self._tokens[self._next][1] if self._next < len(self._tokens) else ""
