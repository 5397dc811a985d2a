"""Faults tried in parallel, each in a thread that waits for its runs of pytest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from mutants.runs import stop_all

Item = TypeVar("Item")
Done = TypeVar("Done")


def run_in_threads(run: Callable[[Item], Done], items: Sequence[Item], jobs: int) -> Iterator[Done]:
    """Yield the results as they come. If the caller stops or an item fails, all runs are ended."""
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(run, item) for item in items]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stop_all()
            raise
