"""Which tests enter which blocks: recorded once for each test file, and kept in `.mutants/`.

A record belongs to the content of a test file and of what it imports from tests/. It stays of use when the
source changes, because blocks go by name: a function whose text changed is looked up as a whole.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice, zip_longest
from pathlib import Path

import msgspec

from mutants.blocks import ROOT, SOURCE, Block, functions, source_files, write_recording
from mutants.faults import Fault
from mutants.runs import Ran, folder, run_tests, source_copy
from mutants.workers import run_in_threads

TESTS = ROOT / "tests"
RECORDS = ROOT / ".mutants"
_DOCS = "tests/docs/test_docs.py"
_DOCUMENTED = ("settings", "limits")
_FILES_AT_ONCE = 6
_TEST_SECONDS = 300
_RUN_SECONDS = 1800
_FORMAT = b"2"  # of the records; others are made again


class RecordedTest(msgspec.Struct, frozen=True, array_like=True):
    """`entered` is a number in hexadecimal: bit N stands for block N of the file's record. `skipped` is the
    reason why the test did not run."""

    node: str
    seconds: float
    passes: bool
    entered: str
    skipped: str = ""


class RecordedFile(msgspec.Struct, frozen=True):
    """The tests of one file. `digest` is that of the content that it was made from."""

    digest: str
    blocks: list[str]
    tests: list[RecordedTest]


class Reach:
    """All records."""

    def __init__(self, records: dict[str, RecordedFile]) -> None:
        self._records = records
        self._bits = {test.node: int(test.entered, 16) for one in records.values() for test in one.tests}
        self._files: dict[str, set[str]] = defaultdict(set)  # by module, function and block
        for file, record in records.items():
            for block in record.blocks:
                function = block.partition("#")[0]
                for name in (block, function, function.partition(":")[0]):
                    self._files[name].add(file)

    def skipped(self) -> Counter[str]:
        """Return the reasons why tests were skipped, with the number of tests of each."""
        return Counter(test.skipped for one in self._records.values() for test in one.tests if test.skipped)

    def of(self, fault: Fault) -> tuple[list[RecordedTest], list[RecordedTest]]:
        """Return the tests that enter the fault's block: the near ones, and the others.

        A function without any record is new: the tests of its module are returned then. For a fault outside
        of functions, the tests of the functions that mention its name are returned, and those of the files
        that import the module, or compare its defaults with the docs.
        """
        module = fault.path.relative_to(SOURCE).as_posix()
        function = fault.block.partition("#")[0]
        is_known = bool(fault.block) and self._knows(fault.block)
        if not fault.block:
            found = self._entering(*_mentions().get(fault.subject, set())) + self._importing(module)
        else:
            found = self._entering(fault.block) or ([] if is_known else self._entering(function))
        if not found and not is_known:
            found = self._entering(module)
        return _ranked(found, module)

    def around(
        self, fault: Fault, without: Sequence[RecordedTest]
    ) -> tuple[list[RecordedTest], list[RecordedTest]]:
        """Return more tests: others that enter the block, and those of all files that enter its module.

        A test may depend on a block that only another test was seen to enter: the block runs at import, for a
        fixture that tests share, or once for a cache.
        """
        near, others = self.of(fault)
        tried = {test.node for test in without}
        first = [test for test in (*near, *others) if test.node not in tried]
        tried |= {test.node for test in first}
        module = fault.path.relative_to(SOURCE).as_posix()
        found = self._importing(module) + self._in_files(self._files[module])
        wider, far = _ranked([(size, test) for size, test in found if test.node not in tried], module)
        return first + wider, far

    def touching(
        self, module: str, functions: Iterable[str] | None, names: Iterable[str]
    ) -> tuple[list[RecordedTest], list[RecordedTest]]:
        """Return the tests that a change of a module can reach: the near ones, and the others.

        `functions` are the changed ones; None stands for all. `names` are those of changed statements outside
        of functions. A function without any record is new: the tests of its module are returned then. Tests
        that failed in the recording are returned too: they may fail only in a copy.
        """
        wanted = {module} if functions is None else {f"{module}:{function}" for function in functions}
        if any(not self._files.get(name) for name in wanted):
            wanted.add(module)
        for name in names:
            wanted |= _mentions().get(name, set())
        found = self._entering(*wanted, is_red_fine=True) + (self._importing(module) if names else [])
        return _ranked(found, module)

    def _importing(self, module: str) -> list[tuple[int, RecordedTest]]:
        dotted = f"talaria.{module.removesuffix('.py').replace('/', '.')} "
        is_setting = Path(module).stem in _DOCUMENTED
        return self._in_files(
            file
            for file in self._records
            if (is_setting and file == _DOCS) or f"from {dotted}" in _text(file)
        )

    def _in_files(self, files: Iterable[str]) -> list[tuple[int, RecordedTest]]:
        """Return the tests of these files. Skipped ones may run by now: a program may have been installed."""
        tests = (test for file in files for test in self._records[file].tests if test.passes or test.skipped)
        return [(self._bits[test.node].bit_count(), test) for test in tests]

    def _knows(self, block: str) -> bool:
        """Return whether some record was made with the function's text as it is."""
        function, digest = block.partition("#")[0], block.rpartition(" ")[2]
        return any(
            name.partition("#")[0] == function and name.endswith(digest)
            for file in self._files[function]
            for name in self._records[file].blocks
        )

    def _entering(self, *names: str, is_red_fine: bool = False) -> list[tuple[int, RecordedTest]]:
        """Return the tests that enter these modules, functions or blocks, with the sizes of their reach."""
        found = []
        wanted = set(names)
        for file in set().union(*(self._files[name] for name in names)):
            record = self._records[file]
            mask = 0
            for number, block in enumerate(record.blocks):
                function = block.partition("#")[0]
                if not wanted.isdisjoint((block, function, function.partition(":")[0])):
                    mask |= 1 << number
            for test in record.tests:
                bits = self._bits[test.node]
                if bits & mask and (test.passes or is_red_fine):
                    found.append((bits.bit_count(), test))
        return found


@cache
def _text(file: str) -> str:
    path = ROOT / file
    return path.read_text() if path.exists() else ""


@cache
def _mentions() -> dict[str, set[str]]:
    """The functions that mention a name, by the name."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in source_files():
        place = path.relative_to(SOURCE).as_posix()
        for qualname, function in functions(ast.parse(path.read_text())):
            for node in ast.walk(function):
                match node:
                    case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str() as name):
                        found[name].add(f"{place}:{qualname}")
    return found


def _ranked(
    found: Iterable[tuple[int, RecordedTest]], module: str
) -> tuple[list[RecordedTest], list[RecordedTest]]:
    """Return the tests named as the module or in its folder, and the others.

    In both lists files take turns. Each file gives its most specific tests first, and those that run one
    function with other parameters last.
    """
    stem = Path(module).stem
    area = Path(module).parts[0].removesuffix(".py")
    files: dict[str, list[tuple[int, RecordedTest]]] = defaultdict(list)
    for size, test in {test.node: (size, test) for size, test in found}.values():
        files[test.node.partition("::")[0]].append((size, test))
    groups: list[list[list[RecordedTest]]] = [[], [], []]
    for file, tests in files.items():
        tests.sort(key=lambda one: (one[0], one[1].seconds))
        is_near = file.startswith(f"tests/{area}") or file == _DOCS
        group = 0 if stem in Path(file).stem else 1 if is_near else 2
        groups[group].append(_variants_last([test for _, test in tests]))
    named, near, others = (
        [test for turn in zip_longest(*queues) for test in turn if test is not None] for queues in groups
    )
    return named + near, others


def _variants_last(tests: Sequence[RecordedTest]) -> list[RecordedTest]:
    seen: Counter[str] = Counter()
    rounds: dict[str, int] = {}
    for test in tests:
        function = test.node.partition("[")[0].rpartition("::")[2]
        rounds[test.node] = seen[function]
        seen[function] += 1
    return sorted(tests, key=lambda test: rounds[test.node])


def load(*, jobs: int, again: bool, tell: Callable[[str], None], below: str = "tests") -> Reach:
    """Return the records of the test files `below` a path.

    Records that are missing or stale are made first; with `again`, all of them.
    """
    RECORDS.mkdir(exist_ok=True)
    digests = {file: _digest(ROOT / file) for file in all_test_files() if Path(file).is_relative_to(below)}
    records = {} if again else _fresh(digests)
    stale = [file for file in digests if file not in records]
    if stale:
        tell(f"recording which tests of {len(stale)} files enter which functions (once; minutes) …")
        for made in _record(stale, digests, jobs, tell):
            records |= made
    failing = sum(not test.passes and not test.skipped for one in records.values() for test in one.tests)
    if failing:
        tell(f"{failing} tests fail without a fault, at least in a copy of the source. They are not used.")
    return Reach(records)


def kept() -> tuple[Reach, list[str]]:
    """Return the records that are not stale, and the test files that have none. Records nothing."""
    digests = {file: _digest(ROOT / file) for file in all_test_files()}
    records = _fresh(digests)
    return Reach(records), [file for file in digests if file not in records]


def all_test_files() -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in sorted(TESTS.rglob("test_*.py"))]


def _fresh(digests: dict[str, str]) -> dict[str, RecordedFile]:
    return {file: one for file, digest in digests.items() if (one := _kept(file)) and one.digest == digest}


def _kept(file: str) -> RecordedFile | None:
    path = _record_path(file)
    return msgspec.json.decode(path.read_bytes(), type=RecordedFile) if path.exists() else None


def _keep(file: str, record: RecordedFile) -> None:
    path = _record_path(file)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(record))
    fresh.replace(path)


def _record_path(file: str) -> Path:
    return RECORDS / f"{file.replace('/', '+')}.json"


def _digest(path: Path) -> str:
    digest = hashlib.sha256(_FORMAT)
    for part in sorted(_parts(path)):
        digest.update(part.read_bytes())
    return digest.hexdigest()[:16]


@cache
def _parts(path: Path) -> frozenset[Path]:
    """The file and what it imports from tests/, directly or not."""
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        part = waiting.pop()
        if part not in found:
            found.add(part)
            waiting += imported(part, TESTS)
    return frozenset(found)


@cache
def imported(path: Path, *roots: Path) -> tuple[Path, ...]:
    """Return the modules below `roots` that a file imports, at its start or in a function."""
    places = (root / name.replace(".", "/") for root in roots for name in _imported_names(path))
    candidates = (file for place in places for file in (place.with_suffix(".py"), place / "__init__.py"))
    return tuple(candidate for candidate in candidates if candidate.is_file())


@cache
def _imported_names(path: Path) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return frozenset(names)


def _record(
    files: Sequence[str], digests: dict[str, str], jobs: int, tell: Callable[[str], None]
) -> Iterator[dict[str, RecordedFile]]:
    with folder() as code, source_copy({}) as copy:
        blocks = write_recording(code, source_files())
        waiting = iter(files)
        parts = list(iter(lambda: list(islice(waiting, _FILES_AT_ONCE)), []))
        recorded = run_in_threads(lambda part: (part, _record_part(part, copy, code, blocks)), parts, jobs)
        for done, (part, ran) in enumerate(recorded, 1):
            made = {file: _file_record(file, digests[file], ran, blocks) for file in part}
            for file, record in made.items():
                if record.tests:  # else it could not be imported, or the run was stopped
                    _keep(file, record)
            tell(f"  {done} of {len(parts)} parts")
            yield made


def _record_part(files: Sequence[str], copy: Path, code: Path, blocks: Sequence[Block]) -> list[Ran]:
    """Run some files. Tests that fail are recorded a second time: a test that ended early entered too little.

    Those that fail again are tried with the code as it is, since a recording is slower.
    """

    def run(only: Sequence[str] | None = None, recording: Path | None = code) -> dict[str, Ran]:
        limit = ("--continue-on-collection-errors", "--timeout", str(_TEST_SECONDS))
        outcome = run_tests(
            files,
            copy,
            only=only,
            recording=recording,
            blocks=len(blocks),
            options=limit,
            seconds=_RUN_SECONDS,
        )
        return {ran.node: ran for ran in outcome.tests if "::" in ran.node}

    found = run()
    for recording in (code, None):
        if failed := [node for node, ran in found.items() if ran.result == "failed"]:
            again = {node: ran for node, ran in run(failed, recording).items() if ran.passed}
            for node, ran in again.items():
                entered = ran.entered if recording is not None else found[node].entered
                found[node] = replace(ran, entered=entered)
    return list(found.values())


def _file_record(file: str, digest: str, ran: Sequence[Ran], blocks: Sequence[Block]) -> RecordedFile:
    own = [one for one in ran if one.node.partition("::")[0] == file]
    entered = sorted({number for one in own for number in one.entered})
    places = {number: place for place, number in enumerate(entered)}
    tests = [
        RecordedTest(
            one.node, one.seconds, one.passed, f"{sum(1 << places[n] for n in one.entered):x}", one.reason
        )
        for one in own
    ]
    return RecordedFile(digest, [blocks[number].name for number in entered], tests)
