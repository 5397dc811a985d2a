"""Programs that some tests need, and the Debian packages that bring them.

Run as a program, it prints the packages that are missing here; `./dev test` installs them where it can.
"""

from __future__ import annotations

import ctypes
import shutil

import pytest

_PACKAGES = {
    "bwrap": "bubblewrap",
    "tmux": "tmux",
    "chromium": "chromium",
    "libgomp.so.1": "libgomp1",
    "nginx": "nginx-light",
    "caddy": "caddy",
    "prometheus": "prometheus",
    "Xvfb": "xvfb",
}
_OTHER_NAMES = {"chromium": ("chromium-browser", "google-chrome")}


def find_program(name: str) -> str | None:
    """Return the path of a program under any of its names, None if it is not installed."""
    return next(filter(None, map(shutil.which, (name, *_OTHER_NAMES.get(name, ())))), None)


def missing_programs() -> dict[str, str]:
    """Return the programs and libraries that are missing here, with the package of each."""
    return {name: package for name, package in _PACKAGES.items() if not _is_here(name)}


def needs(name: str) -> pytest.MarkDecorator:
    """Skip a test by name where a program is missing."""
    return pytest.mark.skipif(find_program(name) is None, reason=f"{name} is not installed")


def _is_here(name: str) -> bool:
    if ".so" not in name:
        return find_program(name) is not None
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    print(*missing_programs().values())
