"""The list of all operations. Each module of this package adds its own tuple."""

from __future__ import annotations

from typing import Any, Final

from talaria.operations.access import ACCESS_OPERATIONS
from talaria.operations.approvals import APPROVAL_OPERATIONS
from talaria.operations.jobs import JOB_OPERATIONS
from talaria.operations.memory import MEMORY_OPERATIONS
from talaria.operations.operation import Operation
from talaria.operations.sessions import SESSION_OPERATIONS
from talaria.operations.status import GATEWAY_OPERATIONS
from talaria.operations.turns import TURN_OPERATIONS

Operations = tuple[Operation[Any, Any, Any], ...]
OPERATIONS: Final[Operations] = (
    *TURN_OPERATIONS,
    *SESSION_OPERATIONS,
    *APPROVAL_OPERATIONS,
    *JOB_OPERATIONS,
    *MEMORY_OPERATIONS,
    *ACCESS_OPERATIONS,
    *GATEWAY_OPERATIONS,
)
