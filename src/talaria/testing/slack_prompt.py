"""A prompt for trying the Slack channel by hand: what a person would type and press in Slack."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from talaria.testing.slack_platform import Json, SlackMessage
from talaria.testing.slack_server import SlackServer

HELP = """\
TEXT            Ada writes TEXT; @talaria mentions the bot, !new is a command
/talaria TEXT   the slash command
> TEXT          a reply in the thread of the newest message
1, 2, …         press a button of the newest message that has buttons
edit TEXT       edit your last message; delete: delete it
in general      go to #general; in dm: back to the direct messages
refresh, cut    Slack asks for a new connection, or breaks it
help            this list
"""
_USER, _GENERAL = "U7ADA", "C1GENERAL"


class SlackPrompt:
    """Takes lines and shows what the bot writes. `show` prints a line."""

    def __init__(self, server: SlackServer, show: Callable[[str], None]) -> None:
        self._server = server
        self._show = show
        self._ada = server.person(_USER)
        self._place = self._ada.dm
        self._seen: dict[str, tuple[str, int]] = {}  # the texts and button counts of the bot's messages
        self._last: Json | None = None
        server.platform.conversation(_GENERAL, _USER)

    async def watch(self) -> None:
        """Show new and changed messages of the bot, until cancelled."""
        while True:
            await self._server.until(lambda: bool(self._changed()))
            for message in self._changed():
                self._seen[message.ts] = (message.shown, len(message.buttons))
                self._show(("… " if message.edits else "") + f"talaria: {message.shown or message.file_name}")
                for number, (label, _) in enumerate(message.buttons, 1):
                    self._show(f"  [{number}] {label}")

    async def take(self, line: str) -> None:
        """Do what a line says."""
        word, _, rest = line.strip().partition(" ")
        newest = [each for each in self._place.messages.values() if each.seen_by in (None, _USER)]
        asking = [each for each in newest if each.buttons]
        match word:
            case "":
                return
            case "help":
                self._show(HELP)
            case "in":
                is_general = rest.lstrip("#") == "general"
                self._place = self._server.platform.conversation(_GENERAL) if is_general else self._ada.dm
                self._show(f"now in {'#general' if is_general else 'the direct messages'}")
            case "refresh":
                await self._server.refresh()
            case "cut":
                await self._server.cut()
            case "/talaria":
                self._ada.commands(rest, self._place)
            case ">" if newest:
                self._last = self._ada.says(rest, self._place, newest[-1].thread_ts or newest[-1].ts)
            case "edit" if self._last is not None:
                self._ada.edits(self._last, rest)
            case "delete" if self._last is not None:
                self._ada.deletes(self._last)
                self._last = None
            case _ if word.isdecimal() and asking and 0 < int(word) <= len(asking[-1].buttons):
                self._ada.presses(asking[-1], asking[-1].buttons[int(word) - 1][0], self._place)
            case _:
                self._last = self._ada.says(line.strip(), self._place)

    def _changed(self) -> list[SlackMessage]:
        return [
            each
            for place in self._server.platform.conversations.values()
            for each in place.messages.values()
            if each.by_bot and self._seen.get(each.ts) != (each.shown, len(each.buttons))
        ]


async def run_prompt(server: SlackServer, greeting: str) -> None:
    """Serve the prompt on the terminal until the end of the input or an interrupt."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    prompt = SlackPrompt(server, lambda text: print(text, flush=True))  # noqa: T201 - this is its purpose
    print(f"{greeting}\n\n{HELP}", flush=True)  # noqa: T201
    loop.add_reader(sys.stdin, lambda: lines.put_nowait(sys.stdin.readline()))
    watching = asyncio.create_task(prompt.watch(), name="prompt")
    try:
        while line := await lines.get():
            await prompt.take(line)
    finally:
        loop.remove_reader(sys.stdin)
        watching.cancel()
