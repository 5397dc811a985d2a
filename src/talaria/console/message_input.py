"""The sources of a chat's messages: a prompt on a terminal, or the lines of a pipe."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import ConditionalContainer, FormattedTextControl, HSplit, Layout, Window
from prompt_toolkit.shortcuts import CompleteStyle
from rich.console import Console

from talaria.console.chat import Interrupted, TerminalChat
from talaria.console.deciding_keys import key_choices, prompt_of
from talaria.console.terminal import TerminalRenderer
from talaria.core.events import QuestionAsked
from talaria.turns.slash import ALIASES, SLASH_COMMANDS, canonical

_MENU_ROWS = 6
_CLEAR = "send or clear (Ctrl-U) this text to decide › "


class CommandCompleter(Completer):
    """Completes the name of a slash command, and the model's name after `/model`."""

    def __init__(self, models: Sequence[str] = ()) -> None:
        self._models = models

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        command, _, wanted = text.partition(" ")
        if command == "/model":
            for model in self._models:
                if model.startswith(wanted) and " " in text:
                    yield Completion(model, start_position=-len(wanted))
        if not text.startswith("/") or any(character.isspace() for character in text):
            return
        for name in sorted([*SLASH_COMMANDS, *ALIASES]):
            if name.startswith(text[1:].lower()):
                spec = SLASH_COMMANDS[canonical(name)]
                yield Completion(f"/{name}", start_position=-len(text), display_meta=spec.help)


class TerminalPrompt:
    """The prompt at the bottom of the screen, from one line to the next. Everything is printed above it.

    Enter sends; Alt-Enter or a backslash before Enter begins another line; pasted lines stay one message.
    While an approval request is open, one key decides it, unless a line is being written. Ctrl-O calls
    `unfold`. `live` is the renderer whose live part is drawn above the prompt.
    """

    def __init__(
        self,
        console: Console,
        history: Path | None,
        models: Sequence[str] = (),
        unfold: Callable[[], None] = lambda: None,
    ) -> None:
        self._console = console
        self._unfold = unfold
        self._chat: TerminalChat | None = None
        self.live: TerminalRenderer | None = None
        self._session: PromptSession[str] = PromptSession(
            self._label,
            history=_history(history),
            completer=CommandCompleter(models),
            complete_while_typing=Condition(lambda: self.text.startswith("/")),
            complete_style=CompleteStyle.COLUMN,
            reserve_space_for_menu=_MENU_ROWS,
            multiline=True,
            prompt_continuation="… ",
            key_bindings=self._bindings(),
            enable_suspend=True,
        )
        live = Window(FormattedTextControl(lambda: ANSI(self._draw())), dont_extend_height=True)
        is_live = Condition(lambda: not self._session.app.is_done and bool(self._draw()))
        rows = HSplit([ConditionalContainer(live, is_live), self._session.layout.container])
        self._session.app.layout = Layout(rows, self._session.default_buffer)

    async def read(self, chat: TerminalChat) -> str | None:
        self._chat = chat
        try:
            # The chat handles SIGINT itself; at the prompt Ctrl-C is a key.
            return await self._session.prompt_async(handle_sigint=False)
        except EOFError:
            return None

    def redraw(self) -> None:
        self._session.app.invalidate()

    @property
    def text(self) -> str:
        """The line as far as it is written."""
        return self._session.default_buffer.text

    @property
    def _question(self) -> QuestionAsked | None:
        return None if self._chat is None else self._chat.questions.first

    def _draw(self) -> str:
        """Return the last rows of the live part that fit above the prompt."""
        if self.live is None:
            return ""
        with self._console.capture() as drawn:
            self._console.print(self.live, end="")
        return "\n".join(drawn.get().rstrip("\n").split("\n")[-max(1, self._console.height - 2) :])

    def _label(self) -> FormattedText:
        question = self._question
        if question is None:
            return FormattedText([("bold", "› ")])
        is_hidden = self.text and key_choices(question.kind) and not self._session.app.is_done
        return FormattedText([("fg:ansiyellow", _CLEAR if is_hidden else prompt_of(question))])

    def _bindings(self) -> KeyBindings:
        keys = KeyBindings()
        is_empty = Condition(lambda: not self.text)
        is_deciding = Condition(lambda: self._question is not None and bool(key_choices(self._question.kind)))
        keys.add("c-o")(lambda event: self._unfold())
        keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))

        @keys.add("<any>", filter=is_empty & is_deciding)
        def _(event: KeyPressEvent) -> None:
            assert self._question is not None
            if any(event.data == choice.key for choice in key_choices(self._question.kind)):
                event.app.exit(result=event.data)

        @keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if buffer.document.text_before_cursor.endswith("\\"):
                buffer.delete_before_cursor()
                buffer.insert_text("\n")
            elif not buffer.text.strip():
                buffer.reset()
            elif self._question is not None:  # an answer is not kept in the history
                event.app.exit(result=buffer.text)
            else:
                buffer.validate_and_handle()

        @keys.add("c-c")
        def _(event: KeyPressEvent) -> None:
            if self._chat is not None and self._chat.interrupt():
                return
            if self.text:
                event.current_buffer.reset()
            else:
                event.app.exit(exception=Interrupted, style="class:aborting")

        @keys.add("c-d", filter=is_empty)
        def _(event: KeyPressEvent) -> None:
            if self._chat is None or self._chat.may_leave():
                event.app.exit(exception=EOFError, style="class:exiting")

        return keys


class PipedLines:
    """Reads each line of a file descriptor as a message, in a thread that does not delay the exit."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        # A read of a pipe cannot be cancelled, so the exit leaves a daemon thread behind. It must not hold
        # the lock of sys.stdin, which the interpreter takes when it exits.
        threading.Thread(target=self._pump, name="stdin", daemon=True).start()

    async def read(self, chat: TerminalChat) -> str | None:
        """Return the next line when it can be answered: a line decides if a question is open. Must not be
        called again after it has returned None."""
        await chat.until_wanted()
        line = await self._lines.get()
        if line is None:
            await chat.until_idle()
        return line

    def _pump(self) -> None:
        rest = b""
        with suppress(OSError):
            while data := os.read(self._descriptor, 65_536):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._put(line.decode("utf-8", "replace"))
        if rest:
            self._put(rest.decode("utf-8", "replace"))
        self._put(None)

    def _put(self, line: str | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)


def _history(path: Path | None) -> History:
    """Return a history in a file that only this user can read; in memory if the file cannot be written."""
    if path is None:
        return InMemoryHistory()
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        path.chmod(0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
