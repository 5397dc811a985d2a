"""The front matter of skills: fields of YAML, each read by itself."""

from __future__ import annotations

import pytest

from support.complexity import assert_linear, refused
from talaria.skills.front_matter import MAX_FRONT_MATTER, SkillError, Value, read_front_matter

FIELDS: list[tuple[str, Value]] = [
    ("x: plain text", "plain text"),
    ("x: Use when: it has a colon", "Use when: it has a colon"),
    ("x: text # a comment", "text"),
    ("x: C# and a#b", "C# and a#b"),
    ("x: one\n  two\n\n  three", "one two\nthree"),
    ('x: "quoted: \\"text\\" # \\u00e9\\n"', 'quoted: "text" # é\n'),
    ('x: "one\n  two"  # a comment', "one two"),
    ("x: 'it''s'", "it's"),
    ("x: 'one\n  two'", "one two"),
    ("x: |\n  one\n    two\n\n  three\n", "one\n  two\n\nthree\n"),
    ("x: |-\n  one\n  two\n", "one\ntwo"),
    ("x: >\n  one\n  two\n\n  three\n", "one two\nthree\n"),
    ("x: >-\n  one\n  two\n", "one two"),
    ("x: >-\n  one\n    kept\n  two", "one\n  kept\ntwo"),
    ("x: |2-\n   one", " one"),
    ("x: [a, 'b c', \"d, e\"]", ("a", "b c", "d, e")),
    ("x: [\n  a,\n  b\n]", ("a", "b")),
    ("x: []", ()),
    ("x:\n  - a\n  - 'b'  \n  - c # no", ("a", "b", "c")),
    ("x:\n- a\n- b", ("a", "b")),
    ("x:\n  text below", "text below"),
    ('x:\n  "quoted below"', "quoted below"),
    ("x:", ""),
    ("x: ~", "~"),
    ("x: {a: 1, b: [2]}", "{a: 1, b: [2]}"),
    ("x:\n  a: 1\n  b:\n    - 2", "a: 1\n  b:\n    - 2"),
    ('"x": quoted key', "quoted key"),
    ("x: *Always* quote", "*Always* quote"),
    ("x: [Beta] tool", "[Beta] tool"),
    ("x: [a, {b: c}]", "[a, {b: c}]"),
    ("x: 2026-01-02", "2026-01-02"),
    ("x: yes", "yes"),
    ("x: " + "[" * 200, "[" * 200),
    (f"x: ['{'[' * 99}']", ("[" * 99,)),
    (f"x: ['{'[' * 100}']", f"['{'[' * 100}']"),
    ("x: !!python/object/apply:os.system [echo]", "!!python/object/apply:os.system [echo]"),
]


@pytest.mark.parametrize(("text", "value"), FIELDS)
def test_a_field_is_read_as_it_was_meant(text: str, value: Value) -> None:
    fields, body = read_front_matter(f"---\n# comment\n{text}\nlast: one\n---\n\nThe body.\n")
    assert fields["x"] == value
    assert fields["last"] == "one"
    assert body == "The body."


def test_files_of_other_systems_and_without_front_matter_are_read() -> None:
    assert read_front_matter("\ufeff---\r\nname: a\r\n---\r\nText\r\n") == ({"name": "a"}, "Text")
    assert read_front_matter("# Only text\n") == ({}, "# Only text\n")
    assert read_front_matter("") == ({}, "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("---\nname: a\n", "has no end"),
        ("---\nname: a\nno key here\n---\n", "Line 3 of SKILL.md is not understood: 'no key here'."),
        ("---\n%TAG ! x\n---\n", "Line 2"),
        ("---\nname: a\nx: *anchor\n---\n", "Line 3 of SKILL.md has a YAML anchor or alias"),
        ("---\nx:\n  - &a b\n  - *a\n---\n", "Line 2 of SKILL.md has a YAML anchor or alias"),
        (f"---\nx: {'a' * MAX_FRONT_MATTER}\n---\n", "has more than 64.0 KiB"),
        ("---\n" + "".join(f"x{at}:\n" for at in range(201)) + "---\n", "more than 200 fields"),
    ],
)
def test_what_is_not_understood_is_named(text: str, said: str) -> None:
    with pytest.raises(SkillError, match=said):
        read_front_matter(text)


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        *(('x: "', "\\"), ("x: '", "''"), ("x: [", "'a, "), ("x: ", " #"), ("x: a", " "), ("x:\n a", " ")),
        *(
            ("a", " "),
            ("a", "\t"),
            ('"', "\t"),
            ("x: |", " "),
            ("x:\n-", " "),
            ("x: [a", " "),
            ("x: []", " "),
            ("x: ", "["),
            ("x: ", "[a: "),
            ("x:\n", "- "),
            ("x:\n", " ? "),
        ),
    ],
)
def test_reading_takes_linear_time(head: str, piece: str) -> None:
    def read(text: str) -> None:
        with refused("is not understood"):
            read_front_matter(f"---\n{head}{text}!\n---\n")

    assert_linear(lambda size: piece * (size // len(piece)), read, largest=MAX_FRONT_MATTER - 100)
