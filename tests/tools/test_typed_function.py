"""Tools made of functions with type hints: what a model is told, and what the function gets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from talaria.core.errors import ConfigError
from talaria.core.messages import Text, ToolOutcome
from talaria.testing.contracts import call_tool
from talaria.tools.function import as_content, typed_tool
from talaria.tools.tool import ToolContext


class Point(msgspec.Struct):
    x: int
    y: int = 0


async def plot(
    title: Annotated[str, "The title of the picture."],
    points: list[Point],
    context: ToolContext,
    unit: Literal["cm", "in"] = "cm",
    scale: Annotated[float, msgspec.Meta(ge=0.1)] = 1.0,
    note: str | None = None,
) -> dict[str, Any]:
    """Plot some points.

    This part is for people.
    """
    assert context.call_id
    return {"title": title, "sum": sum(point.x + point.y for point in points), "unit": unit, "note": note}


def test_what_a_model_is_told() -> None:
    spec = typed_tool(plot, read_only=True).spec
    assert (spec.name, spec.description, spec.read_only) == ("plot", "Plot some points.", True)
    schema = msgspec.json.decode(spec.parameters)
    assert (schema["type"], schema["required"]) == ("object", ["points", "title"])
    assert schema["additionalProperties"] is False
    assert schema["properties"]["title"] == {"type": "string", "description": "The title of the picture."}
    assert schema["properties"]["unit"]["enum"] == ["cm", "in"]
    assert schema["properties"]["note"] == {"type": "string"}
    assert schema["properties"]["points"]["items"] == {"$ref": "#/$defs/Point"}
    assert schema["$defs"]["Point"]["required"] == ["x"]
    assert "context" not in schema["properties"]


async def test_the_function_gets_typed_values_and_its_result_becomes_text(tmp_path: Path) -> None:
    tool = typed_tool(plot)
    good = await call_tool(tool, {"title": "A", "points": [{"x": 1}, {"x": 2, "y": 3}]}, tmp_path)
    assert good.text == '{"note":null,"sum":6,"title":"A","unit":"cm"}'
    for wrong in ({"title": "A", "points": [{"y": 1}]}, {"title": "A", "points": [], "scale": 0.0}):
        bad = await call_tool(tool, wrong, tmp_path)
        assert bad.outcome is ToolOutcome.ERROR and "arguments" in bad.text


async def test_a_function_may_return_what_is_to_be_awaited(tmp_path: Path) -> None:
    async def later() -> str:
        return "later"

    def soon() -> Any:
        """Answer."""
        return later()

    assert (await call_tool(typed_tool(soon), {}, tmp_path)).text == "later"


def test_results() -> None:
    assert as_content("text") == "text"
    assert as_content(None) == "Done."
    assert as_content(Text("a")) == (Text("a"),)
    assert as_content((Text("a"), Text("b"))) == (Text("a"), Text("b"))
    assert as_content([1, 2]) == "[1,2]"


def _no_doc(x: int) -> str:
    return ""


def _no_hint(x) -> str:  # type: ignore[no-untyped-def]
    """Do it."""
    return ""


def _any_number(*xs: int) -> str:
    """Do it."""
    return ""


def _odd_type(x: type) -> str:
    """Do it."""
    return ""


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (_no_doc, "has no description"),
        (_no_hint, "The parameter x of the tool _no_hint has no type hint"),
        (_any_number, "takes \\*xs"),
        (_odd_type, "has a type that JSON does not have"),
    ],
)
def test_functions_that_are_no_tools(function: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        typed_tool(function)
