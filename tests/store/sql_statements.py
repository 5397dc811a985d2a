"""Every statement of the shared SQL, by the module and the name of its constant."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from types import ModuleType

from talaria.store.sql import (
    announcements,
    binding,
    branches,
    cluster,
    delivery,
    homes,
    jobs,
    leases,
    log,
    orders,
    pairing,
    queries,
    questions,
    retention,
    slots,
    spending,
)

MODULES = (
    announcements,
    binding,
    branches,
    binding,
    cluster,
    retention,
    delivery,
    homes,
    jobs,
    leases,
    log,
    orders,
    pairing,
    queries,
    questions,
    retention,
    slots,
    spending,
)
VERBS = ("SELECT ", "INSERT ", "UPDATE ", "DELETE ")


def _assigned(module: ModuleType) -> Iterator[str]:
    """The module's own names, without those that it imports."""
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _statements() -> Iterator[tuple[str, str]]:
    for module in MODULES:
        for name in _assigned(module):
            value = vars(module)[name]
            several = isinstance(value, tuple)
            for i, sql in enumerate(value if several else (value,)):
                if isinstance(sql, str) and sql.lstrip().startswith(VERBS):
                    place = f"{module.__name__.rpartition('.')[2]}.{name}"
                    yield f"{place}[{i}]" if several else place, sql


STATEMENTS = dict(_statements())
