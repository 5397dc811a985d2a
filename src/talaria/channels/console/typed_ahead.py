"""The keyboard while a turn runs: a line that is shown below the turn, and keys that act at once."""

from __future__ import annotations

import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from prompt_toolkit.input import Input
from prompt_toolkit.keys import Keys

from talaria.channels.console.chat import TerminalChat

_LOCAL_FLAGS, _CHARACTERS = 3, 6
_ENTER = (Keys.ControlM, Keys.ControlJ)


class TypedAhead:
    """Reads the keyboard of `input` while `reading`. `text` is the line that was not sent yet; it stays for
    the prompt after the turn. Ctrl-C stays a signal.

    A prompt that is opened meanwhile takes the keyboard for as long as it is open.
    """

    def __init__(self, input: Input) -> None:
        self._input = input
        self.text = ""

    def take(self) -> str:
        """Return the unfinished line and forget it."""
        text, self.text = self.text, ""
        return text

    @contextmanager
    def reading(self, keys: TerminalChat) -> Iterator[None]:
        with quiet_keyboard(self._input.fileno()), self._input.attach(lambda: self._read(keys)):
            yield

    def _read(self, keys: TerminalChat) -> None:
        is_after_escape = False
        for press in self._input.read_keys():
            key = press.key
            if key in _ENTER and (is_after_escape or self.text.endswith("\\")):
                self.text = self.text.removesuffix("\\") + "\n"
            elif key in _ENTER:
                if (text := self.take()).strip():
                    keys.take_line(text)
            elif key is Keys.ControlD:
                if not self.text:
                    keys.take_end()
            elif (edit := _EDITS.get(key)) is not None:
                self.text = edit(self.text)
            elif key is Keys.BracketedPaste:
                self.text += press.data.replace("\r\n", "\n").replace("\r", "\n")
            elif not isinstance(key, Keys):
                self.text += press.data
            is_after_escape = key is Keys.Escape


def _without_word(text: str) -> str:
    return text.rstrip().rpartition(" ")[0]


_EDITS: dict[Keys | str, Callable[[str], str]] = {
    Keys.ControlH: lambda text: text[:-1],
    Keys.ControlU: lambda text: "",
    Keys.ControlW: _without_word,
}


@contextmanager
def quiet_keyboard(descriptor: int) -> Iterator[None]:
    """Switch the echo off and let each key be read as it comes. Ctrl-C stays a signal, which discards no keys
    that are not read yet."""
    try:
        before = termios.tcgetattr(descriptor)
    except termios.error:
        yield
        return
    quiet = list(before)
    quiet[_LOCAL_FLAGS] = before[_LOCAL_FLAGS] & ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
    quiet[_LOCAL_FLAGS] |= termios.NOFLSH
    quiet[_CHARACTERS] = list(before[_CHARACTERS])
    quiet[_CHARACTERS][termios.VMIN], quiet[_CHARACTERS][termios.VTIME] = 1, 0
    termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal was closed
            termios.tcsetattr(descriptor, termios.TCSANOW, before)
