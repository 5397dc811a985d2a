"""The check of a plug-in before it is loaded: imported and registered in a process of its own, within a time.

Run as a program, this module forks such a process for each plug-in, so that several are checked at the cost
of one start of Python. The gateway reads what each plug-in brings, or what is wrong with it.
"""

from __future__ import annotations

import importlib
import math
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

from talaria.config.plugins import PluginSource
from talaria.core.errors import TalariaError
from talaria.core.extensions import CODE_OWNERS
from talaria.core.problems import Problem, install_command
from talaria.core.program import this_version
from talaria.observe.logs import log_plugin
from talaria.plugins.api import Plugin
from talaria.tools.toolset import ToolSet

CHECK_SECONDS: Final = 10.0
_SIDE_BY_SIDE: Final = 4
_SPARE_SECONDS: Final = 5
_LONGEST: Final = 500  # characters of an error's text


class CheckResult(msgspec.Struct, frozen=True):
    """The result of a check. With `is_hung` the plug-in did not come to an end."""

    brings: tuple[str, ...] = ()
    problem: Problem | None = None
    is_hung: bool = False

    @classmethod
    def failed(cls, text: str, hint: str = "", *, is_hung: bool = False) -> CheckResult:
        return cls(problem=Problem(text, hint), is_hung=is_hung)


class CheckOrder(msgspec.Struct, frozen=True):
    """The plug-in to check, with what it is registered with."""

    source: PluginSource
    home: str
    table: dict[str, Any]


# -- in the gateway's process -----------------------------------------------------------------------------


def check_key(digest: str, table: Mapping[str, Any]) -> str:
    """Return a hash of all that a check depends on."""
    told = msgspec.json.encode((digest, table, this_version(), sys.version), order="sorted")
    return sha256(told).hexdigest()


def run_checks(
    orders: Sequence[CheckOrder],
    environ: Mapping[str, str],
    seconds: float = CHECK_SECONDS,
    *,
    shows_output: bool = False,
) -> list[CheckResult]:
    """Check each plug-in in a process of its own, some side by side. Blocks, for each few of them at most for
    `seconds`. With `shows_output`, what they print is shown on stderr."""
    if not orders:
        return []
    done = subprocess.run(
        [sys.executable, "-P", "-m", "talaria.plugins.checking"],
        input=msgspec.json.encode((orders, seconds)),
        stdout=subprocess.PIPE,
        stderr=None if shows_output else subprocess.DEVNULL,
        env={**environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    try:
        return msgspec.json.decode(done.stdout, type=list[CheckResult])
    except msgspec.DecodeError:
        text = f"It could not be checked: the process for it left with status {done.returncode}."
        return [CheckResult.failed(text, "Run `talaria doctor`.") for _ in orders]


# -- in both processes ------------------------------------------------------------------------------------


def import_plugin(source: PluginSource) -> Callable[[Plugin], None]:
    """Import the plug-in and return its function. Raises what the import raises, and `TalariaError`."""
    for path in source.paths:
        CODE_OWNERS.add(path, source.name)
    module = _import_file(source) if not source.module else importlib.import_module(source.module)
    found: Any = module
    for name in source.function.split("."):
        found = getattr(found, name, None)
    if not callable(found):
        raise TalariaError(
            f"It has no function {source.function}.", "Write `def register(plugin: Plugin) -> None:` in it."
        )
    register: Callable[[Plugin], None] = found
    return register


def _import_file(source: PluginSource) -> ModuleType:
    """Run the file as a module. Its name makes `logging.getLogger(__name__)` the plug-in's own logger; no
    bytecode is written beside it."""
    path = source.paths[0]
    module = ModuleType(f"talaria.plugin.{source.name}")
    module.__file__ = path
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    sys.modules[module.__name__] = module
    try:
        exec(code, module.__dict__)  # noqa: S102 - the operator's own code
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


def register(source: PluginSource, plugin: Plugin) -> CheckResult:
    """Import the plug-in and let it register. Returns what is wrong instead of raising it."""
    try:
        with log_plugin(source.name):
            import_plugin(source)(plugin)
            plugin.close()
            return CheckResult(plugin.brought.names())
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return _describe(error, source)


def _describe(error: BaseException, source: PluginSource) -> CheckResult:
    if isinstance(error, TalariaError):
        return CheckResult.failed(error.user_text, error.hint or "Correct it.")
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return CheckResult.failed(
            f"It needs the module {error.name}, which is not installed.",
            f"Install it, for example with: {install_command(package)}",
        )
    if isinstance(error, SyntaxError):
        return CheckResult.failed(f"{source.label} line {error.lineno}: {error.msg}.", "Correct the line.")
    where = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if CODE_OWNERS.find(frame.filename) == source.name:
            where = f" in {Path(frame.filename).name} line {frame.lineno}"
    text = str(error)[:_LONGEST] or "no details"
    return CheckResult.failed(
        f"It raised {type(error).__name__}{where}: {text.removesuffix('.')}.",
        f"Correct it; `talaria plugins check {source.name}` tries it again.",
    )


# -- in the processes of the check ------------------------------------------------------------------------


def find_taken(brings: Sequence[str]) -> CheckResult | None:
    """Return what is wrong with the names that a plug-in asks for, beside those of the gateway itself."""
    from talaria.core.tools import TOOL_CALL, TOOL_SEARCH  # noqa: PLC0415
    from talaria.parts import PARTS  # noqa: PLC0415
    from talaria.tools.part import describe_families  # noqa: PLC0415
    from talaria.tools.settings import ToolSettings  # noqa: PLC0415
    from talaria.turns.slash import ALIASES, SLASH_COMMANDS  # noqa: PLC0415 - in this process only

    tools = {tool.spec.name for source in describe_families(PARTS, ToolSettings()) for tool in source.tools()}
    taken = {f"tool {name}" for name in (*tools, TOOL_CALL, TOOL_SEARCH, "skill")}
    taken |= {f"command /{name}" for name in (*SLASH_COMMANDS, *ALIASES)}
    taken |= {f"channel {part.name}" for part in PARTS}
    for name in brings:
        if name in taken or name.startswith("tool mcp_"):
            return CheckResult.failed(
                f"It asks for the {name}, which is a name of the gateway's own.", "Rename it."
            )
        if brings.count(name) > 1:
            return CheckResult.failed(f"It asks for the {name} twice.", "Rename one.")
    return None


def _check_order(order: CheckOrder) -> CheckResult:
    plugin = Plugin(order.source.name, Path(order.home), order.table, os.environ)
    result = register(order.source, plugin)
    if result.problem:
        return result
    brought = plugin.brought
    try:
        ToolSet([*brought.tools, *(tool for source in brought.sources for tool in source.tools())])
    except TalariaError as error:
        return CheckResult.failed(error.user_text, error.hint or "Correct it.")
    return find_taken(result.brings) or result


class _Child:
    """A process that checks one plug-in, in a group of its own, and answers through a pipe."""

    def __init__(self, order: CheckOrder, seconds: float, results: int) -> None:
        """`results` is where the results of all are written. A process that the plug-in leaves behind must
        not hold it open: the gateway reads to its end."""
        self.order = order
        self._answer, end = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(end)
            return
        status = 1
        try:
            os.setsid()
            signal.alarm(math.ceil(seconds) + _SPARE_SECONDS)  # if nobody waits for it any more
            os.close(self._answer)
            os.close(results)
            result = msgspec.json.encode(_check_order(order))
            with os.fdopen(end, "wb") as pipe:
                pipe.write(result)
            status = 0
        finally:
            os._exit(status)  # threads that the plug-in has started do not count

    def wait(self, deadline: float, seconds: float) -> CheckResult:
        """Return its answer. The process, and what it has started, is gone afterwards."""
        told, is_late = b"", False
        while not is_late:
            left = max(0.0, deadline - time.monotonic())
            is_late = not select.select([self._answer], [], [], left)[0]
            if not is_late and not (data := os.read(self._answer, 1 << 16)):
                break
            told += b"" if is_late else data
        os.close(self._answer)
        ended, status = os.waitpid(self.pid, os.WNOHANG if is_late else 0)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if is_late:
            if not ended:
                os.waitpid(self.pid, 0)
            return CheckResult.failed(
                f"It did not come to an end within {seconds:g} seconds when it was checked.",
                "Let it wait for nothing while it is imported and registers.",
                is_hung=True,
            )
        try:
            return msgspec.json.decode(told, type=CheckResult)
        except msgspec.DecodeError:
            code = os.waitstatus_to_exitcode(status)
            how = f"was killed by signal {-code}" if code < 0 else f"left with status {code}"
            return CheckResult.failed(
                f"The process that checked it {how}, without a word.",
                f"`talaria plugins check {self.order.source.name}` shows what it prints.",
            )


def _main() -> None:
    """Check the plug-ins that stdin names, and write the results to stdout. What they print is on stderr."""
    orders, seconds = msgspec.json.decode(sys.stdin.buffer.read(), type=tuple[list[CheckOrder], float])
    answer = os.dup(1)
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    find_taken(())  # the imports that all of them need
    results = []
    for first in range(0, len(orders), _SIDE_BY_SIDE):
        deadline = time.monotonic() + seconds
        children = [_Child(order, seconds, answer) for order in orders[first : first + _SIDE_BY_SIDE]]
        results += [child.wait(deadline, seconds) for child in children]
    with os.fdopen(answer, "wb") as pipe:
        pipe.write(msgspec.json.encode(results))


if __name__ == "__main__":
    _main()
