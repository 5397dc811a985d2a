"""Which calls a person is asked about before they run, and what the person is shown."""

from __future__ import annotations

import msgspec

from talaria.core.errors import ToolError
from talaria.core.messages import ToolCall
from talaria.core.questions import APPROVE, Decision, QuestionDraft, QuestionKind
from talaria.core.tools import AskingTool, Risk, Tool
from talaria.tools.function import Arguments, parse_arguments
from talaria.tools.visible import VisibleTable

APPROVAL_SECONDS = 86_400.0
MAX_ASKED_CHARS = 64 << 10


def find_question(tool: Tool, call: ToolCall) -> QuestionDraft | None:
    """Return what to ask a person before the call may run; None if it may run unasked.

    This is the only place that reads `Risk`. A call with wrong arguments is not asked about, because it only
    fails when it is run. Raises `ToolError` for a call that is too long to be asked about; it must not run.
    """
    is_risky = tool.spec.risk is Risk.HIGH
    if not is_risky and not tool.spec.asks:
        return None
    if len(call.arguments) > MAX_ASKED_CHARS:
        raise ToolError(
            f"The arguments of {call.name} are too long for a person to read before the call runs.",
            f"Send at most {MAX_ASKED_CHARS} characters. Write long content to a file first.",
        )
    try:
        arguments = parse_arguments(tool, call.arguments)
    except ToolError:
        return None
    if is_risky:
        return QuestionDraft(QuestionKind.APPROVAL, describe(call.name, arguments), APPROVAL_SECONDS)
    assert isinstance(tool, AskingTool), f"{call.name} has no question to ask"
    return tool.question(arguments)


def allows(question: QuestionDraft, decision: Decision | None) -> bool:
    """Return whether the call may run after this decision."""
    return decision is not None and (question.kind is QuestionKind.ANSWER or decision.text == APPROVE)


def describe(name: str, arguments: Arguments) -> str:
    """Return exactly what will run: the name of the tool, and below it the arguments as JSON, whole.

    Characters that a reader cannot see, or that change how others are read (control characters, bidirectional
    marks, blanks other than a space), are written as escapes. Decoding the JSON gives the arguments back.
    """
    visible = msgspec.json.encode(arguments).decode().translate(VisibleTable())
    return f"{name}\n{msgspec.json.format(visible, indent=2)}"
