"""What the built-in model needs of this machine, and what to do when something is missing."""

from __future__ import annotations

import platform
import sys
from importlib.util import find_spec
from pathlib import Path

from talaria.core.errors import ModelRefused

REQUIREMENT = "xllamacpp==2026.10.11549"
_OTHER = "Choose another model with `talaria setup`."


def unmet(cpuinfo: Path = Path("/proc/cpuinfo"), gomp: str = "libgomp.so.1") -> ModelRefused | None:
    """Why the built-in model cannot run here, as the reply that a sender gets; None when it can."""
    if find_spec("xllamacpp") is None:
        return ModelRefused(
            "The built-in model cannot run: its runtime is not installed.",
            f"Install it with `{sys.executable} -m pip install {REQUIREMENT}`, or use `talaria setup`.",
        )
    if not has_avx2(cpuinfo):
        return ModelRefused("The built-in model cannot run: this processor lacks AVX2.", _OTHER)
    if sys.platform == "linux" and not _loads(gomp):
        return no_gomp()
    return None


def no_gomp() -> ModelRefused:
    return ModelRefused(
        "The built-in model cannot run: the system library libgomp is missing.",
        "Install it (Debian, Ubuntu: `apt-get install libgomp1`) and send your message again.",
    )


def has_avx2(cpuinfo: Path) -> bool:
    """What cannot be told is taken for a yes: the child would say otherwise."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return True
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return True
    flags = next((line for line in lines if line.startswith("flags")), "")
    return not flags or "avx2" in flags.split()


def _loads(library: str) -> bool:
    import ctypes  # noqa: PLC0415 - costs a start some milliseconds

    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
