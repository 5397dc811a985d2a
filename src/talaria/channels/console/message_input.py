"""The sources of a chat's messages: a prompt on a terminal, or the lines of a pipe."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import CompleteStyle

from talaria.channels.console.chat import Interrupted
from talaria.channels.console.deciding_keys import key_choices, prompt_of
from talaria.channels.console.typed_ahead import TypedAhead
from talaria.core.events import QuestionAsked
from talaria.turns.slash import ALIASES, SLASH_COMMANDS, canonical

_MENU_ROWS = 6
_PROMPT = FormattedText([("bold", "› ")])


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
    """Reads messages from the keyboard. Enter sends; Alt-Enter or a backslash before Enter begins another
    line; pasted lines stay one message. Ctrl-O
    calls `unfold`, which prints above the prompt. The text of `typed`, from a turn before, stands in it."""

    def __init__(
        self,
        history: Path | None,
        models: Sequence[str] = (),
        unfold: Callable[[], None] | None = None,
        typed: TypedAhead | None = None,
    ) -> None:
        self._typed = typed
        self._session: PromptSession[str] = PromptSession(
            history=_history(history),
            completer=CommandCompleter(models),
            complete_while_typing=True,
            complete_style=CompleteStyle.COLUMN,
            reserve_space_for_menu=_MENU_ROWS,
            multiline=True,
            prompt_continuation="… ",
            key_bindings=_bindings(unfold),
            enable_suspend=True,
        )

    async def read(self) -> str | None:
        draft = "" if self._typed is None else self._typed.take()
        try:
            # The chat handles SIGINT itself; at the prompt Ctrl-C is a key.
            return await self._session.prompt_async(_PROMPT, default=draft, handle_sigint=False)
        except EOFError:
            return None

    async def decide(self, event: QuestionAsked) -> str | None:
        """Read one key for an approval, or a line for an answer."""
        keys = KeyBindings()
        keys.add("c-c")(lambda pressed: pressed.app.exit(exception=Interrupted))
        keys.add("c-d")(lambda pressed: pressed.app.exit(exception=EOFError))
        for choice in key_choices(event.kind):
            keys.add(choice.key)(partial(_leave_with, choice.key))
        if key_choices(event.kind):
            keys.add("<any>")(lambda pressed: None)
            keys.add("enter")(lambda pressed: None)
        prompt: PromptSession[str] = PromptSession(key_bindings=keys, history=InMemoryHistory())
        try:
            text = FormattedText([("fg:ansiyellow", prompt_of(event))])
            return await prompt.prompt_async(text, handle_sigint=False)
        except EOFError:
            return None


class PipedLines:
    """Reads each line of a file descriptor as a message, in a thread that does not delay the exit."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        # A read of a pipe cannot be cancelled, so the exit leaves a daemon thread behind. It must not hold
        # the lock of sys.stdin, which the interpreter takes when it exits.
        threading.Thread(target=self._pump, name="stdin", daemon=True).start()

    async def read(self) -> str | None:
        """Return the next line. Must not be called again after it has returned None."""
        return await self._lines.get()

    async def decide(self, event: QuestionAsked) -> str | None:
        """Return the next line: it decides, or answers."""
        return await self._lines.get()

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


def _leave_with(key: str, pressed: KeyPressEvent) -> None:
    pressed.app.exit(result=key)


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


def _bindings(unfold: Callable[[], None] | None) -> KeyBindings:
    keys = KeyBindings()
    if unfold is not None:
        keys.add("c-o")(lambda event: run_in_terminal(unfold))

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        elif not buffer.text.strip():
            buffer.reset()
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=Interrupted, style="class:aborting")

    return keys
