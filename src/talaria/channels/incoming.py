"""The inputs of chat platforms: messages, button presses, withdrawals, and the rules for their text. Pure.

Each platform's `parse.py` returns these types; `reception.Reception` takes them.
"""

from __future__ import annotations

import re

import msgspec

from talaria.access.authorizer import Actor, ChatKind, Ingress
from talaria.core.ids import ChatAddress, ChatKey
from talaria.core.text import CONTROLS, EMBEDDINGS, cut

MAX_QUOTE = 500
_CONTROLS = re.compile(f"[{CONTROLS}{EMBEDDINGS}]")
_NO_PARENTHESES = str.maketrans("()（）", "    ")


class RemoteFile(msgspec.Struct, frozen=True):
    """A file of a message. The platform fetches it by `id`."""

    id: str
    name: str
    media_type: str
    size: int | None = None


class IncomingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message or an edit of a person. The agent reads `preface` and `text`; a command has no preface.

    `address` is where the reply goes. `key` identifies the message in its chat, for deduplication. An edit
    has its own key and `edits`, the key of the message. A message that `repeats_others` is forwarded or
    quotes another person.
    """

    actor: Actor
    ingress: Ingress
    chat: ChatKey
    address: str
    key: str
    text: str
    preface: str = ""
    files: tuple[RemoteFile, ...] = ()
    repeats_others: bool = False
    edits: str | None = None


class Withdrawal(msgspec.Struct, frozen=True, kw_only=True):
    """The message `key` was deleted. Platforms do not say by whom."""

    chat: ChatKey
    key: str


class ButtonPress(msgspec.Struct, frozen=True, kw_only=True):
    """A person pressed a button, which is the same as writing `command`; None if its meaning is lost."""

    actor: Actor
    chat: ChatKey
    address: str
    key: str
    command: str | None


class Reaction(msgspec.Struct, frozen=True, kw_only=True):
    """A person added an emoji to a message, which `message` names as `ChatOutlet.deliver` did."""

    actor: Actor
    chat: ChatKey
    message: str
    emoji: str


def chat_key(agent: str, channel: str, kind: ChatKind, chat: str, thread: str | None = None) -> ChatKey:
    return ChatAddress(agent, channel, "dm" if kind is ChatKind.PRIVATE else "group", chat, thread).key()


def speaker_of(actor: Actor) -> str:
    """Return the name by which the agent knows the speaker in a group; empty in a private chat."""
    return stable_name(actor.name, actor.user_id) if actor.chat_kind is ChatKind.GROUP else ""


def stable_name(name: str, user_id: str) -> str:
    """Return the display name with the id. Two people may share a display name, and anyone can take the name
    of another person; the id stays. The name loses its parentheses, so that it cannot show another id."""
    plain = " ".join(name.translate(_NO_PARENTHESES).split())
    return f"{plain} ({user_id})" if user_id else ""


def preface_of(*, is_forwarded: bool = False, author: str = "", quote: str = "", speaker: str = "") -> str:
    """Return what the agent is told about a message before its text. `quote` is a message of `author` that
    this one answers. `speaker` is what `speaker_of` returns."""
    lines = []
    if is_forwarded:
        lines.append("[Forwarded message]")
    if quote := clean(quote).strip():
        lines.append(f"[In reply to{f' {author}' if author else ''}:]")
        lines += (f"> {line}" for line in cut(quote, MAX_QUOTE).splitlines())
    if speaker:
        lines.append(f"{speaker} says:")
    return "\n".join(lines)


def clean(text: str) -> str:
    """Return the text without control characters and lone surrogates, which no store and no model accepts."""
    return _CONTROLS.sub("", text).encode("utf-8", "ignore").decode()


def clean_name(text: str, longest: int | None = 64) -> str:
    """Return a text of the platform as one printable line."""
    return " ".join(clean(text).split())[:longest]


def file_name(name: str) -> str:
    """Return a short printable name that is one part of a path."""
    kept = re.sub(r"[^\w. ()+-]", "_", clean_name(name, longest=None)).strip(". ")
    stem, dot, ending = kept.rpartition(".")
    short = f"{stem[:80]}{dot}{ending[:16]}" if stem else kept[:80]
    return short or "file"
