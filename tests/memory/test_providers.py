"""The memory providers, each by the contract of the port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from talaria.access.people import People
from talaria.core.clock import SystemClock
from talaria.core.redaction import Secret, SecretRegistry
from talaria.memory.memory_files import MemoryFiles
from talaria.memory.tool import FileMemory
from talaria.testing.contracts.memory_suite import SECRET, MemorySuite
from talaria.testing.keyword_memory import KeywordMemory
from talaria.tools.tool import MemoryProvider

SECRETS = SecretRegistry([Secret("a key", SECRET)])


class TestFileMemory(MemorySuite):
    @pytest.fixture
    def memory(self, tmp_path: Path) -> Iterator[MemoryProvider]:
        memory = FileMemory(MemoryFiles(tmp_path / "memory"), People(), SystemClock(), SECRETS)
        yield memory
        memory.close()


class TestKeywordMemory(MemorySuite):
    @pytest.fixture
    def memory(self) -> MemoryProvider:
        return KeywordMemory(SECRETS)
