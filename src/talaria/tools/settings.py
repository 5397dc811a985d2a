"""`[tools]`: what agents may use."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import msgspec

from talaria.core.schema import Known, Mark
from talaria.core.units import Size

FAMILIES = ("files", "todo")


class ToolSettings(msgspec.Struct, frozen=True):
    """`enabled` names families; `max_result` is what a model sees of one result, the rest goes to a file;
    `call_timeout` ends a call that does not come back."""

    enabled: Annotated[tuple[str, ...], Mark.LIVE, Known(FAMILIES)] = FAMILIES
    max_result: Size = Size(16 << 10)
    call_timeout: timedelta = timedelta(seconds=120)
