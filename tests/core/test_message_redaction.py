from __future__ import annotations

import pytest

from talaria.agent.redaction import DeltaRedactor, redact_message
from talaria.core.events import ThoughtEnded
from talaria.core.messages import (
    AssistantMessage,
    File,
    Image,
    Message,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.redaction import Redactor, Secret
from talaria.core.specs import CallCut, CallDelta, ModelDelta, RefusalTextDelta, TextDelta, ThoughtDelta

KEY = "sk-Q7rT2vX9bL4mN8pW3zK6yH1c"
REDACTOR = Redactor([Secret("KEY", KEY)])
THOUGHT = Reasoning("thinking", KEY, f'{{"thinking": "{KEY}"}}')


@pytest.mark.parametrize(
    "message",
    [
        SystemMessage(KEY),
        UserMessage((Text(KEY), File("a", "a", "text/plain", 3, KEY), Image("https://x.org/a.png"))),
        UserMessage((File("a", "a", "text/plain", 9000, beginning=f"{KEY} and more", rest="offset=2"),)),
        AssistantMessage(KEY, (ToolCall("c", "run", f'{{"key": "{KEY}"}}'),), (THOUGHT,)),
        ToolResults((ToolResult("c", "run", KEY, parts=(Text(KEY),)),)),
    ],
)
def test_no_secret_is_left_in_a_message(message: Message) -> None:
    redacted = redact_message(message, REDACTOR)
    assert KEY not in repr(redacted)
    assert "[secret KEY]" in repr(redacted)
    assert redact_message(redacted, REDACTOR) is redacted


def test_a_thought_with_a_secret_is_left_out_and_others_stay_verbatim() -> None:
    other = Reasoning("thinking", "fine", '{"thinking": "fine"}')
    message = redact_message(AssistantMessage("hi", reasoning=(THOUGHT, other)), REDACTOR)
    assert message.reasoning == (other,)


def passed(*deltas: ModelDelta) -> list[ModelDelta]:
    found: list[ModelDelta] = []
    redact = DeltaRedactor(REDACTOR, found.append)
    for delta in deltas:
        redact(delta)
    redact.finish()
    return found


@pytest.mark.parametrize("size", [1, 3, 10, 100])
def test_a_secret_in_the_pieces_of_an_answer_is_not_passed_on(size: int) -> None:
    text = f"The key is {KEY}, yes"
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    for kind in (TextDelta, ThoughtDelta, RefusalTextDelta):
        said_in_pieces: list[ModelDelta] = [kind(piece) for piece in pieces]
        found = passed(*said_in_pieces)
        assert {type(delta) for delta in found} == {kind}
        said = "".join(delta.text for delta in found if isinstance(delta, TextDelta | ThoughtDelta))
        assert said == "The key is [secret KEY], yes"
    calls = passed(CallDelta(0, "c", "run", ""), *(CallDelta(0, "", "", piece) for piece in pieces))
    assert "".join(call.arguments for call in calls if isinstance(call, CallDelta)).count("[secret KEY]") == 1


def test_the_end_of_a_thought_comes_after_its_text_and_never_with_a_secret() -> None:
    ended = ThoughtEnded('{"thinking": "fine"}')
    assert passed(ThoughtDelta(KEY[:3]), ended) == [ThoughtDelta(KEY[:3]), ended]
    assert passed(ThoughtEnded(THOUGHT.raw)) == []


def test_pieces_keep_their_order_and_kind() -> None:
    call = CallDelta(0, "c", "run", "")
    deltas: list[ModelDelta] = [TextDelta("yes"), call, CallDelta(0, "", "", "{}"), CallCut(3)]
    assert passed(*deltas) == [TextDelta("ye"), TextDelta("s"), call, CallDelta(0, "", "", "{}"), CallCut(3)]
