"""Calls of other front ends: the session that a header names, tasks apart from the chat, and wishes that a
session cannot keep.

A front end (Open WebUI, LibreChat) sends its whole chat with each message, its own tools and parameters, and
asks for titles and tags in calls of the same form. `http.session_header` names the header with the id of its
chat. Calls with `X-Talaria-Session` are other programs', which know what a session is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from talaria.channels.http.request import Request, quoted
from talaria.channels.http.settings import SESSION_HEADER
from talaria.core.errors import BadRequest
from talaria.core.ids import is_session_name
from talaria.core.messages import Part, Text
from talaria.turns.histories import SentExchange

_NAMED: Final = SESSION_HEADER.lower().encode()
_TOOLS: Final = b"x-talaria-tools"
_TASK: Final = b"x-talaria-task"
_TOLD_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MOST_TOLD: Final = 40
# Open WebUI streams the merged answer of several models, too.
_MERGE: Final = "You have been provided with a set of responses from various models"


class NamedSession(msgspec.Struct, frozen=True):
    """The session that a request names: its name or id. `is_front_end`: the header that
    `http.session_header` names told it. `is_task`: the call is about the chat and no part of it."""

    name: str
    is_front_end: bool = False
    is_task: bool = False

    def has_task(self, history: Sequence[SentExchange], parts: Sequence[Part], *, is_stream: bool) -> bool:
        """Return whether a call is a task beside the chat: a title, tags, suggestions, a memory.

        Front ends stream the answers of their chats, and no others, and a task has one message. So the first
        message of a chat that is not streamed counts as a task: better an answer without tools than a task in
        the session.
        """
        if self.is_task:
            return True
        if not self.is_front_end or history:
            return False
        first = parts[0] if parts else None
        is_merge = isinstance(first, Text) and first.text.startswith(_MERGE)
        return is_merge or not is_stream


class SessionHeaders:
    """Reads the headers by which a call under `/v1` says which session it is for."""

    def __init__(self, header: str) -> None:
        """`header` is `http.session_header`."""
        name = header.lower().encode()
        self._front_end = None if name == _NAMED else name

    def find(self, request: Request) -> NamedSession | None:
        """Return None if no header names a session.

        Raises `BadRequest` for the value of a front end that did not fill in its placeholder: all its chats
        would be one session.
        """
        if (name := request.header(_NAMED)) is not None:
            return NamedSession(name, is_task=bool(request.header(_TASK)))
        if self._front_end is None or not (value := request.header(self._front_end)):
            return None
        if "{{" in value or "${" in value:
            raise BadRequest(
                f"The header {self._front_end.decode().title()} is {quoted(value)}: the front end did not "
                "put the id of its chat there.",
                "Correct the placeholder in the front end's settings; docs/clients.md has examples.",
            )
        return NamedSession(_session_name(value), is_front_end=True, is_task=bool(request.header(_TASK)))


def ignores_tools(request: Request, session: NamedSession | None) -> bool:
    """Return whether the caller's own tools are ignored: it wants so, or a front end sends them to a session.

    Raises `BadRequest` for another wish.
    """
    wish = request.header(_TOOLS)
    if wish is None:
        return session is not None and session.is_front_end
    if wish.lower() != "ignore":
        raise BadRequest(
            f"The header X-Talaria-Tools is {quoted(wish)}, and only `ignore` is known.",
            "Leave it out, or send `X-Talaria-Tools: ignore`: `tools` and what goes with them are ignored.",
        )
    return True


def check_end(*, is_answer: bool) -> None:
    """Raise `BadRequest` if the last message of a front end's chat is an answer, which it wants continued."""
    if is_answer:
        raise BadRequest(
            "The chat ends with an answer, and the agent does not write on in the middle of one.",
            "Send a message instead, for example: go on.",
        )


def tell_ignored(request: Request, names: Iterable[str]) -> None:
    """Name the ignored parameters in the response, in the header `X-Talaria-Ignored`. A name that cannot
    stand in a header is left out."""
    told = [name for name in names if _TOLD_NAME.fullmatch(name)][:_MOST_TOLD]
    if told:
        request.more_headers += ((b"x-talaria-ignored", ", ".join(told).encode()),)


def _session_name(value: str) -> str:
    """Return the name of the session for the id of a front end's chat. An id with other characters, such as
    that of Open WebUI's temporary chats, becomes a name that is made from it."""
    if is_session_name(value):
        return value
    return f"chat-{hashlib.sha256(value.encode()).hexdigest()[:32]}"
