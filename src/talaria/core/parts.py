"""The descriptor of a part of the gateway: what the program knows of it without opening it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from talaria.core.findings import Finding
from talaria.core.schema import KeyPath

S = TypeVar("S", bound=msgspec.Struct)
Status: TypeAlias = Mapping[str, Any]  # the answer of `GET /api/status`


@dataclass(frozen=True, slots=True)
class Examination(Generic[S]):
    """What `talaria doctor` gives to the checks of a part. `status` is None if no gateway runs. A running
    gateway has environment variables of its own, which this shell may not have."""

    home: Path
    settings: S
    environ: Mapping[str, str]
    status: Status | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Generic[S]):
    """One folder of the program and one line in the list `talaria.parts`.

    `settings` is the struct of its table in config.toml, whose path is `table`. The fields say how they are
    checked, which of them change live and which secrets they hold or name (`core.schema`). `findings` are the
    checks of `talaria doctor`. The gateway does not start without a required part, which is opened once; any
    other part is opened again when its settings change.

    Importing a part must be cheap: what is heavy is imported when the part is opened or examined.
    """

    name: str
    table: KeyPath = ()
    settings: type[S]
    is_required: bool = False
    findings: Callable[[Examination[S]], AsyncIterator[Finding]] | None = None


Parts: TypeAlias = Sequence[Part[Any]]
