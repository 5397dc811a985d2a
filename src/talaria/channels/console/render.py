"""What a chat shows of a turn. Everything shown is cleaned here, whoever wrote it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO, assert_never

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

from talaria.channels.console.blocks import BlockSplitter
from talaria.channels.console.clean import clean, clean_line, describe_call
from talaria.core.errors import ErrorInfo
from talaria.core.events import (
    Cancelled,
    Delta,
    Done,
    Event,
    Failed,
    FellBack,
    ModelLoading,
    Queued,
    ReasoningDelta,
    Reset,
    Retrying,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    UsageReported,
)
from talaria.core.messages import TokenUsage, ToolOutcome
from talaria.models.local.manifest import is_built_in

REFRESHES_PER_SECOND = 10
_THINKING = "thinking… (Ctrl-C cancels)"
_MARGIN = 3  # rows of the screen that the live part leaves free


class PlainView:
    """A turn in plain lines, for pipes and files: the reply when it is whole, tools as they end."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._calls: dict[str, str] = {}
        self._was_told = False  # that the model is on its way

    def open(self) -> None:
        pass

    def show(self, event: Event) -> None:
        match event:
            case ToolStarted():
                self._calls[event.call_id] = describe_call(event.name, event.arguments)
            case ToolFinished():
                call = self._calls.pop(event.call_id, clean_line(event.name))
                self._print(f"⚙ {call} … {_outcome(event)}")
            case Retrying() | FellBack():
                self._print(trouble_text(event))
            case Done():
                self._print(clean(event.reply))
            case Failed():
                self._print(error_text(event.error))
            case Cancelled():
                self._print(clean(event.reply))
                self._print("(cancelled)")
            case ModelLoading():
                if not self._was_told and event.is_on_its_way:
                    self._was_told = True
                    self._print(event.sentence())
            case Queued() | Delta() | ReasoningDelta() | ToolOutput() | UsageReported() | Reset():
                pass
            case _:
                assert_never(event)

    def notice(self, text: str) -> None:
        """A word from the chat itself."""
        self._print(clean(text))

    pause = resume = notice

    def close(self) -> None:
        self._out.flush()

    def _print(self, text: str) -> None:
        if text:
            self._out.write(text.rstrip("\n") + "\n")
            self._out.flush()


class LiveView:
    """For a terminal: finished blocks are printed for good, the unfinished tail is redrawn below them.

    `is_command` keeps the lines of a command's answer as they are; model text is markdown.
    """

    def __init__(
        self, console: Console, *, is_command: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._is_command = is_command
        self._clock = clock
        self._began = clock()
        self._blocks = BlockSplitter()
        self._said = ""  # of the current step, to tell what of the final reply is still missing
        self._calls: dict[str, str] = {}
        self._status = "" if is_command else _THINKING
        self._usage = TokenUsage()
        self._model = ""
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(
            self,
            console=console,
            transient=True,
            refresh_per_second=REFRESHES_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def open(self) -> None:
        self._live.start()

    def close(self) -> None:
        """Closing twice is closing once. What was streamed stays on the screen."""
        self._flush()
        self._status = ""
        self._calls.clear()
        self._live.stop()

    def notice(self, text: str) -> None:
        self._flush()
        self._console.print(Text(clean(text), style="yellow"))

    def pause(self, text: str) -> None:
        """Nothing can come until `resume`; `text` says why."""
        self.notice(text)
        self._status = "waiting for the gateway… (Ctrl-C stops waiting)"

    def resume(self, text: str) -> None:
        self.notice(text)
        self._status = _THINKING

    def show(self, event: Event) -> None:  # noqa: PLR0912 - one per event
        match event:
            case Queued(ahead=ahead) if ahead:
                self._status = f"waiting, {ahead} ahead… (Ctrl-C cancels)"
            case Queued() | ReasoningDelta() | ModelLoading(stage="reading"):
                self._status = _THINKING
            case Delta():
                self._status = ""
                self._say(event.text)
            case ToolStarted():
                self._flush()
                self._said = ""
                self._calls[event.call_id] = describe_call(event.name, event.arguments)
                self._status = ""
            case ToolOutput():
                pass
            case ToolFinished():
                self._finish_call(event)
            case Retrying() | ModelLoading() | FellBack():
                self._show_trouble(event)
            case UsageReported():
                self._usage += event.usage
                self._model = event.model
            case Reset():
                self._void()
            case Done():
                self._end(event.reply)
            case Failed():
                self._end("")
                self._console.print(Text(error_text(event.error), style="red"))
            case Cancelled():
                self._end(event.reply)
                self._console.print(Text("(cancelled)", style="yellow"))
            case _:
                assert_never(event)

    # -- text

    def _say(self, text: str) -> None:
        text = clean(text)
        self._said += text
        for block in self._blocks.feed(text):
            self._print_block(block)

    def _flush(self) -> None:
        for block in self._blocks.flush():
            self._print_block(block)

    def _print_block(self, block: str) -> None:
        self._console.print(_Rows(self._renderable(block)))
        if not self._is_command:
            self._console.print()

    def _renderable(self, block: str) -> RenderableType:
        # Links are written out: a clickable text could hide where it leads.
        return Text(block) if self._is_command else Markdown(block, hyperlinks=False)

    # -- tools, resets, ends

    def _finish_call(self, event: ToolFinished) -> None:
        call = self._calls.pop(event.call_id, clean_line(event.name))
        style = "dim" if event.outcome is ToolOutcome.OK else "red"
        self._console.print(
            Text.assemble(("⚙ ", "cyan"), (call, "dim"), (" … ", "dim"), (_outcome(event), style))
        )
        if not self._calls:
            self._status = _THINKING

    def _show_trouble(self, event: Retrying | FellBack | ModelLoading) -> None:
        if isinstance(event, FellBack):
            self.notice(trouble_text(event))
            self._status = _THINKING
        else:
            self._status = f"{trouble_text(event)} (Ctrl-C cancels)"

    def _void(self) -> None:
        """The gateway was restarted: what stands on the screen stays, and the answer begins again below."""
        has_text = bool(self._blocks.tail)
        self._flush()
        if has_text or self._calls:
            self._console.print(Text("(interrupted; the gateway takes it up again)", style="yellow"))
        self._calls.clear()
        self._said = ""
        self._status = _THINKING

    def _end(self, reply: str) -> None:
        self._status = ""
        self._calls.clear()
        self._say(self._missing(clean(reply)))
        self._flush()
        if self._usage.input or self._usage.output:
            self._console.print(Text(self._usage_line(), style="dim"))

    def _missing(self, reply: str) -> str:
        """The part of the reply that was not streamed; all of it when it does not continue the stream."""
        if reply.startswith(self._said):
            return reply[len(self._said) :]
        return "" if self._said.endswith(reply) else f"\n\n{reply}"

    def _usage_line(self) -> str:
        usage = self._usage
        cached = f" ({usage.cached} cached)" if usage.cached else ""
        badge = " (tiny model)" if is_built_in(self._model) else ""
        parts = [clean_line(self._model) + badge, f"{usage.input} in{cached}", f"{usage.output} out"]
        parts.append(f"{self._clock() - self._began:.1f} s")
        return " · ".join(part for part in parts if part)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The live part. The thread of `Live` asks when it draws, so that a block is never both printed and
        in here."""
        status, tail = self._status, self._blocks.tail
        if tail:
            yield _Rows(self._renderable(tail), is_live=True)
        for call in list(self._calls.values()):
            yield Text(f"⚙ {call} …", style="dim", no_wrap=True)
        if status:
            self._spinner.update(text=Text(status, style="dim"))
            yield self._spinner


TurnView = PlainView | LiveView  # one turn on the screen, from `open` to `close`


class _Rows:
    """A block without the blank rows around it. Live, and higher than the screen, only its end is drawn: its
    beginning is printed when it is whole."""

    def __init__(self, renderable: RenderableType, *, is_live: bool = False) -> None:
        self._renderable = renderable
        self._is_live = is_live

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = console.render_lines(self._renderable, options.update(height=None), pad=False)
        while rows and _is_blank(rows[0]):
            del rows[0]
        while rows and _is_blank(rows[-1]):
            del rows[-1]
        for row in rows[-max(1, console.height - _MARGIN) :] if self._is_live else rows:
            yield from row
            yield Segment.line()


def _is_blank(row: list[Segment]) -> bool:
    return not any(segment.text.strip() for segment in row)


def error_text(error: ErrorInfo) -> str:
    """`✗ what and why` and, on a line of its own, what to do."""
    hint = f"\n  {clean(error.hint)}" if error.hint else ""
    return f"✗ {clean(error.message)}{hint}"


def trouble_text(event: Retrying | FellBack | ModelLoading) -> str:
    """What goes on while no answer comes."""
    if isinstance(event, ModelLoading):
        return event.sentence()
    if isinstance(event, Retrying):
        return clean_line(f"↻ {event.reason} Trying again in {event.seconds:.0f} s …", 200)
    return clean_line(f"↪ {event.reason} Asking {event.model} instead.", 200)


def _outcome(event: ToolFinished) -> str:
    if event.outcome is ToolOutcome.OK:
        return "ok"
    first = clean_line(event.preview.strip().partition("\n")[0].removeprefix("Error: "), 100)
    return f"{event.outcome.value}: {first}" if first else event.outcome.value
