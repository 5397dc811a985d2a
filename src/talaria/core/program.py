"""The name of this program, as a user types it: `talaria`, or the `./dev` of a clone.

Texts name commands as `talaria VERB` in backticks. A channel replaces the name when it shows the text:
`spoken` in a terminal on this machine, `spoken_afar` where the reader's folder is not known. Errors that are
stored or sent and log lines are worded with `spoken_afar`.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

_NAME = "talaria"
# `./dev scripted` is no command of this program: it has other options.
_COMMAND = re.compile(r"`(?:talaria|\./dev) (?!scripted\b)([a-z]+)")
_CLONE = Path(__file__).parents[3]  # of an editable installation


def program() -> str:
    """Return the command that runs this program from the current folder."""
    name = program_name()
    if name == "./dev":
        return name if is_here(_CLONE) else str(_CLONE / "dev")
    if _is_on_path():
        return name
    script = Path(sys.prefix) / "bin" / _NAME
    return shlex.quote(str(script)) if script.is_file() else f"{shlex.quote(sys.executable)} -m {_NAME}"


def program_name() -> str:
    """Return `./dev` in a clone that is not on the path, else `talaria`. It names no folder, so it can be
    shown to people on other machines. The path of a service may be another than that of its user."""
    return "./dev" if (_CLONE / "dev").is_file() and not _is_on_path() else _NAME


def clone_script() -> Path | None:
    """Return the `dev` script of the clone that this program runs from; None for an installed program."""
    script = _CLONE / "dev"
    return script if script.is_file() else None


def is_here(folder: Path) -> bool:
    try:
        return Path.cwd() == folder
    except OSError:  # the current folder was deleted
        return False


def _is_on_path() -> bool:
    found = shutil.which(_NAME)
    return found is not None and Path(found).resolve().is_relative_to(Path(sys.prefix).resolve())


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
