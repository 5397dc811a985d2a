"""The name of this program, as a user types it: `talaria`, or the `./dev` of a clone.

Texts name commands as `talaria VERB` in backticks. A channel replaces the name when it shows the text:
`spoken` in a terminal on this machine, `spoken_afar` where the reader's folder is not known. Errors that are
stored or sent and log lines are worded with `spoken_afar`.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

_NAME = "talaria"
_COMMAND = re.compile(r"`(?:talaria|\./dev) ([a-z]+)")
_CLONE = Path(__file__).parents[3]  # of an editable installation


def program() -> str:
    """Return the command that runs this program from the current folder."""
    name = program_name()
    if name != "./dev" or Path.cwd() == _CLONE:
        return name
    return str(_CLONE / "dev")


def program_name() -> str:
    """Return `talaria` if that is this program on the path, else `./dev` in a clone. It names no folder, so
    it can be shown to people on other machines."""
    found = shutil.which(_NAME)
    if found and Path(found).resolve().is_relative_to(Path(sys.prefix).resolve()):
        return _NAME
    return "./dev" if (_CLONE / "dev").is_file() else f"python -m {_NAME}"


def spoken(text: str) -> str:
    """Replace `talaria VERB` in backticks by the command line that works in this terminal."""
    return text.replace("`talaria ", f"`{program()} ") if "`talaria " in text else text


def spoken_afar(text: str) -> str:
    """Replace `talaria VERB` in backticks by what is typed on the gateway's machine."""
    return text.replace("`talaria ", f"`{program_name()} ") if "`talaria " in text else text


def typed(text: str, command_line: Callable[[str], str]) -> str:
    """Return the text with each command in backticks as `command_line` spells its verb.

    The text may come from another process, which has worded it for its own program.
    """
    return _COMMAND.sub(lambda match: f"`{command_line(match[1])}", text)
