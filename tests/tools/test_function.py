from __future__ import annotations

from typing import Any

import pytest

from talaria.tools.function import problems, without_nulls

TEXT = {"type": "string"}


def schema(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [], "additionalProperties": False}


@pytest.mark.parametrize(
    ("kind", "fits", "does_not"),
    [
        ("string", ["", "x"], [1, None, True, [], {}]),
        ("integer", [0, -5, 10**30, 2.0], [2.5, "2", True, None]),
        ("number", [1, 1.5], ["1", False, None]),
        ("boolean", [True, False], [0, 1, "true", None]),
        ("array", [[], [1]], [{}, "x", None]),
        ("object", [{}, {"a": 1}], [[], "x", None]),
        ("null", [None], [0, "", False, [], {}]),
        (["string", "null"], ["x", None], [1]),
    ],
)
def test_types_are_those_of_json(kind: object, fits: list[object], does_not: list[object]) -> None:
    assert [value for value in fits if problems(value, {"type": kind})] == []
    assert [value for value in does_not if not problems(value, {"type": kind})] == []


@pytest.mark.parametrize(
    ("value", "against", "says"),
    [
        ({}, {**schema(a=TEXT), "required": ["a"]}, "arguments.a is missing."),
        ({"b": 1}, schema(a=TEXT), "arguments.b is not known; known: a."),
        ({"a": 1}, schema(a=TEXT), "arguments.a must be a string, not an integer."),
        ({"a": "z"}, schema(a={"enum": ["x", "y"]}), "arguments.a must be one of 'x', 'y'."),
        ({"a": 0}, schema(a={"type": "integer", "minimum": 1}), "arguments.a must be at least 1."),
        ({"a": 9}, schema(a={"type": "integer", "maximum": 8}), "arguments.a must be at most 8."),
        (
            {"a": ["x", 2]},
            schema(a={"type": "array", "items": TEXT}),
            "arguments.a[1] must be a string, not an integer.",
        ),
        ({"a": [1, 2]}, schema(a={"type": "array", "maxItems": 1}), "arguments.a must have at most 1 items."),
        (
            {"a": "xyz"},
            schema(a={"type": "string", "maxLength": 2}),
            "arguments.a must have at most 2 characters.",
        ),
        ({"a": {"b": None}}, schema(a=schema(b=TEXT)), "arguments.a.b must be a string, not null."),
    ],
)
def test_a_problem_says_where_and_what(value: object, against: dict[str, Any], says: str) -> None:
    assert problems(value, against) == [says]


def test_what_the_schema_does_not_speak_of_is_let_through() -> None:
    assert problems({"a": 1, "b": [{}]}, {"type": "object", "properties": {"b": {"items": True}}}) == []
    assert problems({"a": 1}, {"$ref": "#/elsewhere"}) == []


def test_only_the_first_problems_are_told() -> None:
    assert len(problems([1] * 1000, {"items": TEXT})) == 5


def test_null_means_left_out_where_null_is_not_a_value() -> None:
    against = {
        "type": "object",
        "required": ["must"],
        "properties": {"must": TEXT, "may": TEXT, "nullable": {"type": ["string", "null"]}, "any": True},
    }
    given = {"must": None, "may": None, "nullable": None, "any": None, "extra": None}
    assert without_nulls(given, against) == {"must": None, "nullable": None, "any": None, "extra": None}
