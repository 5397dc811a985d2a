from __future__ import annotations

import json
import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from talaria.config.issues import key_lines
from talaria.core.settings import KeyPath

EVERYTHING = '''\
top = 1 # a = 2
[a.b]
"quoted key" = "x = [y]"
'literal.key'.inner = 'z'
long = """
not = "a key"
[nor.a.table]
""" # after
literal = \'\'\'
x = 1\'\'\'
array = [
  1, # [comment]
  "]", { in_array = 1 },
]
inline = { x = { y = 3.14 }, "z" = [1, 2] }
escaped = "a \\" = b"
when = 1979-05-27 07:32:00
four = """a"""" # ", {
after = true

[[many]]
one = 1
[[many]]
two = 2
[ c . "d" ]
last = 1'''


def test_every_form_of_key_has_its_line() -> None:
    tomllib.loads(EVERYTHING)

    assert key_lines(EVERYTHING) == {
        ("top",): 1,
        ("a",): 2,
        ("a", "b"): 2,
        ("a", "b", "quoted key"): 3,
        ("a", "b", "literal.key"): 4,
        ("a", "b", "literal.key", "inner"): 4,
        ("a", "b", "long"): 5,
        ("a", "b", "literal"): 9,
        ("a", "b", "array"): 11,
        ("a", "b", "array", "in_array"): 13,
        ("a", "b", "inline"): 15,
        ("a", "b", "inline", "x"): 15,
        ("a", "b", "inline", "x", "y"): 15,
        ("a", "b", "inline", "z"): 15,
        ("a", "b", "escaped"): 16,
        ("a", "b", "when"): 17,
        ("a", "b", "four"): 18,
        ("a", "b", "after"): 19,
        ("many",): 21,
        ("many", "one"): 22,
        ("many", "two"): 24,
        ("c",): 25,
        ("c", "d"): 25,
        ("c", "d", "last"): 26,
    }


def test_windows_line_ends_count_once() -> None:
    assert key_lines("a = 1\r\n\r\nb = 2\r\n") == {("a",): 1, ("b",): 3}


KEYS = st.text(st.sampled_from("ab.=\"#[]{}\n\\' "), min_size=1, max_size=4)
STRINGS = st.text(st.sampled_from("x=[]{}#,.\"'\\\n "), max_size=8)
VALUES = st.recursive(
    STRINGS | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def written(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[\n" + "".join(f"  {written(item)}, # , ]\n" for item in value) + "]"
    return json.dumps(value)


def paths(tree: Any, path: KeyPath = ()) -> set[KeyPath]:
    if isinstance(tree, list):
        return {found for item in tree for found in paths(item, path)}
    if not isinstance(tree, dict):
        return set()
    here = {(*path, key) for key in tree}
    return here.union(*(paths(value, (*path, key)) for key, value in tree.items()))


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_the_scanner_finds_exactly_the_keys_that_the_parser_finds(tree: dict[str, Any]) -> None:
    rows = [f"{json.dumps(key)} = {written(value)}\n" for key, value in tree.items()]
    text = "".join(rows)

    lines = key_lines(text)

    assert set(lines) == paths(tomllib.loads(text))
    starts = [1 + sum(row.count("\n") for row in rows[:n]) for n in range(len(rows))]
    assert [lines[(key,)] for key in tree] == starts
