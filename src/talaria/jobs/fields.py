"""The fields of a job as people, models and programs write them. A module of its own, because the HTTP API
describes them before there is a job."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from talaria.core.jobs import Missed, Overlap, SessionMode
from talaria.jobs.settings import MAX_TEXT

MaybeText = str | UnsetType


def _help(text: str, choices: type[StrEnum] | None = None, metavar: str = "") -> Meta:
    """`metavar` stands for the value in the help of the command line."""
    names = None if choices is None else {"enum": [choice.value for choice in choices]}
    return Meta(description=text, extra_json_schema=names, extra={"metavar": metavar or None})


class JobFields(msgspec.Struct, frozen=True):
    """The fields of a new job, or of a change. What is not set stays as it is."""

    text: Annotated[str, Meta(max_length=MAX_TEXT, description="What is to be done.")] | UnsetType = UNSET
    when: Annotated[str, _help('In plain words: "every weekday at 9".', metavar="WORDS")] | UnsetType = UNSET
    every: Annotated[str, _help("Again and again, such as 10m.", metavar="DURATION")] | UnsetType = UNSET
    cron: Annotated[str, _help('Five fields, such as "0 9 * * 1-5".', metavar="FIELDS")] | UnsetType = UNSET
    at: Annotated[str, _help("Once, such as 2026-12-24T18:00.", metavar="TIME")] | UnsetType = UNSET
    name: Annotated[str, _help("A short name.")] | UnsetType = UNSET
    timezone: Annotated[str, _help("Default: the agent's.", metavar="ZONE")] | UnsetType = UNSET
    session: Annotated[str, _help("The session of a run.", SessionMode)] | UnsetType = UNSET
    to: Annotated[str, _help('The chat for results, or "none".', metavar="CHAT")] | UnsetType = UNSET
    model: Annotated[str, _help("Default: the agent's.", metavar="NAME")] | UnsetType = UNSET
    tools: Annotated[tuple[str, ...], _help("The only tools of a run.")] | UnsetType | None = UNSET
    check: (
        Annotated[str, _help("A command that runs first; without output nothing follows.", metavar="COMMAND")]
        | UnsetType
    ) = UNSET
    missed: Annotated[str, _help("Runs that were missed during a downtime.", Missed)] | UnsetType = UNSET
    deadline: (
        Annotated[str, _help("The most time for one run, such as 10m.", metavar="DURATION")] | UnsetType
    ) = UNSET
    retries: Annotated[int, _help("Further tries after a failure.")] | UnsetType = UNSET
    overlap: Annotated[str, _help("If the run before has not finished.", Overlap)] | UnsetType = UNSET
    remind: (
        Annotated[
            bool,
            _help('Send the text as it is, without a model. Default: yes if it says "remind me".'),
        ]
        | UnsetType
    ) = UNSET
    quiet: (
        Annotated[bool, _help("Send nothing if the model answers exactly NO_REPLY. Default: no.")] | UnsetType
    ) = UNSET
