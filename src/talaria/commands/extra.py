"""The commands that plug-ins and skills bring, beside the built-in ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from talaria.commands.command_types import Command, ExtraCommand
from talaria.commands.slash import ALIASES, SLASH_COMMANDS, is_control, parse_command

Source = Callable[[], Iterable[ExtraCommand]]


class ExtraCommands:
    """The extra commands by name, as their sources tell them at this moment.

    A built-in command always wins, and of two extra ones with one name that of the earlier source.
    """

    def __init__(self, *sources: Source) -> None:
        self._sources = list(sources)

    def add(self, source: Source) -> None:
        """Ask this source too. It must be cheap: it is asked for each command that is not built in."""
        self._sources.append(source)

    def __iter__(self) -> Iterator[ExtraCommand]:
        known = {*SLASH_COMMANDS, *ALIASES}
        for source in self._sources:
            for command in source():
                if command.name not in known:
                    known.add(command.name)
                    yield command

    def find(self, name: str) -> ExtraCommand | None:
        """Return the extra command of this name. None if there is none, or if it is built in."""
        if not name or name in SLASH_COMMANDS or name in ALIASES:
            return None
        return next((command for command in self if command.name == name), None)

    def parse(self, text: str) -> Command | None:
        """Return the command of a text, as `parse_command` does. Names of built-in commands have no digits,
        so `/v2 is out` is a message unless an extra command has that name."""
        command = parse_command(text, with_digits=True)
        if command is None or not any(map(str.isdigit, command.name)) or self.find(command.name) is not None:
            return command
        return None

    def message_of(self, command: Command) -> str | None:
        """Return the message that the command stands for; None for a command that is answered."""
        found = self.find(command.name)
        return found.message(command.args) if found is not None and found.message is not None else None

    def is_control(self, name: str) -> bool:
        """Return whether the command (`""` for none) passes its chat's lane."""
        if not name:
            return False
        found = self.find(name)
        return is_control(name) if found is None else found.is_control
