"""The descriptors of the gateway's parts, which the program can read without opening a part."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from talaria.core.problems import Problem
from talaria.core.setting_marks import KeyPath

S = TypeVar("S", bound=msgspec.Struct)
Status: TypeAlias = Mapping[str, Any]  # the answer of `GET /api/status`


@dataclass(frozen=True, slots=True)
class Examination(Generic[S]):
    """The arguments of a part's checks in `talaria doctor`. `status` is None if no gateway runs. A running
    gateway has environment variables of its own, which this shell may not have. `shared` is the folder of
    `store.files`."""

    home: Path
    settings: S
    environ: Mapping[str, str]
    status: Status | None = None
    shared: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPart(Generic[S]):
    """A part of the gateway: a folder of the program, and a line in the list `talaria.parts`.

    `settings` is the struct of its table in config.toml, whose path is `table`. The fields say how they are
    checked, which of them change live and which secrets they hold or name: see `core.setting_marks`.
    `findings` are the checks of `talaria doctor`. The gateway does not start without a required part, which
    is opened once; any other part is opened again when its settings change.

    Importing a part must be cheap: heavy modules are imported when the part is opened or examined.
    """

    name: str
    table: KeyPath = ()
    settings: type[S]
    is_required: bool = False
    findings: Callable[[Examination[S]], AsyncIterator[Problem]] | None = None


class NoSettings(msgspec.Struct, frozen=True):
    """The settings of a part without a table."""


Parts: TypeAlias = Sequence[GatewayPart[Any]]
