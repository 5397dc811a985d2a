"""The sandbox of this machine for tests that run commands, proved once for all of them."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import pytest

from talaria.workspace.sandbox.choice import Sandboxes


@cache
def _sandboxes() -> Sandboxes:
    return Sandboxes("auto", Path(tempfile.gettempdir()) / "no gateway's home")


async def proved() -> Sandboxes:
    """Return the sandboxes, or skip the test where none holds."""
    found = await _sandboxes().choose()
    if found.sandbox is None:
        pytest.skip(found.reason)
    return _sandboxes()
