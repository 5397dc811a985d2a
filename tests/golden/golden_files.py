"""Golden files: the exact output of public interfaces, with values that differ between runs replaced.

A test passes an output to `Golden.check`. `./dev pytest tests/golden --update-golden` writes the files; other
runs compare them byte by byte. Review a changed file like code.
"""

from __future__ import annotations

import re
from pathlib import Path

from talaria.core.program import this_version

FOLDER = Path(__file__).parent
RENEW = "./dev pytest tests/golden --update-golden"

_ID = re.compile(
    r"(?<![0-9a-z])(?:01[0-9a-hjkmnp-tv-z]{24}|[0-9a-f]{32})(?![0-9a-z])"
    r"|(?<=\breq_)[0-9a-f]{16}\b|(?<=\bcall_)[0-9a-f]{12}|(?<=\bask-)[0-9a-f]{10}\b"
)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],]|[^"{}\[\],]+')
_OPEN, _CLOSED = ("{", "["), ("}", "]")
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_NAMES = (
    (re.compile(rf"{_DAY}, \d\d {_MONTH} \d{{4}} \d\d:\d\d:\d\d GMT"), "DATE"),
    (re.compile(rf"(?:{_DAY} )?20\d\d-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?(?:Z| UTC)?"), "DATE"),
    (re.compile(rf"(?:{_DAY} )?\b\d\d?:\d\d(?::\d\d(?:\.\d+)?)?\b(?: UTC)?"), "CLOCK"),
    (re.compile(r"(?<![\w.])1[6-9]\d{8}(?:\.\d+)?(?![\w.])"), "TIME"),
    (re.compile(r"\bsqlite \d+\.\d+\.\d+"), "sqlite VERSION"),
    (re.compile(r"(127\.0\.0\.1|localhost):\d+"), r"\1:PORT"),
    (re.compile(r"(?<![0-9a-z])(?:[0-9a-f]{64}|[0-9a-f]{40})(?![0-9a-z])"), "HASH"),
    (re.compile(r"Folder: /[^”\"\\\n]*"), "Folder: PATH"),  # cut to a width, so its end depends on its length
    (re.compile(r"(?<![\w.])\d+\.\d{3,}(?:e-\d+)?(?![\w.])"), "SECONDS"),
)


def normalise(text: str, *paths: Path) -> str:
    """Return the text with stable names for ids, times, ports, hashes, versions and these paths.

    The first id becomes ID1, the second ID2: two mentions of one id stay recognisable.
    """
    for number, path in enumerate(sorted(set(paths), key=lambda path: -len(str(path)))):
        text = text.replace(str(path), f"/PATH{number}")
    text = text.replace(this_version(), "VERSION")
    seen: dict[str, str] = {}
    text = _ID.sub(lambda found: seen.setdefault(found[0], f"ID{len(seen) + 1}"), text)
    for pattern, name in _NAMES:
        text = pattern.sub(name, text)
    return text


def laid_out(body: str) -> str:
    """Return a JSON document with a line for each member, and all its bytes. Return other texts unchanged."""
    if not body.startswith(("{", "[")):
        return body
    laid: list[str] = []
    depth = 0
    for token in _TOKEN.findall(body):
        depth += (token in _OPEN) - (token in _CLOSED)
        line = "\n" + " " * depth
        is_empty = token in _CLOSED and laid[-1][0] in _OPEN
        if is_empty:
            laid[-1] = laid[-1][0]
        laid.append(line * (token in _CLOSED and not is_empty) + token + line * (token in (*_OPEN, ",")))
    return "".join(laid)


class Golden:
    """The files below `tests/golden`."""

    def __init__(self, *, is_update: bool, paths: tuple[Path, ...] = ()) -> None:
        self._is_update = is_update
        self._paths = paths

    def check(self, name: str, text: str) -> None:
        """Compare the normalised text with the file, or write the file."""
        path, found = FOLDER / name, normalise(text, *self._paths)
        if self._is_update:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(found.encode())
            return
        expected = path.read_bytes().decode() if path.exists() else ""
        assert found.splitlines() == expected.splitlines() and found == expected, (
            f"tests/golden/{name} differs. If the change is intended, run: {RENEW}"
        )
