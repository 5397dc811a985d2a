"""Approvals: which calls need a person, who may decide, and what an approval is bound to."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Literal, TypeAlias

import msgspec

from talaria.core.errors import TalariaError
from talaria.core.ids import ChatKey, JobId, SessionId, asking_chat
from talaria.core.messages import ToolCall
from talaria.core.turns import Turn
from talaria.net.host_rules import WEB_PORTS

# -- which calls need a person's word ---------------------------------------------------------------------
# Pure: from what a tool declares, the settings and the session's context.
#
# Inside a sandbox that holds, commands need no approval. The text of a command is never searched for words:
# a rule over a string can be written around.


ApprovalMode: TypeAlias = Literal["risky", "always", "never"]


class AskReason(StrEnum):
    """Why a person is asked. The value is the sentence that the person reads."""

    DECLARED = "The tool declares itself risky."
    UNSANDBOXED = "Commands run without a sandbox here: this one can do all that the gateway can."
    TAINTED = "Untrusted content is in the conversation, and this call reaches beyond the chat."
    NEW_ADDRESS = (
        "Untrusted content is in the conversation. Neither you nor a page or a search result has shown this "
        "address, or the agent has opened many already. Opening it sends the whole address to its host."
    )
    NEW_TEXT = (
        "Untrusted content is in the conversation, and you have not written this text yourself. The call "
        "sends it to the host of the page."
    )
    FOREIGN = "The message goes to a chat that is not this person's own."
    ALWAYS = "Every call that does not only read is asked about here."


class CallFacts(msgspec.Struct, frozen=True):
    """The facts about a call that decide whether a person is asked.

    `is_high`: its tool declares itself risky. `only_reads`: this call changes nothing. `runs_commands`: it
    runs or feeds a command, `is_sandboxed`: in a sandbox. `reaches_out`: it writes to memory, makes a job or
    writes to another chat, `is_tainted`: untrusted content is in the session's context. `opens_new`: it opens
    an address that it may not open unasked. `tells_new`: it sends a host a text that the person did not
    write. `is_foreign`: it acts on what is not the person's own.
    """

    is_high: bool = False
    only_reads: bool = False
    runs_commands: bool = False
    reaches_out: bool = False
    is_sandboxed: bool = True
    is_tainted: bool = False
    opens_new: bool = False
    tells_new: bool = False
    is_foreign: bool = False


def find_reason(facts: CallFacts, mode: ApprovalMode) -> AskReason | None:
    """Return why a person must be asked before the call runs; None if it may run unasked."""
    always = {
        AskReason.DECLARED: facts.is_high,
        AskReason.TAINTED: facts.reaches_out and facts.is_tainted,
        AskReason.NEW_ADDRESS: facts.opens_new,
        AskReason.NEW_TEXT: facts.tells_new,
        AskReason.FOREIGN: facts.is_foreign,
    }
    if reason := next((reason for reason, is_given in always.items() if is_given), None):
        return reason
    if facts.only_reads:
        return None
    if facts.runs_commands and not facts.is_sandboxed:
        return AskReason.UNSANDBOXED
    return AskReason.ALWAYS if mode == "always" else None


def refuse_to_ask(mode: ApprovalMode, *, is_unattended: bool) -> tuple[str, str] | None:
    """Return why nobody can be asked, and what to do instead; None if a person can be asked."""
    if mode == "never":
        return (
            'It needs a person\'s approval, and nobody is asked here (tools.approvals = "never").',
            "Do without it, or say what you would have run.",
        )
    if is_unattended:
        return (
            "It needs a person's approval, and nobody attends this turn.",
            "Do without it, and say in your answer what is left to approve.",
        )
    return None


# -- approvals: who may decide a question, and what an approval is bound to -------------------------------


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
