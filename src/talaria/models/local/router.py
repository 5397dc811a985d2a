"""The first call of a built-in model: which kind of request is it?

A small model that sees tools and talk in one prompt mixes them up. So it is first asked for one word, and a
grammar allows no other. The prompt of this call is always the same, which lets the model's process keep it in
memory: a call reads the person's message only, and writes one token.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

import msgspec

from talaria.core.specs import ModelCall, Prefix
from talaria.core.text import cut_middle

ROUTER_SLOT = 0  # of the model's process; the other one keeps the conversation
_LONGEST = 700  # characters of a message that decide about it

_encode = msgspec.json.Encoder().encode


class RequestKind(StrEnum):
    """The words that the model may answer with."""

    TALK = "talk"
    LIST = "list"
    READ = "read"
    SEARCH = "search"
    WRITE = "write"
    EDIT = "edit"
    SEND = "send"
    REMEMBER = "remember"
    INTERNET = "internet"
    CLOCK = "clock"
    PEOPLE = "people"
    MACHINE = "machine"


TOOL_OF = {
    RequestKind.LIST: "list_files",
    RequestKind.READ: "read_file",
    RequestKind.SEARCH: "search_files",
    RequestKind.WRITE: "write_file",
    RequestKind.EDIT: "edit_file",
    RequestKind.SEND: "send_file",
}

_RULES = """\
You are the switchboard of a chat program. For each message say which part of the program takes it, in one \
word:
talk: a reply in words. Greetings, feelings, questions, advice, how to do something, and any text, poem, \
recipe, letter, correction or code that is wanted as the reply itself
list: shows which files the person has
read: opens a named file of the person to look into it
search: looks for a word in the person's files
write: makes a file, or saves text in a file
edit: changes something inside a file
send: hands over a file for download
remember: keeps something for other conversations
internet: websites, and what is true only now: weather, news, prices
clock: timers, alarms, reminders, things to do later or regularly
people: sends mail or messages to somebody, calls, books, orders
machine: runs a command or a program, deletes or renames files, uses devices, draws, plays"""
_EXAMPLES = (
    ("Good morning!", RequestKind.TALK),
    ("Write a function in Rust that adds two numbers", RequestKind.TALK),
    ("Write a function in Rust that adds two numbers into add.rs", RequestKind.WRITE),
    ("How can I rename a file in Linux?", RequestKind.TALK),
    ("Rename a.txt to b.txt", RequestKind.MACHINE),
    ("What does plan.md say about lunch?", RequestKind.READ),
    ("What is the capital of Norway?", RequestKind.TALK),
    ("Wake me at seven", RequestKind.CLOCK),
    ("Write three lines about autumn.", RequestKind.TALK),
    ("Which files do I have?", RequestKind.LIST),
    ("Draft a letter to my bank", RequestKind.TALK),
    ("Mail my bank that I moved", RequestKind.PEOPLE),
    ("Where did I note something about Lisbon?", RequestKind.SEARCH),
    ("Correct this: I has a dog", RequestKind.TALK),
    ("In plan.md change Monday to Friday", RequestKind.EDIT),
    ("What is new in the world today?", RequestKind.INTERNET),
    ("How would I create a folder in Java?", RequestKind.TALK),
    ("Let me have notes.txt", RequestKind.SEND),
    ("List five fruits", RequestKind.TALK),
    ("From now on, always know that I live in Graz", RequestKind.REMEMBER),
    ("Save that as poem.txt", RequestKind.WRITE),
    ("Start the server", RequestKind.MACHINE),
    ("I had a bad day.", RequestKind.TALK),
    ("Sum up letter.txt", RequestKind.READ),
    ("Shorten a.txt and save it as b.txt", RequestKind.READ),
    ("Why do cats purr?", RequestKind.TALK),
    ("Look up train tickets to Oslo", RequestKind.INTERNET),
    ("What is this about? (a text is attached)", RequestKind.TALK),
    ("Who built the Eiffel tower?", RequestKind.TALK),
)


def _rendered() -> bytes:
    messages = [{"role": "system", "content": _RULES}]
    for said, kind in _EXAMPLES:
        messages += [{"role": "user", "content": said}, {"role": "assistant", "content": str(kind)}]
    return b",".join(map(_encode, messages))


_PREFIX = Prefix(_rendered(), b"")


def router_call(
    call: ModelCall, request: str, bias: float, allowed: Collection[RequestKind] = ()
) -> ModelCall:
    """Return the call that asks for the kind of this request: one of `allowed`, or any.

    `bias` is added to the logit of talk, because the models take too many questions for something else.
    """
    request = cut_middle(request, _LONGEST)
    words = " | ".join(f'"{kind}"' for kind in (allowed or RequestKind))
    sampling = {
        "temperature": 0,
        "grammar": f"root ::= {words}",
        "logit_bias": [[str(RequestKind.TALK), bias]],
        "id_slot": ROUTER_SLOT,
    }
    return msgspec.structs.replace(
        call,
        prefix=_PREFIX,
        chunks=[_encode({"role": "user", "content": request})],
        reasoning=None,
        max_output=4,
        sampling=_encode(sampling)[1:-1],
    )


def read_kind(answer: str) -> RequestKind:
    """Return the kind that an answer names. Any other answer is talk."""
    try:
        return RequestKind(answer.strip())
    except ValueError:
        return RequestKind.TALK
