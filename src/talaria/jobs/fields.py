"""The fields of a job as people, models and programs write them. A module of its own, because the HTTP API
describes them before there is a job."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from talaria.jobs.settings import MAX_TEXT

MaybeText = str | UnsetType


class JobFields(msgspec.Struct, frozen=True):
    """The fields of a new job, or of a change. What is not set stays as it is. `when` is plain words.

    With `remind` the text is sent as it is, without a model. If a new job leaves it out, the words "remind
    me" decide. A `quiet` job sends nothing if its run answers exactly `NO_REPLY`.
    """

    text: Annotated[str, Meta(max_length=MAX_TEXT)] | UnsetType = UNSET
    when: MaybeText = UNSET
    every: MaybeText = UNSET
    cron: MaybeText = UNSET
    at: MaybeText = UNSET
    name: MaybeText = UNSET
    timezone: MaybeText = UNSET
    session: MaybeText = UNSET
    to: MaybeText = UNSET
    model: MaybeText = UNSET
    tools: tuple[str, ...] | UnsetType | None = UNSET
    check: MaybeText = UNSET
    missed: MaybeText = UNSET
    deadline: MaybeText = UNSET
    retries: int | UnsetType = UNSET
    overlap: MaybeText = UNSET
    remind: bool | UnsetType = UNSET
    quiet: bool | UnsetType = UNSET
