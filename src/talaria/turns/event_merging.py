"""Events that are joined while nobody has read them, so that a long answer stays a few strings."""

from __future__ import annotations

import msgspec

from talaria.core.events import Delta, Event, ModelLoading, ReasoningDelta, ToolCallDelta, ToolOutput

_MERGE_BELOW = 1024  # an event with fewer characters takes in the next one


def merge_events(last: Event, event: Event) -> Event | None:
    """Return one event that says what two unread neighbours say; None if both must be kept."""
    if type(last) is not type(event):
        return None
    if isinstance(event, (Delta, ReasoningDelta)):
        if type(last) is type(event) and len(last.text) < _MERGE_BELOW:
            return type(event)(last.text + event.text)
    elif isinstance(event, ToolOutput):
        if isinstance(last, ToolOutput) and last.call_id == event.call_id and len(last.text) < _MERGE_BELOW:
            return ToolOutput(event.call_id, last.text + event.text)
    elif isinstance(event, ToolCallDelta) and isinstance(last, ToolCallDelta):
        is_next = last.index == event.index and not event.call_id
        if is_next and len(last.arguments) < _MERGE_BELOW:
            return msgspec.structs.replace(last, arguments=last.arguments + event.arguments)
    elif isinstance(event, ModelLoading) and isinstance(last, ModelLoading):
        return event  # how far it was by then is of no use
    return None
