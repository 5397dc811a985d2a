"""The list of all operations. Each module of this package adds its own tuple."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from talaria.operations.access import ACCESS_OPERATIONS
from talaria.operations.approvals import APPROVAL_OPERATIONS
from talaria.operations.browser import BROWSER_OPERATIONS
from talaria.operations.inbox import INBOX_OPERATIONS
from talaria.operations.jobs import JOB_OPERATIONS
from talaria.operations.memory import MEMORY_OPERATIONS
from talaria.operations.model_choice import CHOICE_OPERATIONS
from talaria.operations.operation import Operation
from talaria.operations.sessions import SESSION_OPERATIONS
from talaria.operations.status import GATEWAY_OPERATIONS
from talaria.operations.turns import TURN_OPERATIONS

Operations = tuple[Operation[Any, Any, Any], ...]
OPERATIONS: Final[Operations] = (
    *TURN_OPERATIONS,
    *SESSION_OPERATIONS,
    *APPROVAL_OPERATIONS,
    *INBOX_OPERATIONS,
    *JOB_OPERATIONS,
    *MEMORY_OPERATIONS,
    *BROWSER_OPERATIONS,
    *ACCESS_OPERATIONS,
    *GATEWAY_OPERATIONS,
    *CHOICE_OPERATIONS,
)


# -- renders `docs/reference.md`, the reference of all operations, from their declarations ----------------


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
