"""`talaria ask`: send one message and print its reply."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import TextIO

import msgspec

from talaria.channels.console.gateway_client import GatewayClient, GatewayRefusal, RetryPolicy
from talaria.channels.console.plain import PlainRenderer
from talaria.core.errors import ErrorInfo, TalariaError
from talaria.core.events import Cancelled, Done, Failed, QuestionAsked, describe
from talaria.core.problems import Do
from talaria.core.questions import QuestionKind
from talaria.core.text import visible_json

RETRY_SECONDS = 30.0
# The words for a command line, which takes no slash commands.
WORDS: Mapping[Do, str] = {
    Do.USE_MODEL: "{} with --model",
    Do.USE_LOCAL_MODEL: "Add `--model local`",
    Do.NEW_SESSION: "Begin another session: leave --session out",
    Do.SHORTER: "Begin another session: leave --session out",
    Do.NEW_BUDGET: "Begin another session, with a budget of its own",
    Do.ANSWER_AGAIN: "Ask again",
}


class AskRequest(msgspec.Struct, frozen=True):
    """The message. Without a `session` it gets a new one."""

    text: str
    session: str = ""
    model: str = ""
    files: tuple[Path, ...] = ()


class TurnFailed(GatewayRefusal):
    """The turn ended without a reply."""


def _how_to_decide(event: QuestionAsked, session: str, command_line: Callable[[str], str]) -> str:
    """Return the whole question, and the commands for another terminal that decide it."""
    lines = [describe(event), "This waits for a person. In another terminal:"]
    if event.kind is QuestionKind.ANSWER:
        said = ["YOUR ANSWER"]
    else:
        said = [f"/approve {event.question_id}", f"/approve {event.question_id} session"]
        said.append(f"/deny {event.question_id}")
    lines += ["  " + command_line(f"ask --session {session} '{text}'") for text in said]
    return "\n".join(lines)


async def ask(
    client: GatewayClient,
    request: AskRequest,
    renderer: PlainRenderer,
    command_line: Callable[[str], str] = "talaria {}".format,
    json_out: TextIO | None = None,
    *,
    tell: Callable[[str], None] = print,
) -> None:
    """Send the message and show its turn; or, with `json_out`, write the finished turn there as JSON.

    Raises `TurnFailed` if there is no reply. On cancellation the turn is cancelled too. `command_line`
    returns how a command of this program is typed. `tell` prints what the turn waits for.
    """
    session = request.session or f"ask-{secrets.token_hex(5)}"
    retry = RetryPolicy(
        RETRY_SECONDS, on_gone=lambda error: renderer.notice(f"{error.user_text} Trying again …")
    )
    files = [await client.upload(path, retry) for path in request.files]
    key, model = secrets.token_hex(16), request.model or None
    sent = await client.send(session, request.text, key, model=model, files=files, retry=retry)
    failure: ErrorInfo | None = None
    try:
        async with aclosing(client.follow(sent.turn_id, retry)) as events:
            async for event in events:
                if isinstance(event, Failed):
                    failure = event.error
                elif isinstance(event, Cancelled):
                    failure = ErrorInfo("cancelled", "The turn was cancelled.")
                if isinstance(event, QuestionAsked):
                    tell(_how_to_decide(event, session, command_line))
                elif json_out is None and not isinstance(event, Failed):
                    renderer.show(Done(event.reply) if isinstance(event, Cancelled) else event)
                if json_out is None and isinstance(event, Done) and event.files:
                    for line in await client.describe_files(sent.turn_id, event.files):
                        renderer.attach(line)
    except asyncio.CancelledError:
        look = command_line(f"sessions show {session}")
        try:
            await client.cancel(sent.turn_id)
            renderer.notice(f"Cancelled. The message is saved, without an answer: {look}")
        except TalariaError:
            renderer.notice(f"The message is saved; the gateway may still answer it: {look}")
        raise
    finally:
        renderer.close()
    if json_out is not None:
        json_out.write(visible_json(await client.turn(sent.turn_id)) + "\n")
    if failure is not None:
        hint = failure.hint_in(WORDS)
        why = f"The whole story: {command_line(f'why {sent.turn_id}')}"
        raise TurnFailed(msgspec.structs.replace(failure, hint=f"{hint}\n{why}".strip()))
