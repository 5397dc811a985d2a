"""The tests that `./dev test` leaves out because each takes many seconds."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from trial.report import Figure

ROOT = Path(__file__).parents[2]


def run_long_tests() -> Figure:
    """One pytest run over everything that is marked `long`. A run that collects nothing is a failure."""
    with tempfile.TemporaryDirectory(prefix="talaria-soak-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "--long", "-m", "long", "--junitxml", str(report)]
        subprocess.run(command, cwd=ROOT, check=False)
        (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    tests = int(suite.attrib["tests"])
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"]) + (tests == 0)
    return Figure(f"long tests: failed of {tests}", failed, limit=0)
