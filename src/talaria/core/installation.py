"""How this copy of the program was installed: the commands that add an optional package, or remove it all."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path

from talaria.core.errors import ConfigError
from talaria.core.problems import install_command, shell
from talaria.core.program import clone_script, is_here

_MODULES = {
    "local": "xllamacpp",
    "mcp": "mcp",
    "openclaw": "zstandard",
    "postgres": "psycopg",
    "web": "trafilatura",
}


class MissingExtra(ConfigError):
    """An optional package is not installed. `extra` is the name of the extra that has it."""

    def __init__(self, extra: str, purpose: str) -> None:
        text = f"{purpose} needs the package {_MODULES[extra]}, which is not installed."
        super().__init__(text, f"Install it: {install_extra(extra)}")
        self.extra = extra


def has_extra(extra: str) -> bool:
    return find_spec(_MODULES[extra]) is not None


def check_extra(extra: str, purpose: str) -> None:
    """Raise `MissingExtra` if the packages of the extra are not installed. `purpose` begins its sentence."""
    if not has_extra(extra):
        raise MissingExtra(extra, purpose)


def own_script() -> Path | None:
    """Return the `dev` script that installed this program; None if something else did."""
    script = clone_script()
    return script if script is not None and Path(sys.prefix).is_relative_to(script.parent) else None


def install_extra(extra: str) -> str:
    """Return the command that installs an extra in the way this copy of the program was installed: with
    `./dev` in a clone, else with uv, pipx or pip. It names the packages, because Talaria is on no index."""
    if (script := own_script()) is not None:
        return shell("./dev" if is_here(script.parent) else script, "extra", extra)
    return install_command(*_packages(extra))


def remove_command() -> str:
    """Return the command that removes this copy of the program."""
    prefix = Path(sys.prefix)
    if (script := own_script()) is not None:
        return shell("rm", "-rf", script.parent)
    if (prefix / "uv-receipt.toml").is_file():
        return shell("uv", "tool", "uninstall", "talaria-gateway")
    if (prefix / "pipx_metadata.json").is_file():
        return shell("pipx", "uninstall", "talaria-gateway")
    return shell(sys.executable, "-m", "pip", "uninstall", "talaria-gateway")


def _packages(extra: str) -> list[str]:
    """Return the requirements of the extra as the metadata of the installation has them."""
    try:
        listed = requires("talaria-gateway") or []
    except PackageNotFoundError:
        listed = []
    parts = (requirement.replace('"', "'").partition(";") for requirement in listed)
    found = [name.strip() for name, _, marker in parts if marker.strip() == f"extra == '{extra}'"]
    return found or [_MODULES[extra]]
