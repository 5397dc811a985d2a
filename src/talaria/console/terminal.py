"""`TerminalRenderer`: a turn of `talaria chat` on a terminal."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain

from msgspec.structs import replace
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Markdown
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

from talaria.console.plain import find_unstreamed
from talaria.core.delegates import delegate_path
from talaria.core.events import (
    Cancelled,
    DelegateChanged,
    Delta,
    Done,
    Event,
    Failed,
    FellBack,
    ModelLoading,
    OutputTail,
    QuestionAsked,
    Queued,
    ReasoningDelta,
    Reset,
    Retrying,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    UsageReported,
    describe,
    describe_call,
    is_failure,
)
from talaria.core.ids import DelegateId
from talaria.core.messages import TokenUsage, ToolOutcome
from talaria.core.text import clean, clean_line
from talaria.models.local.weights import is_built_in

_REFRESH_SECONDS = 0.1
_THINKING = "thinking… (Ctrl-C cancels)"
_DECIDING = "waiting for a decision… (Ctrl-C cancels)"
_OUTPUT_ROWS = 8  # of a tool's output: its last lines
_OUTPUT_WIDTH = 200
_LONG_SECONDS = 2.0  # a call that took so long is shown with its time
_FOLDED = 20  # calls of a chat whose output is kept
_UNFOLDED_ROWS, _UNFOLDED_WIDTH = 500, 1000
_FREE_ROWS = 3  # of the screen, beside the unfinished text
_MAX_BLOCK = 64 << 10  # characters; a longer block is printed as plain text
_FENCE = re.compile(r" {0,3}(`{3,}+(?!.*`)|~{3,}+)(.*)")


@dataclass(slots=True)
class _RunningCall:
    """A tool call on the screen, with the last lines of its output. `kept` is all of the output that came:
    the gateway bounds it."""

    text: str
    began: float
    tail: OutputTail = field(default_factory=lambda: OutputTail(_OUTPUT_ROWS, _OUTPUT_WIDTH))
    kept: list[str] = field(default_factory=list)
    delegates: dict[DelegateId, tuple[float, DelegateChanged]] = field(default_factory=dict)

    def add(self, event: ToolOutput | DelegateChanged, now: float) -> None:
        """Add output, or show a delegate of the call as one line. All that is told of it is kept."""
        if isinstance(event, ToolOutput):
            self.tail.add(event.text)
            self.kept.append(event.text)
            return
        self.delegates[event.delegate_id] = (now - event.seconds, event)
        if len(self.kept) < _UNFOLDED_ROWS:
            self.kept.append(f"{describe(event)}\n")

    def rows(self, now: float) -> Iterable[Text]:
        for key in sorted(self.delegates, key=delegate_path):
            began, event = self.delegates[key]
            shown = event if event.state.is_final else replace(event, seconds=now - began)
            yield Text(f"  {describe(shown)}", style="dim", no_wrap=True, overflow="ellipsis")
        lines = self.tail.lines()[-_OUTPUT_ROWS:]
        if (before := self.tail.total - len(lines)) > 0:
            lines.insert(0, f"… {before} lines before")
        for line in lines:
            yield Text(f"  {line}", style="dim", no_wrap=True, overflow="ellipsis")


class FoldedCalls:
    """The outputs of the last calls of a chat, which `Ctrl-O` shows: the last one, then those before it."""

    def __init__(self) -> None:
        self._calls: deque[tuple[str, str]] = deque(maxlen=_FOLDED)
        self._next = 0

    def add(self, call: str, output: str) -> bool:
        """Keep an output. Return whether it is the first one."""
        is_first = not self._calls
        self._calls.append((call, output))
        self._next = 0
        return is_first

    def unfold(self) -> str:
        """Return the output that was not shown yet, the newest first, with a line that says of what."""
        if not self._calls:
            return "No tool has printed anything yet."
        call, output = self._calls[-1 - self._next % len(self._calls)]
        self._next += 1
        screen = OutputTail(_UNFOLDED_ROWS, _UNFOLDED_WIDTH)
        screen.add(output)
        lines = screen.lines()[-_UNFOLDED_ROWS:]
        left = f"  … {screen.total - len(lines)} lines before\n" if screen.total > len(lines) else ""
        return f"⚙ {call}\n{left}" + "\n".join(f"  {line}" for line in lines)


class TerminalRenderer:
    """Shows one turn, from `open` to `close`.

    Finished blocks of the reply are printed as markdown. Below them the live part is redrawn: the unfinished
    block as plain text, running tools with their output, and the status: `redraw` is called for it again and
    again. `is_markdown` is False for the answer of a command, which is printed as it is. The output of a call
    that has ended goes to `folded`.
    """

    def __init__(
        self,
        console: Console,
        *,
        is_markdown: bool = True,
        clock: Callable[[], float] = time.monotonic,
        folded: FoldedCalls | None = None,
        redraw: Callable[[], None] = lambda: None,
    ) -> None:
        self._console = console
        self._redraw = redraw
        self._folded = folded or FoldedCalls()
        self._is_markdown = is_markdown
        self._clock = clock
        self._began = clock()
        self._blocks = BlockSplitter()
        self._streamed: list[str] = []  # pieces of the current step
        self._calls: dict[str, _RunningCall] = {}
        self._status = _THINKING if is_markdown else ""
        self._usage = TokenUsage()
        self._model = ""
        self._spinner = Spinner("dots", style="cyan")
        self._refreshing: asyncio.Task[None] | None = None

    def open(self) -> None:
        self._refreshing = asyncio.create_task(self._refresh(), name="terminal refresh")

    def close(self) -> None:
        """Print the text that is left and remove the live part. May be called twice."""
        if self._refreshing is not None:
            self._refreshing.cancel()
        self._print(self._blocks.flush())
        self._status = ""
        self._calls.clear()
        self._redraw()

    async def _refresh(self) -> None:
        while True:
            self._redraw()
            await asyncio.sleep(_REFRESH_SECONDS)

    def notice(self, text: str) -> None:
        """Print a message of the program itself."""
        self._print(self._blocks.flush())
        self._console.print(Text(clean(text), style="yellow"))

    def attach(self, text: str) -> None:
        """Print where a file of the reply is."""
        self._print(self._blocks.flush())
        self._console.print(Text(clean(text), style="cyan"), soft_wrap=True)

    def pause(self, text: str) -> None:
        """Print why no events come until `resume`."""
        self.notice(text)
        self._status = "waiting for the gateway… (Ctrl-C stops waiting)"

    def resume(self, text: str) -> None:
        self.notice(text)
        self._status = _THINKING

    def show(self, event: Event) -> None:
        match event:
            case Queued(ahead=ahead) if ahead:
                self._status = f"waiting, {ahead} ahead… (Ctrl-C cancels)"
            case Queued() | ReasoningDelta() | ModelLoading(stage="reading"):
                self._status = _THINKING
            case Delta():
                self._status = ""
                self._stream(clean(event.text))
            case ToolStarted():
                self._print(self._blocks.flush())
                self._streamed, self._status = [], ""
                text = describe_call(event.name, event.arguments)
                self._calls[event.call_id] = _RunningCall(text, self._clock())
            case ToolOutput() | DelegateChanged() if event.call_id in self._calls:
                self._calls[event.call_id].add(event, self._clock())
            case ToolFinished():
                self._finish_call(event)
            case Retrying() | ModelLoading():
                self._status = f"{describe(event)} (Ctrl-C cancels)"
            case FellBack() | QuestionAsked():
                self.notice(describe(event))
                self._status = _DECIDING if isinstance(event, QuestionAsked) else _THINKING
            case UsageReported():
                self._usage += event.usage
                self._model = event.model
            case Reset():
                self._begin_again()
            case Done() | Cancelled() | Failed():
                self._finish(event)
            case _:
                pass

    def _stream(self, text: str) -> None:
        self._streamed.append(text)
        self._print(self._blocks.feed(text))

    def _print(self, blocks: Iterable[str]) -> None:
        for block in blocks:
            if len(block) > _MAX_BLOCK:
                self._console.out(block, highlight=False)
            else:
                self._console.print(_MarkdownBlock(block) if self._is_markdown else Text(block))

    def _finish_call(self, event: ToolFinished) -> None:
        call = self._calls.pop(event.call_id, None) or _RunningCall(clean_line(event.name), self._clock())
        is_good = event.outcome is ToolOutcome.OK and not is_failure(event.note)
        outcome = (describe(event), "dim" if is_good else "red")
        parts = [f"{seconds:.0f} s"] if (seconds := self._clock() - call.began) >= _LONG_SECONDS else []
        if call.kept:
            lines = call.tail.total or len(call.kept)
            parts.append(f"{lines} {'line' if lines == 1 else 'lines'}")
            if self._folded.add(call.text, "".join(call.kept)):
                parts[-1] += " (Ctrl-O shows them)"
        more = "".join(f" · {part}" for part in parts)
        line = Text.assemble(("⚙ ", "cyan"), (f"{call.text} … ", "dim"), outcome, (more, "dim"))
        self._console.print(line)
        if not self._calls:
            self._status = _THINKING

    def _begin_again(self) -> None:
        """Keep the text of the interrupted attempt on the screen; the next attempt begins below it."""
        unfinished = self._blocks.flush()
        self._print(unfinished)
        if unfinished or self._calls:
            self._console.print(Text("(interrupted; the gateway takes it up again)", style="yellow"))
        self._calls.clear()
        self._streamed = []
        self._status = _THINKING

    def _finish(self, event: Done | Cancelled | Failed) -> None:
        self._status = ""
        self._calls.clear()
        reply = "" if isinstance(event, Failed) else clean(event.reply)
        rest = find_unstreamed(reply, "".join(self._streamed))
        self._stream(f"\n\n{reply}" if rest is None else rest)
        self._print(self._blocks.flush())
        usage = self._usage
        if usage.input or usage.output:
            model = clean_line(self._model) + (" (built in)" if is_built_in(self._model) else "")
            cached = f" ({usage.cached} cached)" if usage.cached else ""
            tokens = f"{usage.input} in{cached} · {usage.output} out"
            line = " · ".join(filter(None, (model, tokens, f"{self._clock() - self._began:.1f} s")))
            self._console.print(Text(line, style="dim"))
        if end := describe(event):
            self._console.print(Text(end, style="red" if isinstance(event, Failed) else "yellow"))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the live part."""
        height = max(1, console.height)
        if tail := self._blocks.tail(height * options.max_width):
            rows = Text(tail).wrap(console, options.max_width)
            yield from rows[-max(1, console.height - _FREE_ROWS) :]
        for call in self._calls.values():
            seconds = self._clock() - call.began
            passed = f" {seconds:.0f} s" if seconds >= _LONG_SECONDS else ""
            yield Text(f"⚙ {call.text} …{passed}", style="dim", no_wrap=True)
            yield from call.rows(self._clock())
        if self._status:
            self._spinner.update(text=Text(self._status, style="dim"))
            yield self._spinner


class BlockSplitter:
    """Splits streamed markdown at the blank lines between its blocks. A code block is never split."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._rest: list[str] = []  # pieces of the unfinished line
        self._fence = ""  # the marks that close the open code block

    def tail(self, most: int = sys.maxsize) -> str:
        """Return the unfinished block, or its last `most` characters."""
        kept = deque[str]()
        for piece in chain(reversed(self._rest), (f"{line}\n" for line in reversed(self._lines))):
            if most <= 0:
                break
            kept.appendleft(piece[-most:])
            most -= len(piece)
        return "".join(kept).strip("\n")

    def feed(self, text: str) -> list[str]:
        """Add text and return the blocks that it finishes."""
        blocks: list[str] = []
        if "\n" not in text:
            self._rest.append(text)
            return blocks
        *lines, rest = "".join((*self._rest, text)).split("\n")
        self._rest = [rest]
        for line in lines:
            if not line.strip() and not self._fence:
                blocks += self._cut()
                continue
            self._lines.append(line)
            if fence := _FENCE.fullmatch(line):
                if not self._fence:
                    self._fence = fence[1]
                elif fence[1].startswith(self._fence) and not fence[2].strip():
                    self._fence = ""
        return blocks

    def flush(self) -> list[str]:
        """End the text here and return the block that is left, if there is one."""
        blocks = self.feed("\n") if any(self._rest) else []
        self._fence = ""
        return blocks + self._cut()

    def _cut(self) -> list[str]:
        lines, self._lines = self._lines, []
        return ["\n".join(lines)] if lines else []


class _MarkdownBlock:
    """A rendered block, followed by one blank row. Rich puts blank rows around some kinds of blocks only."""

    def __init__(self, block: str) -> None:
        # Links are written out: a clickable text could hide where it leads.
        self._markdown = Markdown(block, hyperlinks=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = console.render_lines(self._markdown, options.update(height=None), pad=False)
        filled = [number for number, row in enumerate(rows) if any(part.text.strip() for part in row)]
        for row in rows[filled[0] : filled[-1] + 1] if filled else []:
            yield from row
            yield Segment.line()
        yield Segment.line()
