"""The output of a command on its way to people, to the model and to a file, in bounded memory."""

from __future__ import annotations

import codecs

from talaria.core.files import result_name
from talaria.core.loop_share import LoopShare
from talaria.core.redaction import Redacted
from talaria.core.terminal_text import EscapeFilter, readable
from talaria.tools.tool import ToolContext
from talaria.workspace.spill import Spill

_EMITTED_BYTES = 64 << 10  # a call shows no more while it runs


class CommandOutput:
    """Takes output in pieces. Escape sequences and control characters are taken out before anything else, and
    then the gateway's secrets. `share` bounds the part of the event loop that the outputs of all commands
    take."""

    def __init__(self, context: ToolContext, max_bytes: int, share: LoopShare) -> None:
        self._context = context
        self._share = share
        self._plain = EscapeFilter()
        name = result_name("terminal", context.turn_id, context.call_id)
        self._spill = Spill(context.redactor, max_bytes, context.open_folder, name, readable)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._emitted = 0

    async def write(self, piece: bytes) -> None:
        """Take the next piece. Raises nothing: what cannot be saved is lost, and the result says so."""
        async with self._share:
            self._emit(self._spill.add(self._plain.feed(piece)))
        if self._spill.has_batch:
            await self._context.resources.in_thread(self._spill.save)

    async def finish(self) -> str:
        """Return the text for the model: all of the output, or its two ends around a note."""
        self._emit(self._spill.add(self._plain.end()) + self._spill.end(), is_last=True)
        text = self._spill.short()
        return await self._context.resources.in_thread(self._spill.long) if text is None else text

    async def abandon(self) -> None:
        """Close the file of a command that did not come to an end. It keeps what it has."""
        if self._spill.has_file:
            self._spill.end()
            await self._context.resources.in_thread(self._spill.close)

    def _emit(self, data: bytes, *, is_last: bool = False) -> None:
        if self._emitted < _EMITTED_BYTES and (text := self._decoder.decode(data, final=is_last)):
            self._emitted += len(text)
            self._context.emit(Redacted(text.replace("\r", "\n"), self._context.redactor))
