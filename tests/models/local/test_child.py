"""The process that runs the model, with a runtime that only writes down how it was asked to run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

STUB = """
import json, os, pathlib, types
class CommonParams(types.SimpleNamespace):
    def __init__(self):
        super().__init__(model=types.SimpleNamespace(), cpuparams=types.SimpleNamespace(),
                         cpuparams_batch=types.SimpleNamespace())
class Server:
    def __init__(self, params):
        print("this must not be taken for the answer", flush=True)
        if not pathlib.Path(params.model.path).exists():
            raise RuntimeError("no such file")
        plain = lambda o: vars(o) if hasattr(o, "__dict__") else sorted(o)
        pathlib.Path(params.model.path).write_text(json.dumps(vars(params), default=plain))
        self.listening_address = "http://127.0.0.1:1234"
"""


@pytest.fixture
def child(tmp_path: Path) -> Any:
    (tmp_path / "xllamacpp.py").write_text(STUB)
    path = os.pathsep.join((str(tmp_path), *sys.path))
    with subprocess.Popen(
        [sys.executable, "-m", "talaria.models.local.child"],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def order(child: Any, weights: Path) -> dict[str, str]:
    child.stdin.write(json.dumps({"weights": str(weights), "name": "tiny", "key": "k1", "threads": 1}) + "\n")
    child.stdin.flush()
    answer: dict[str, str] = json.loads(child.stdout.readline())
    return answer


def test_it_is_small_private_and_ends_with_its_lifeline(child: Any, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.touch()
    assert order(child, weights) == {"url": "http://127.0.0.1:1234/v1"}
    asked = json.loads(weights.read_text())
    assert (asked["hostnames"], asked["port"], asked["api_keys"]) == (["127.0.0.1"], 0, ["k1"])
    assert (asked["ui"], asked["n_ctx"], asked["cache_ram_mib"]) == (False, 2 * 4096, 64)
    assert asked["n_parallel"] == 2, "the router's prompt and the conversation keep a slot each"
    assert asked["cpuparams"] == {"n_threads": 1, "poll": 0}
    assert asked["cpuparams_batch"] == {"n_threads": 2, "poll": 0}
    assert child.poll() is None
    child.stdin.close()
    assert child.wait(20) == 0


def test_it_says_why_it_cannot_load(child: Any, tmp_path: Path) -> None:
    assert order(child, tmp_path / "missing") == {"error": "RuntimeError: no such file"}
    assert child.wait(20) == 1
