from __future__ import annotations

import os
import subprocess
import sys

import pytest

from talaria.channels.http.server import share_descriptors
from talaria.observe.health import count_descriptors, descriptor_limit

MOST = 65_536

_RAISE = """
import resource
from talaria.observe.health import MOST, descriptor_limit, raise_descriptor_limit
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
print(descriptor_limit(), raise_descriptor_limit() == most)
"""

_LOWER = """
import resource
from talaria.observe.health import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
setrlimit = resource.setrlimit

def refuse_many(key, limits):
    if limits[0] > 10_240:
        raise ValueError("not allowed to raise maximum limit")
    setrlimit(key, limits)

resource.setrlimit = refuse_many
print(raise_descriptor_limit())
"""


def test_a_system_that_tells_too_high_a_limit_is_asked_for_less() -> None:
    said = subprocess.run([sys.executable, "-c", _LOWER], capture_output=True, text=True, check=True)
    assert 256 < int(said.stdout) <= 10_240


def test_the_limit_is_raised_as_far_as_the_system_lets_it() -> None:
    said = subprocess.run([sys.executable, "-c", _RAISE], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["256", "True"]


def test_open_descriptors_are_counted() -> None:
    before = count_descriptors()
    reader, writer = os.pipe()
    try:
        assert count_descriptors() == before + 2 <= descriptor_limit()
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("limit", [128, 256, 1024, 4096, 20_000, MOST])
def test_connections_leave_descriptors_for_everything_else(limit: int) -> None:
    backlog, room = share_descriptors(limit)
    assert backlog + room <= limit - 48
    assert room >= limit // 4
