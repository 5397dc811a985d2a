"""Replaces the modules of `talaria` by code that records what it enters. Python imports it at its start.

The folder in MUTANTS_CODE has one file for each module, named as the module, with its compiled code.
MUTANTS_MAP names a file with one byte for each block of the source: the code sets the byte of each block that
it enters. All processes of a test share the file, so the blocks of a killed process are known too.
"""

from __future__ import annotations

import builtins
import marshal
import mmap
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

HITS = "_mutants_hits_"  # the name of the map in the code of a recording


class _Loader(SourceFileLoader):
    """Loads the prepared code with the path and the source of the module itself."""

    def __init__(self, name: str, path: str, code: Path) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = marshal.loads(self._code.read_bytes())
        return code


class _Finder:
    def __init__(self, folder: Path) -> None:
        self._prepared = {path.name: path for path in folder.iterdir()}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        code = self._prepared.get(name)
        spec = PathFinder.find_spec(name, path, target) if code is not None else None
        if code is None or spec is None or spec.origin is None:
            return None
        spec.loader = _Loader(name, spec.origin, code)
        return spec


def _install() -> None:
    if folder := os.environ.get("MUTANTS_CODE"):
        sys.meta_path.insert(0, _Finder(Path(folder)))
    if path := os.environ.get("MUTANTS_MAP"):
        with Path(path).open("r+b") as file:
            setattr(builtins, HITS, mmap.mmap(file.fileno(), 0))


_install()
