"""The family `todo`: a list of tasks, kept in a file for each session."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from talaria.core.errors import ToolError
from talaria.core.files import todo_path
from talaria.core.tools import Risk, ToolSpec
from talaria.tools.function import Arguments, FunctionTool, in_thread, parameters
from talaria.tools.tool import ToolContext
from talaria.workspace.folder import Folder, FolderPath

MAX_ITEMS = 100
MAX_CHARS = 500

_MAX_FILE_BYTES = 1 << 20


class TodoState(StrEnum):
    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    DONE = "done"


class TodoItem(msgspec.Struct, frozen=True):
    text: str
    status: TodoState = TodoState.PENDING


_MARKS = {TodoState.PENDING: "[ ]", TodoState.IN_PROGRESS: "[>]", TodoState.DONE: "[x]"}

TODO = ToolSpec(
    name="todo",
    description=(
        "Your task list for this conversation. With `items` it replaces the whole list; without, it only "
        "returns it. Use it for work of three or more steps: write the list first, keep one item "
        "in_progress, and mark each done as soon as it is."
    ),
    parameters=parameters(
        {
            "items": {
                "type": "array",
                "maxItems": MAX_ITEMS,
                "description": "The whole new list, in order. An empty list clears it.",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["text"],
                    "properties": {
                        "text": {"type": "string", "maxLength": MAX_CHARS, "description": "The task."},
                        "status": {
                            "type": "string",
                            "enum": [state.value for state in TodoState],
                            "description": 'Default: "pending".',
                        },
                    },
                },
            }
        }
    ),
    risk=Risk.FILES,
    idempotent=True,
)


def _todo(arguments: Arguments, context: ToolContext) -> str:
    folder = context.open_folder()
    path = folder.resolve(todo_path(context.session_id))
    if "items" not in arguments:
        return render(_load(folder, path))
    items = msgspec.convert(arguments["items"], tuple[TodoItem, ...])
    for number, item in enumerate(items, start=1):
        if not item.text.strip():
            raise ToolError(f"The text of item {number} must have 1 to {MAX_CHARS} characters.")
    folder.write(path, msgspec.json.encode(items))
    return render(items)


def render(items: tuple[TodoItem, ...]) -> str:
    if not items:
        return "The list is empty."
    done = sum(item.status is TodoState.DONE for item in items)
    lines = [f"{number}. {_MARKS[item.status]} {item.text}" for number, item in enumerate(items, start=1)]
    return "\n".join([*lines, f"{done} of {len(items)} done."])


def _load(folder: Folder, path: FolderPath) -> tuple[TodoItem, ...]:
    """Return the saved list; an empty one if there is no file yet or its content is broken."""
    try:
        return msgspec.json.decode(folder.read(path, _MAX_FILE_BYTES), type=tuple[TodoItem, ...])
    except (ToolError, msgspec.DecodeError):
        return ()


TODO_TOOL = FunctionTool(TODO, in_thread(_todo))
