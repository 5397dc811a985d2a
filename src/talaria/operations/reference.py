"""Renders `docs/reference.md`, the reference of all operations, from their declarations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from talaria.operations.operation import Operation
from talaria.operations.table import Operations

_HEAD = """# Operations reference

This page is generated from the declarations in `src/talaria/operations`. Do not edit it. To update it, run
`./dev pytest tests/golden tests/operations --update-golden`.

You can call every operation over the [HTTP API](http-api.md); `/openapi.json` describes its types. Some
operations are also a [command](commands.md) with the option `--json`, or a tool of
[`talaria mcp serve`](mcp.md).
"""


def render_reference(operations: Operations) -> str:
    """Return the page, a section for each group."""
    groups = dict.fromkeys(operation.group for operation in operations)
    sections = (
        "\n".join(_section(group, [each for each in operations if each.group == group])) for group in groups
    )
    return "\n".join((_HEAD, *sections))


def _section(group: str, operations: list[Operation[Any, Any, Any]]) -> Iterator[str]:
    yield f"## {group}\n"
    for operation in operations:
        yield f"### {operation.name}\n"
        yield f"{operation.help}\n"
        roles = ", ".join(f"`{role}`" for role in sorted(role.value for role in operation.access.roles))
        yield f"- HTTP: `{operation.route}`, for the roles {roles}"
        if operation.usage:
            yield f"- Command: `{operation.usage[0]}`"
        if operation.tool:
            yield f"- MCP tool: `{operation.tool}`"
        for field in operation.fields:
            if field.text:
                yield f"- `{field.key}`: {field.text}"
        yield ""
