"""Trees of folders that commands can leave."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from talaria.workspace.places import remove_tree


@contextmanager
def nested(folder: Path, depth: int) -> Iterator[None]:
    """Make folders named `n` in each other, deeper than a path can name. They are removed at the end: pytest
    cannot remove them itself."""
    parent = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("n", dir_fd=parent)
        inner = os.open("n", os.O_RDONLY, dir_fd=parent)
        os.close(parent)
        parent = inner
    os.close(parent)
    try:
        yield
    finally:
        remove_tree(folder / "n")
