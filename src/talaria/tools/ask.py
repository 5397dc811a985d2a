"""The family `ask`: the model asks the person, and the turn waits for the answer."""

from __future__ import annotations

from talaria.core.errors import ToolError
from talaria.core.questions import QuestionDraft, QuestionKind
from talaria.core.text import visible_text
from talaria.core.tools import ToolSpec
from talaria.tools.function import Arguments, parameters
from talaria.tools.tool import Tool, ToolContext

MAX_QUESTION = 4000  # characters
MAX_CHOICES = 8
MAX_CHOICE = 60  # characters, so that a choice fits on a button

ASK_USER = ToolSpec(
    name="ask_user",
    description=(
        "Ask the person one question and wait for the answer. Use it only when you cannot go on without it: "
        "a decision that is the person's, or a fact that you cannot find out. `choices` are suggestions; the "
        "person may answer otherwise."
    ),
    parameters=parameters(
        {
            "question": {
                "type": "string",
                "maxLength": MAX_QUESTION,
                "description": "The question, complete and in one piece.",
            },
            "choices": {
                "type": "array",
                "maxItems": MAX_CHOICES,
                "items": {"type": "string", "maxLength": MAX_CHOICE},
                "description": "Short answers to choose from.",
            },
        },
        required=("question",),
    ),
    read_only=True,
    idempotent=True,
    asks=True,
    uses_files=False,
)


class AskUser(Tool):
    """`ask_user`: the answer is the result."""

    spec = ASK_USER

    def question(self, arguments: Arguments) -> QuestionDraft:
        if not arguments["question"].strip():
            raise ToolError("The question is empty.", "Write what you want to know.")
        choices = tuple(dict.fromkeys(visible_text(choice) for choice in arguments.get("choices") or ()))
        text = visible_text(arguments["question"], keeps_lines=True)
        return QuestionDraft(QuestionKind.ANSWER, text, choices=choices)

    async def run(self, arguments: Arguments, context: ToolContext) -> str:
        if context.decision is None:
            raise ToolError("Nobody has answered.", "Continue without the answer, and say what you assumed.")
        return context.decision.text
