"""Arguments against the schemas of servers, which may be hostile."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from talaria.core.errors import ToolError
from talaria.mcp.calls import check_arguments

SCHEMA = {
    "properties": {
        "mode": {"$ref": "#/$defs/mode"},
        "to": {
            "oneOf": [
                {"type": "string"},
                {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
            ]
        },
        "size": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
    },
    "if": {"required": ["mode"]},
    "then": {"required": ["to"]},
    "$defs": {"mode": {"enum": ["fast", "slow"]}},
}


def check(schema: dict[str, Any], **arguments: Any) -> None:
    check_arguments("mcp_one_send", json.dumps(schema), arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"mode": "quick", "to": "x"}, "arguments.mode: 'quick' is not one of"),
        ({"to": {"id": "x"}}, "arguments.to.id: 'x' is not of type 'integer'"),
        ({"to": 5}, "arguments.to: 5 is not valid under any"),
        ({"mode": "fast"}, "'to' is a required property"),
    ],
)
def test_a_wrong_argument_is_named_for_the_model(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ToolError) as refused:
        check(SCHEMA, **arguments)
    assert refused.value.user_text.startswith("The arguments of mcp_one_send are wrong: ")
    assert said in refused.value.user_text


def test_good_arguments_pass_and_so_does_the_boolean_of_draft_4() -> None:
    check(SCHEMA, mode="fast", to={"id": 1}, size=0.5)


def doubling() -> dict[str, Any]:
    steps = {f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(60)}
    return {"$ref": "#/$defs/d0", "$defs": steps | {"d60": {}}}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (doubling(), 1),
        ({"$ref": "#"}, 1),
        ({"$ref": "http://127.0.0.1:1/schema"}, 1),
        ({"$dynamicRef": "http://127.0.0.1:1/schema"}, 1),
        ({"properties": {"x": {"$id": "http://127.0.0.1:1/a", "$ref": "#/b"}}}, 1),
        ({"properties": {"x": {"pattern": "(a+)+$"}}}, "a" * 40 + "!"),
        ({"properties": {"x": {"propertyNames": {"pattern": "(a+)+$"}}}}, {"a" * 40 + "!": 1}),
        (
            {"properties": {"x": {"patternProperties": {"(a+)+$": {}}, "additionalProperties": False}}},
            {"a" * 40 + "!": 1},
        ),
        ({"properties": {"x": {"uniqueItems": True}}}, [{"n": at} for at in range(20_000)]),
        ({"properties": {"x": {"items": {"enum": [[at] for at in range(5000)]}}}}, [[4999]] * 10_000),
        ({"properties": {"x": {"anyOf": [{"type": "object"}] * 1500}}}, list(range(20_000))),
        ({"properties": {"x": {"multipleOf": 0}}}, 1),
        ({"properties": 5}, 1),
    ],
)
def test_a_hostile_or_broken_schema_costs_a_moment_and_refuses_nothing(
    schema: dict[str, Any], value: object
) -> None:
    begin = time.thread_time()
    check(schema, x=value)
    assert time.thread_time() - begin < 2
