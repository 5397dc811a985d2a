"""Channels that are not used cost nothing but their descriptors."""

from __future__ import annotations

import json
import subprocess
import sys

_NAMES = ("discord", "slack", "telegram")
_SCRIPT = """
import importlib, json, sys
import talaria.app, talaria.parts

def loaded():
    return [name for name in sys.modules if name.startswith("talaria.channels.") or name == "aiohttp"]

found = [loaded()]
for name in ("discord", "slack"):
    importlib.import_module(f"talaria.channels.{name}.channel")
    importlib.import_module(f"talaria.channels.{name}.account")
    found.append(loaded())
print(json.dumps(found))
"""


def test_a_channel_is_imported_when_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True)
    idle, first, second = (set(each) for each in json.loads(done.stdout))
    assert "aiohttp" not in idle and "talaria.channels.live_message" not in idle
    for unused, modules in ((_NAMES, idle), (_NAMES[1:], first), (_NAMES[2:], second)):
        for name in unused:
            path = f"talaria.channels.{name}"
            assert {each for each in modules if f"{each}.".startswith(f"{path}.")} == {path, f"{path}.part"}
