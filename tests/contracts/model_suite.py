"""What every implementation of the `Model` port must do. Subclasses give a `subject` fixture.

The suite speaks to models that follow `talaria.testing.script`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest

from talaria.core.errors import ModelError, ModelRefused, ModelUnavailable
from talaria.core.messages import (
    AssistantMessage,
    Message,
    Text,
    TokenUsage,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.specs import CallCut, Completion, ModelCall, ModelDelta, TextDelta, ThoughtDelta
from talaria.core.tools import ToolSpec
from talaria.models.wire import Model, Wire

TOOLS = (
    ToolSpec("read_file", "Read a file.", '{"type":"object","properties":{"path":{"type":"string"}}}'),
    ToolSpec("terminal", "Run a command.", '{"type":"object","properties":{"command":{"type":"string"}}}'),
)


@dataclass
class Subject:
    """`until_busy` waits until the model works on a call, `until_idle` until nothing of it is left there."""

    model: Model
    wire: Wire
    until_busy: Callable[[], Awaitable[None]]
    until_idle: Callable[[], Awaitable[None]]

    def call(self, *messages: Message | str) -> ModelCall:
        wire = self.wire
        chunks = [wire.encode(user(m) if isinstance(m, str) else m) for m in messages]
        return ModelCall("scripted", wire.render_prefix("Be kind.", TOOLS), chunks)

    async def complete(self, *messages: Message | str) -> tuple[Completion, list[ModelDelta]]:
        deltas: list[ModelDelta] = []
        return await self.model.complete(self.call(*messages), deltas.append), deltas


def user(text: str) -> UserMessage:
    return UserMessage((Text(text),), "Mon 15 Nov 2027 10:00")


def results_of(message: AssistantMessage, *texts: str) -> ToolResults:
    pairs = zip(message.tool_calls, texts, strict=True)
    return ToolResults(tuple(ToolResult(call.id, call.name, text) for call, text in pairs))


class ModelSuite:
    async def test_it_says_how_often_to_retry_and_rests_only_after_failures(self, subject: Subject) -> None:
        assert subject.model.max_retries >= 0
        for text in ("hello", "[[status 400]]", "[[status 429]]"):
            with suppress(ModelError):
                await subject.complete(text)
        assert subject.model.is_resting is False

    async def test_text_is_answered_with_text(self, subject: Subject) -> None:
        completion, _ = await subject.complete("hello")
        assert completion.message == AssistantMessage("You said: hello", model="scripted")
        assert completion.stop == "stop"

    async def test_deltas_join_to_the_text(self, subject: Subject) -> None:
        completion, deltas = await subject.complete("[[words 50]] [[chunks 25]]")
        texts = [delta.text for delta in deltas if isinstance(delta, TextDelta)]
        assert len(texts) == 25
        assert "".join(texts) == completion.message.text
        assert completion.message.text.endswith("word50")

    async def test_text_of_every_script_comes_through_whole(self, subject: Subject) -> None:
        text = 'Größe 日本 🎉 "quoted" \\ \t tab'
        completion, _ = await subject.complete(f"[[reply {text}]]")
        assert completion.message.text == text

    async def test_thoughts_come_apart_from_the_text(self, subject: Subject) -> None:
        completion, deltas = await subject.complete("[[think hmm]] [[reply yes]]")
        assert deltas == [ThoughtDelta("hmm"), TextDelta("yes")]
        [thought] = completion.message.reasoning
        assert (thought.field, thought.text, thought.raw) == ("reasoning_content", "hmm", '"hmm"')

    async def test_a_tool_call_keeps_its_arguments_byte_for_byte(self, subject: Subject) -> None:
        completion, deltas = await subject.complete('[[call read_file {"path" :  "a.txt"}]]')
        [call] = completion.message.tool_calls
        assert (call.name, call.arguments) == ("read_file", '{"path" :  "a.txt"}')
        assert call.id
        assert completion.stop == "tool_calls"
        assert deltas == []

    async def test_arguments_need_not_be_json(self, subject: Subject) -> None:
        completion, _ = await subject.complete("[[call read_file {oops]]")
        assert completion.message.tool_calls[0].arguments == "{oops"

    async def test_several_calls_of_one_step_stay_in_order_with_unique_ids(self, subject: Subject) -> None:
        completion, _ = await subject.complete(
            '[[call read_file {"path":"a"} + call terminal {"command":"b"}]]'
        )
        calls = completion.message.tool_calls
        assert [(call.name, call.arguments) for call in calls] == [
            ("read_file", '{"path":"a"}'),
            ("terminal", '{"command":"b"}'),
        ]
        assert len({call.id for call in calls}) == 2

    async def test_steps_follow_each_other_until_the_answer(self, subject: Subject) -> None:
        question = user('[[call read_file {"path":"a"}]] [[call terminal {"command":"b"}]] [[reply done]]')
        first, _ = await subject.complete(question)
        log: list[Message] = [question, first.message, results_of(first.message, "AAA")]
        second, _ = await subject.complete(*log)
        assert second.message.tool_calls[0].name == "terminal"
        log += [second.message, results_of(second.message, "BBB")]
        third, _ = await subject.complete(*log)
        assert third.message.text == "done"
        assert third.message.tool_calls == ()

    async def test_results_reach_the_model(self, subject: Subject) -> None:
        question = user("[[call read_file {}+read_file {}]]")
        first, _ = await subject.complete(question)
        last, _ = await subject.complete(question, first.message, results_of(first.message, "one", "two"))
        assert last.message.text == "Tool results: one; two"

    async def test_usage_is_reported(self, subject: Subject) -> None:
        completion, _ = await subject.complete("[[usage 1000 800 20 5]] [[reply x]]")
        assert completion.usage == TokenUsage(1000, 800, 20, 5)

    async def test_an_empty_answer_is_an_answer(self, subject: Subject) -> None:
        completion, deltas = await subject.complete("[[empty]]")
        assert completion.message == AssistantMessage("", model="scripted")
        assert deltas == []

    @pytest.mark.parametrize(
        ("mark", "kind"),
        [
            ("[[status 429]]", ModelUnavailable),
            ("[[status 500]]", ModelUnavailable),
            ("[[status 503]]", ModelUnavailable),
            ("[[status 529]]", ModelUnavailable),
            ("[[status 400]]", ModelRefused),
            ("[[status 401]]", ModelRefused),
            ("[[status 403]]", ModelRefused),
            ("[[status 404]]", ModelRefused),
            ("[[status 422]]", ModelRefused),
            ("[[cut 0]]", ModelUnavailable),
            ("[[cut 2]] [[words 50]]", ModelUnavailable),
            ("[[malformed]]", ModelUnavailable),
            ("[[error-in-stream]]", ModelUnavailable),
            ("[[half-call]]", ModelUnavailable),
        ],
    )
    async def test_failures_are_classed(self, subject: Subject, mark: str, kind: type[ModelError]) -> None:
        with pytest.raises(ModelError) as caught:
            await subject.complete(mark)
        assert type(caught.value) is kind
        assert "scripted" in caught.value.user_text
        assert caught.value.hint
        await subject.until_idle()

    async def test_the_status_and_the_wish_to_wait_are_kept(self, subject: Subject) -> None:
        with pytest.raises(ModelUnavailable) as caught:
            await subject.complete("[[status 503]] [[retry-after 7]]")
        assert (caught.value.status, caught.value.retry_after) == (503, 7.0)

    async def test_what_came_before_the_cut_was_streamed(self, subject: Subject) -> None:
        deltas: list[ModelDelta] = []
        call = subject.call("[[words 40]] [[chunks 10]] [[cut 3]]")
        with pytest.raises(ModelUnavailable, match="the answer was cut off"):
            await subject.model.complete(call, deltas.append)
        *texts, cut = deltas
        assert len(texts) == 3
        assert cut == CallCut(sum(len(text.text) for text in texts if isinstance(text, TextDelta)))

    @pytest.mark.parametrize(
        ("marks", "output_bytes"),
        [
            ("[[status 503]]", 0),
            ("[[reply Größe]] [[chunks 1]] [[cut 1]]", len("Größe".encode())),
        ],
    )
    async def test_a_call_that_was_sent_and_failed_tells_what_arrived(
        self, subject: Subject, marks: str, output_bytes: int
    ) -> None:
        deltas: list[ModelDelta] = []
        with pytest.raises(ModelUnavailable):
            await subject.model.complete(subject.call(marks), deltas.append)
        assert deltas[-1] == CallCut(output_bytes)

    async def test_a_call_that_was_sent_and_cancelled_tells_what_arrived(self, subject: Subject) -> None:
        deltas: list[ModelDelta] = []
        task = asyncio.create_task(subject.model.complete(subject.call("[[hang]]"), deltas.append))
        await subject.until_busy()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert deltas == [CallCut(0)]
        await subject.until_idle()

    async def test_a_fault_may_pass(self, subject: Subject) -> None:
        for _ in range(2):
            with pytest.raises(ModelUnavailable):
                await subject.complete("[[first 2 status 503]] [[reply well]]")
        completion, _ = await subject.complete("[[first 2 status 503]] [[reply well]]")
        assert completion.message.text == "well"

    async def test_a_cancelled_call_leaves_nothing_behind(self, subject: Subject) -> None:
        task = asyncio.create_task(subject.complete("[[hang]]"))
        await subject.until_busy()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await subject.until_idle()
        completion, _ = await subject.complete("still there?")
        assert completion.message.text == "You said: still there?"

    async def test_a_call_cancelled_while_it_streams_leaves_nothing_behind(self, subject: Subject) -> None:
        streaming = asyncio.Event()
        call = subject.call("[[words 2000]] [[chunks 2000]] [[chunk-delay 0.01]]")
        task = asyncio.create_task(subject.model.complete(call, lambda delta: streaming.set()))
        await streaming.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await subject.until_idle()

    async def test_a_long_conversation_goes_through(self, subject: Subject) -> None:
        """Three megabytes: more than any socket buffer takes at once."""
        log: list[Message] = []
        for n in range(300):
            log += [UserMessage((Text(f"{n} " + "q" * 5000),)), AssistantMessage("a" * 5000)]
        completion, _ = await subject.complete(*log, "[[history]]")
        assert completion.message.text == "602"

    async def test_side_by_side_calls_do_not_mix(self, subject: Subject) -> None:
        answers = await asyncio.gather(*(subject.complete(f"[[reply {n}]]") for n in range(40)))
        assert [completion.message.text for completion, _ in answers] == [str(n) for n in range(40)]

    async def test_the_system_prompt_arrives(self, subject: Subject) -> None:
        first, _ = await subject.complete("[[system]]")
        second, _ = await subject.complete("more", AssistantMessage("ok"), "[[system]]")
        assert first.message.text == second.message.text
        assert len(first.message.text) == 64


__all__ = ["ModelSuite", "Subject", "results_of", "user"]
