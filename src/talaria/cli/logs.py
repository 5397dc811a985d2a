"""The log files of a home, and `talaria logs`, which shows and follows them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING, TextIO

import click

from talaria.cli.options import Invocation, verb
from talaria.config.home import Home
from talaria.core.errors import NotFound
from talaria.core.text import visible_json
from talaria.observe.logs import Line, as_text, escape

if TYPE_CHECKING:
    from talaria.gateway import Gateway
    from talaria.observe.logs import LogControl

GATEWAY_LOG, CONSOLE_LOG, AUDIT_LOG = "gateway.log", "console.log", "audit.log"
MAX_BYTES = 5 << 20
KEPT = 3  # older files beside the current one
AUDIT_KEPT = 9
_POLL_SECONDS = 0.25
_MOST_QUEUED = 4096  # lines that wait for the disk; more are left out of the file
_CLOSE_SECONDS = 1.0


class RotatingLog(io.TextIOBase):
    """A bounded log file. When it is full it becomes NAME.1, NAME.1 becomes NAME.2, and so on."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES, kept: int = KEPT) -> None:
        """Raises `OSError` if the file cannot be written."""
        self._path = path
        self._max_bytes = max_bytes
        self._kept = kept
        path.parent.mkdir(mode=0o700, exist_ok=True)
        self._open()

    def write(self, text: str) -> int:
        data = text.encode("utf-8", "replace")
        if self._size and self._size + len(data) > self._max_bytes:
            self._rotate()
        self._size += os.write(self._handle, data)
        return len(text)

    def close(self) -> None:
        if not self.closed:
            os.close(self._handle)
        super().close()

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._handle = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._handle).st_size

    def _rotate(self) -> None:
        os.close(self._handle)
        for number in range(self._kept - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                older(self._path, number).replace(older(self._path, number + 1))
        self._path.replace(older(self._path, 1))
        self._open()


class _Tee(io.TextIOBase):
    """Writes to a stream, and to a file by a thread of its own: the stream goes on while the file's disk
    hangs. When one of them fails, the text still goes to the other."""

    def __init__(self, first: TextIO, second: RotatingLog) -> None:
        self._first = first
        self._second = second
        self._queue: SimpleQueue[str | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="log file", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        if self._queue.qsize() < _MOST_QUEUED:
            self._queue.put(text)
        self._first.write(text)
        return len(text)

    def flush(self) -> None:
        self._first.flush()

    def close(self) -> None:
        """Write what is queued and close the file. A file whose disk hangs is left as it is."""
        if not self.closed:
            self._queue.put(None)
            self._thread.join(_CLOSE_SECONDS)
        super().close()

    def _run(self) -> None:
        with self._second:
            while (text := self._queue.get()) is not None:
                with contextlib.suppress(OSError):
                    self._second.write(text)


def older(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


@contextlib.contextmanager
def open_log(home: Home, beside: TextIO | None = None) -> Iterator[TextIO]:
    """Open the log of a gateway: console.log inside another command, else gateway.log beside its stderr.

    If the file cannot be written, the log goes to `beside` alone, or nowhere.
    """
    try:
        log = RotatingLog(home.logs / (CONSOLE_LOG if beside is None else GATEWAY_LOG))
    except OSError:
        with contextlib.nullcontext(beside) if beside else open(os.devnull, "w", encoding="utf-8") as stream:  # noqa: PTH123
            yield stream
        return
    with log if beside is None else _Tee(beside, log) as stream:
        yield stream  # type: ignore[misc]  # a TextIO in all that is used


@contextlib.contextmanager
def open_audit_log(home: Home) -> Iterator[TextIO | None]:
    """Open the file of audit lines, also for a gateway in a terminal. Yields None if it cannot be written."""
    try:
        log = RotatingLog(home.logs / AUDIT_LOG, kept=AUDIT_KEPT)
    except OSError as error:
        click.echo(f"Could not open {home.logs / AUDIT_LOG}: {error.strerror}.", err=True)
        yield None
        return
    with log:
        yield log  # type: ignore[misc]  # a TextIO in all that is used


def follow_settings(gateway: Gateway, log: LogControl) -> None:
    """Let the log follow changes of its level."""
    gateway.reloader.live.on(("log", "level"), tell=lambda new: log.change_level(new.log))


# -- the command ------------------------------------------------------------------------------------------


@verb(
    "logs",
    "talaria logs               the last 50 lines",
    "talaria logs -n 500",
    "talaria logs -f            and new lines, until Ctrl-C",
    "talaria logs --json | jq .message",
    "talaria logs --audit       who did what",
)
@click.option("-f", "--follow", is_flag=True, help="Also show new lines, until Ctrl-C.")
@click.option("-n", "--lines", default=50, show_default=True, type=click.IntRange(0), help="How many.")
@click.option("--json", "as_json", is_flag=True, help="Print the lines as JSON objects.")
@click.option("--audit", is_flag=True, help="Show the audit log: administrative actions and who did them.")
def command(invocation: Invocation, follow: bool, lines: int, as_json: bool, audit: bool) -> None:
    """Show the log of a gateway that runs without a terminal, for example as a service.

    A gateway in a terminal writes its log to that terminal, and this command says to which. The files are in
    logs/ in the home: at most four of 5 MiB. The audit log has at most ten, which other lines cannot fill; a
    gateway in a terminal writes it too.
    """
    path = _find_audit(invocation.read_home()) if audit else _find(invocation)
    shown: Callable[[str], str] = visible_json if as_json else readable
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in _last(path, file, lines):
            click.echo(shown(line))
        sys.stdout.flush()
        if follow:
            for line in following(path, file):
                click.echo(shown(line))
                sys.stdout.flush()


def _find(invocation: Invocation) -> Path:
    """Return the log file. Tells on stderr if the running gateway writes elsewhere. Raises `NotFound`."""
    home = invocation.read_home()
    running = _running_elsewhere(home)
    for name in (GATEWAY_LOG, CONSOLE_LOG):
        if (home.logs / name).is_file():
            if running:
                click.echo(f"{running} These lines are of an earlier one:", err=True)
            return home.logs / name
    raise NotFound(
        f"There is no log in {home.logs}. {running or 'No gateway without a terminal has run here.'}",
        "Only a gateway without a terminal writes files, such as one that `talaria service install` keeps "
        "running, or `talaria serve 2>&1 | cat`.",
    )


def _find_audit(home: Home) -> Path:
    if (path := home.logs / AUDIT_LOG).is_file():
        return path
    raise NotFound(
        f"There is no audit log in {home.logs}. No gateway has run on this home since the audit log exists.",
        "`talaria serve` creates it.",
    )


def _running_elsewhere(home: Home) -> str:
    """Return where the running gateway logs if that is a terminal, else an empty text."""
    info = home.read_gateway() if home.is_locked() else None
    if info is None:
        return ""
    try:
        stream = str(Path(f"/proc/{info.pid}/fd/2").readlink())
    except OSError:  # another system, or the process of another user
        return f"The running gateway (pid {info.pid}) may write to a terminal of its own."
    is_terminal = stream.startswith(("/dev/pts/", "/dev/tty", "/dev/console"))
    return f"The running gateway (pid {info.pid}) logs to its terminal, {stream}." if is_terminal else ""


def _last(path: Path, file: IO[str], count: int) -> Iterator[str]:
    """Return the last lines of the previous and the current file."""
    kept: deque[str] = deque(maxlen=count)
    before = older(path, 1)
    if before.is_file():
        kept.extend(before.read_text(encoding="utf-8", errors="replace").splitlines())
    for line in file:
        kept.append(line.rstrip("\n"))
    return iter(kept)


def following(path: Path, file: IO[str], wait: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """Yield whole lines as they are written. A rotated file is read to its end before the new one."""
    with contextlib.ExitStack() as opened:
        rest = ""
        while True:
            was_current = _is_current(path, file)  # checked before reading: a rotated file gets no more lines
            data = file.read()
            *whole, rest = (rest + data).split("\n")
            yield from whole
            if was_current:
                wait(_POLL_SECONDS)
                continue
            opened.close()
            try:
                file = opened.enter_context(path.open(encoding="utf-8", errors="replace"))
            except OSError:
                wait(_POLL_SECONDS)


def _is_current(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except OSError:
        return False


def readable(line: str) -> str:
    """Return a JSON line as a terminal would show it. Other lines are returned with escapes."""
    try:
        written = json.loads(line)
        created = datetime.fromisoformat(written.pop("ts"))
        level, logger, message = written.pop("level"), written.pop("logger"), written.pop("message")
        exception = written.pop("exception", "")
    except (ValueError, KeyError, AttributeError, TypeError):
        return escape(line)
    text = as_text(Line(created.timestamp(), level, logger, message, written, exception), str)
    return f"{created.astimezone():%Y-%m-%d} {text}"
