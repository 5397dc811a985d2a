"""A mapping with a bounded number of items, for what is worth remembering but can be found out again."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V]):
    """At most `most` items. Setting an item makes it the newest one, and drops the oldest if there are too
    many. Reading an item leaves the order; use `move_to_end` where reading counts as use."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)
