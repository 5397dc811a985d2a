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
    found: dict[KeyPath, int] = {}
    table: KeyPath = ()
    path: KeyPath = ()
    opened: list[tuple[str, KeyPath]] = []  # the brackets of the value that is being read, and whose it is
    is_key, line = True, 1
    for match in _TOKEN.finditer(text.replace("\r\n", "\n")):
        kind, piece = match.lastgroup, match[0]
        if piece in ("]", "}") and opened:
            (_, path), is_key = opened.pop(), False
        elif piece == "\n" and not opened:
            path, is_key = table, True
        elif is_key:
            if kind in ("string", "bare"):
                path = (*path, tomllib.loads(f"key = {piece}")["key"] if kind == "string" else piece)
                found.setdefault(path, line)
            elif piece == "[":  # the head of a table, which ends with the other bracket
                path = ()
            elif piece == "]":
                table = path
            is_key = piece != "="
        elif piece in ("[", "{"):
            opened.append((piece, path))
            is_key = piece == "{"
        elif piece == "," and opened[-1][0] == "{":
            path, is_key = opened[-1][1], True
        line += piece.count("\n")
    return found
