"""The replies of `/trust`. Pure."""

from __future__ import annotations

from collections.abc import Callable

from talaria.core.trust import Taint

NO_FOLDERS = "This gateway keeps no folders for chats."
ONLY_OPERATORS = (
    "Other people use this folder too, so only an operator can trust it again. Ask the person who runs this "
    "gateway to send `/trust clear` here."
)
CLEARED = (
    "Files and command output in this chat folder are trusted again. A conversation that already contains "
    "untrusted content stays as it is: send /new to start one without it."
)


def describe_taint(taint: Taint | None, stamp: Callable[[float], str]) -> str:
    """Say whether a folder is trusted; `stamp` writes a time."""
    if taint is None:
        return "The chat folder is trusted: no untrusted content has entered it."
    return (
        f"The chat folder may contain untrusted content since {stamp(taint.since)} (source: {taint.source}). "
        "After the agent reads a file or runs a command here, it asks you before it writes to memory, "
        "creates a job, messages another chat or opens an address that nobody has shown. "
        "If you have checked the files, `/trust clear` trusts them again."
    )
