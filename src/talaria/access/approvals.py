"""Approvals: who may decide a question, and what an approval is bound to. Pure."""

from __future__ import annotations

import hashlib

import msgspec

from talaria.core.errors import TalariaError
from talaria.core.ids import ChatKey, JobId, SessionId, asking_chat
from talaria.core.messages import ToolCall
from talaria.core.turns import Turn
from talaria.net.host_rules import WEB_PORTS


class NotEntitled(TalariaError):
    """The person may not decide this question."""

    type = "forbidden"


class QuestionClosed(TalariaError):
    """The question cannot be decided any more: it has a decision, it has expired, or its turn is over."""

    type = "question_closed"


class Decider(msgspec.Struct, frozen=True):
    """A person who decides. `chat_key` is the chat from which the decision comes; an operator may decide
    about every chat."""

    id: str
    chat_key: ChatKey | None = None
    is_operator: bool = False

    @classmethod
    def of(cls, turn: Turn) -> Decider:
        """Return the sender of a command or an answer as a person who decides."""
        sender = turn.inbound.sender
        return cls(sender.id, turn.chat_key, is_operator=sender.is_operator)


def may_decide(turn: Turn, decider: Decider) -> bool:
    """Return whether the person may decide the questions of the turn: an operator, or the turn's own sender
    from the chat of the turn, for a job from the chat that asked for it. Other members of a group may not."""
    if decider.is_operator:
        return True
    is_requester = bool(decider.id) and decider.id == turn.inbound.sender.id
    return is_requester and decider.chat_key in (turn.chat_key, asking_chat(turn.chat_key))


class Surroundings(msgspec.Struct, frozen=True):
    """The circumstances of a call that its approval is bound to: the working directory and the variables of
    the session's shell, and the sandbox that commands run in."""

    cwd: str
    variables: str
    sandbox: str


def call_digest(grantee: SessionId | JobId, requester: str, call: ToolCall, around: Surroundings) -> str:
    """Return the hash of everything that an approval of the call is bound to: its session or, for the run of
    a job, the job. The arguments count byte for byte, as the model wrote them."""
    parts = (grantee, requester, call.name, call.arguments)
    return hashlib.sha256(msgspec.json.encode((*parts, around))).hexdigest()


def host_digest(host: str, port: int) -> str:
    """Return the name of a host's grant, the same for both ports of the web. A host is granted to the
    session, whoever asks."""
    return f"host:{host}:{WEB_PORTS[-1] if port in WEB_PORTS else port}"
