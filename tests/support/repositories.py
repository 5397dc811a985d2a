"""Git repositories that tests make: nothing of the developer's own settings counts in them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.programs import needs

needs_git = needs("git")
_PERSON = ("-c", "user.name=a", "-c", "user.email=a@b")


def git(root: Path, *arguments: str) -> str:
    """Run git in a folder and return what it prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environ = {**kept, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-C", str(root), *_PERSON, *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.strip()
