"""Tests that notice a fault of `Backoff` in different ways. test_mutants.py runs them on a faulty source."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from talaria.core.backoff import Backoff


def is_broken() -> bool:
    return Backoff(1, 60).pause(2) != 2.0


def test_quiet() -> None: ...


@pytest.mark.skip(reason="no printer")
def test_skipped() -> None: ...


@pytest.mark.xfail(strict=True)
def test_expected() -> None:
    raise AssertionError


def test_fails() -> None:
    assert not is_broken()


@pytest.mark.timeout(0.5)
def test_hangs() -> None:
    while is_broken():
        time.sleep(0.01)


def test_ends_the_process() -> None:
    if is_broken():
        os._exit(0)


def test_fails_too() -> None:
    assert not is_broken()


def test_fails_once() -> None:
    mark = Path(os.environ["NOTICING_MARK"])
    if not mark.exists():
        mark.touch()
        assert not is_broken()


def test_fails_by_load() -> None:
    raise TimeoutError
