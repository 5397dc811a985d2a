"""An answer of the scripted model as a stream tells it: event by event, so that it can break off anywhere."""

from __future__ import annotations

from typing import Any

import msgspec

Event = dict[str, Any]

encode = msgspec.json.Encoder().encode


class Telling(msgspec.Struct, frozen=True):
    """`opening` and `closing` frame the `body`; `error` is what stands in its place when the server fails."""

    opening: list[Event]
    body: list[Event]
    closing: list[Event]
    error: Event

    def body_with(self, pieces: int) -> list[Event]:
        """Up to where one piece more would have come."""
        kept = []
        for event in self.body:
            pieces -= _is_piece(event)
            if pieces < 0:
                break
            kept.append(event)
        return kept

    def body_with_all_pieces(self) -> list[Event]:
        """Without what says that the last thing is whole."""
        last = max(n for n, event in enumerate(self.body) if _is_piece(event))
        return self.body[: last + 1]


def _is_piece(event: Event) -> bool:
    """Chat completions have nothing but pieces, and no types."""
    return str(event.get("type", "delta")).endswith("delta")


def cut_in_half(arguments: str) -> list[str]:
    """A call's arguments as they are streamed."""
    middle = len(arguments) // 2
    return [part for part in (arguments[:middle], arguments[middle:]) if part]


def write_event(event: Event, n: int) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode(event))
