"""What strangers are told, word for word."""

from __future__ import annotations

from talaria.access.codes import Code


def code(shown: Code, seconds: float) -> str:
    return (
        "I do not know you yet, so I cannot answer.\n\n"
        f"Your pairing code is {shown}\n\n"
        "Give it to whoever runs this gateway. They let you in with:\n"
        f"talaria pair approve {shown}\n\n"
        f"The code is valid for {_spoken(seconds)}. Then write to me again."
    )


def waiting() -> str:
    return (
        "Your request still waits for approval. When its code has expired, write to me again "
        "and you get a new one."
    )


def welcome() -> str:
    return "You are in: this gateway answers you from now on. What can I do for you?"


def _spoken(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return "one hour" if minutes == 60 else f"{minutes} minutes"
