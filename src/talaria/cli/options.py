"""What every command takes: `--home`, `--version`, and the way to the home."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from talaria import __version__

if TYPE_CHECKING:
    from talaria.config.home import Home

F = TypeVar("F", bound=Callable[..., object])


@dataclass
class Invocation:
    """What was said before and beside the command's own options."""

    home_option: str | None = None

    def home(self) -> Home:
        """Raises `ConfigError` when it cannot be resolved. Touches nothing on the disk."""
        from talaria.config.home import Home

        return Home.find(self.home_option, os.environ)

    def command_line(self, verb: str) -> str:
        """How a person would run another command on the same home."""
        from talaria.config.home import DEFAULT_HOME

        path = self.home().path
        other = path != Path(DEFAULT_HOME).expanduser()
        return f"{program()} {verb}" + (f" --home {_quoted(path)}" if other else "")


def common(function: F) -> F:
    """Adds `--home` and `--version`; the home is found in the `Invocation`, which is the context's object."""
    home = click.option(
        "--home",
        metavar="PATH",
        expose_value=False,
        callback=_remember_home,
        help="The folder that holds everything (default: $TALARIA_HOME or ~/.talaria).",
    )
    version = click.version_option(__version__, prog_name="talaria", message="%(prog)s %(version)s")
    return home(version(function))


def program() -> str:
    """`talaria` when that is this program on the path, else the clone's `./dev`."""
    import shutil

    found = shutil.which("talaria")
    if found and Path(found).resolve().is_relative_to(Path(sys.prefix).resolve()):
        return "talaria"
    clone = Path(__file__).parents[3]
    if not (clone / "dev").is_file():
        return "python -m talaria"
    return "./dev" if Path.cwd() == clone else str(clone / "dev")


def spoken(text: str) -> str:
    """Texts name commands as `talaria VERB`, in backticks; here they become what can be typed."""
    return text.replace("`talaria ", f"`{program()} ") if "`talaria " in text else text


def _remember_home(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(Invocation).home_option = value


def _quoted(path: Path) -> str:
    import shlex

    return shlex.quote(str(path))
