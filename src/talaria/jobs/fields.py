"""The fields of a job as people, models and programs write them. They have their own module, because the
HTTP API describes them before the first job is loaded."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from talaria.core.jobs import Missed, Overlap, SessionMode
from talaria.jobs.settings import MAX_TEXT

MaybeText = str | UnsetType


def _help(text: str, choices: type[StrEnum] | None = None, metavar: str = "") -> Meta:
    """Describe a field. `metavar` is the placeholder for its value in the command line help."""
    names = None if choices is None else {"enum": [choice.value for choice in choices]}
    return Meta(description=text, extra_json_schema=names, extra={"metavar": metavar or None})


class JobFields(msgspec.Struct, frozen=True):
    """The fields of a new job, or of a change. Unset fields keep their values."""

    text: Annotated[str, Meta(max_length=MAX_TEXT, description="Task of the job.")] | UnsetType = UNSET
    when: Annotated[
        MaybeText, _help('Schedule in plain words, such as "every weekday at 9".', metavar="WORDS")
    ] = UNSET
    every: Annotated[MaybeText, _help("Interval, such as 10m or 1h.", metavar="DURATION")] = UNSET
    cron: Annotated[
        MaybeText, _help('Cron schedule with five fields, such as "0 9 * * 1-5".', metavar="FIELDS")
    ] = UNSET
    at: Annotated[MaybeText, _help("Time of a single run, such as 2026-12-24T18:00.", metavar="TIME")] = UNSET
    name: Annotated[MaybeText, _help("Short name for the job.")] = UNSET
    timezone: Annotated[
        MaybeText, _help("Time zone, such as Europe/Berlin. Default: the agent's.", metavar="ZONE")
    ] = UNSET
    session: Annotated[
        MaybeText,
        _help("Session for each run: a new one (default), one kept for the job, or the chat's.", SessionMode),
    ] = UNSET
    to: Annotated[
        MaybeText,
        _help('Chat that receives the results, or "none". Default: the current chat.', metavar="CHAT"),
    ] = UNSET
    model: Annotated[MaybeText, _help("Model for the runs. Default: the agent's.", metavar="NAME")] = UNSET
    tools: Annotated[
        tuple[str, ...] | UnsetType | None, _help("Tools that runs may use. Default: all of the agent's.")
    ] = UNSET
    check: Annotated[
        MaybeText,
        _help("Command to run first. If it prints nothing, no model is called.", metavar="COMMAND"),
    ] = UNSET
    missed: Annotated[
        MaybeText, _help("Runs missed during a downtime: run the last one (default), none or all.", Missed)
    ] = UNSET
    deadline: Annotated[MaybeText, _help("Time limit for one run, such as 10m.", metavar="DURATION")] = UNSET
    retries: Annotated[int | UnsetType, _help("Number of retries after a failed run. Default: 0.")] = UNSET
    overlap: Annotated[
        MaybeText,
        _help("If a run is due while another is running: skip it (default), queue it, or replace.", Overlap),
    ] = UNSET
    remind: Annotated[
        bool | UnsetType,
        _help('Send the text as it is, without a model. Default: yes if the text says "remind me".'),
    ] = UNSET
    quiet: Annotated[
        bool | UnsetType, _help("Send nothing if the model answers exactly NO_REPLY. Default: no.")
    ] = UNSET
