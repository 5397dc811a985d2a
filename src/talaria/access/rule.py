"""The one rule for every way in: pure, and deny by default."""

from __future__ import annotations

from typing import assert_never

from talaria.access.actors import (
    Actor,
    ChatKind,
    Denied,
    Entitled,
    Reason,
    Standing,
    Stranger,
    Verdict,
    Way,
)
from talaria.core.turns import Sender

_LONGEST_ID = 64


def authorise(actor: Actor, way: Way, standing: Standing) -> Verdict:
    """Who this is decides first; what they are to us only then; what they did, only for strangers.

    The sender must be entitled whatever chat they write in: a group lets nobody in. A listed id that turns
    up as a bot, or behind a chat's name, is not the person who was meant.
    """
    objection = impossible(actor)
    if objection is not None:
        return Denied(objection)
    match standing:
        case Standing.LISTED | Standing.PAIRED | Standing.TOKEN:
            return Entitled(Sender(actor.user_id, actor.person.name), standing)
        case Standing.UNKNOWN:
            return _unknown(actor, way)
        case _:
            assert_never(standing)


def impossible(actor: Actor) -> Reason | None:
    """Why this can be nobody's doing who is entitled, whoever is; None for a person."""
    if actor.is_bot:
        return Reason.BOT
    if actor.speaks_as_chat or actor.chat_kind is ChatKind.BROADCAST:
        return Reason.SPEAKS_AS_CHAT
    if not 0 < len(actor.user_id) <= _LONGEST_ID or not actor.user_id.isprintable():
        return Reason.NOBODY
    return None


def _unknown(actor: Actor, way: Way) -> Verdict:
    """Only who writes to us in private has asked to be let in; everything else of strangers is noise."""
    if actor.chat_kind is not ChatKind.PRIVATE:
        return Denied(Reason.NOT_PRIVATE)
    match way:
        case Way.MESSAGE | Way.COMMAND | Way.FILE:
            return Stranger()
        case Way.EDIT | Way.BUTTON | Way.REACTION | Way.MEMBERSHIP | Way.INLINE | Way.API | Way.WEBHOOK:
            return Denied(Reason.NOT_A_MESSAGE)
        case _:
            assert_never(way)
