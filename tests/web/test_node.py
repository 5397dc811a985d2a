"""The parts of the page that need no browser, run by Node."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

NODE = shutil.which("node")
TESTS = sorted(Path(__file__).parent.glob("*.test.mjs"))


@pytest.mark.skipif(
    NODE is None, reason="Node is not installed: its tests of the page's modules are left out"
)
def test_the_modules_of_the_page_without_a_browser() -> None:
    assert TESTS
    environ = {**os.environ, "ASSETS": str(files("talaria.channels.web") / "assets")}
    command = [NODE or "node", "--test", *map(str, TESTS)]
    run = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
