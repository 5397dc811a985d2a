"""`talaria browser`: logs the browser of a session in."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from talaria.cli.operations import Verb, add_verbs
from talaria.cli.options import Invocation, group
from talaria.core.errors import Refused
from talaria.core.text import clean_line
from talaria.operations.browser import AddedCookies, CookiesBody

_SHOWN = 5
_PROGRAMS = ("google-chrome", "chromium", "chromium-browser", "brave-browser", "microsoft-edge")
_OF_MACOS = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
_CLOSED = Refused(
    "no_browser",
    "The window was closed before its cookies were read.",
    "Run the command again, and press Enter here while the window is open.",
)


@group("browser", "talaria browser login work", "talaria browser login work --file cookies.txt")
def command() -> None:
    """Log the browser of a session in, with cookies of your own browser."""


def _read(invocation: Invocation, wanted: CookiesBody, options: dict[str, Any]) -> CookiesBody:
    path: Path | None = options["file"]
    if path is not None:
        return msgspec.structs.replace(wanted, cookies=path.read_text(errors="replace"))
    program = find_window_program(os.environ)
    if os.geteuid() == 0:
        click.echo("As root, the window has no sandbox: open only sites that you trust.", err=True)

    def wait() -> None:
        click.prompt("Log in there, then press Enter here", default="", show_default=False, prompt_suffix=" ")

    return msgspec.structs.replace(wanted, cookies=window_cookies(program, options["url"], wait))


def find_window_program(environ: Mapping[str, str]) -> str:
    """Return a browser that can open a window here. Raises `Refused`."""
    hint = "Export the cookies of the site from your browser, and name the file: --file cookies.txt."
    is_mac = sys.platform == "darwin"
    if not (is_mac or environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")):
        raise Refused("no_browser", "There is no display here, so no window can be opened.", hint)
    found = next(filter(None, map(shutil.which, (*_PROGRAMS, *((_OF_MACOS,) if is_mac else ())))), None)
    if found is None:
        raise Refused("no_browser", "Neither Chrome nor Chromium was found.", f"Install one. Or: {hint}")
    return found


def window_cookies(program: str, url: str, wait: Callable[[], None]) -> str:
    """Open a window with a profile of its own, and return its cookies as JSON when `wait` returns. The window
    and the profile are gone then. Raises `Refused` if the window was closed before."""
    with tempfile.TemporaryDirectory(prefix="talaria-login-", ignore_cleanup_errors=True) as profile:
        words = [program, f"--user-data-dir={profile}", "--remote-debugging-pipe", "--no-first-run"]
        words += ["--no-default-browser-check", *(["--no-sandbox"] if os.geteuid() == 0 else []), url]
        # The protocol is on the descriptors 3 and 4.
        line = f"exec {shlex.join(words)} 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null"
        with subprocess.Popen(  # noqa: S603 - the words are quoted
            ["/bin/sh", "-c", line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                wait()
                process.stdin.write(b'{"id":1,"method":"Storage.getCookies"}\0')
                process.stdin.flush()
                answer = msgspec.json.decode(_read_message(process.stdout))
                process.stdin.write(b'{"id":2,"method":"Browser.close"}\0')
                process.stdin.flush()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
            except BrokenPipeError:
                with suppress(BrokenPipeError):  # what was not written would be written again
                    process.stdin.close()
                raise _CLOSED from None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    return msgspec.json.encode(answer["result"]["cookies"]).decode()


def _read_message(output: IO[bytes]) -> bytes:
    message = bytearray()
    while (byte := output.read(1)) != b"\0":
        if not byte:
            raise _CLOSED
        message += byte
    return bytes(message)


def _show(invocation: Invocation, wanted: CookiesBody, answer: AddedCookies) -> None:
    more = f" and {len(answer.sites) - _SHOWN} more sites" if len(answer.sites) > _SHOWN else ""
    sites = ", ".join(clean_line(site, 100) for site in answer.sites[:_SHOWN])
    click.echo(f"Added {answer.cookies} cookies of {sites}{more} to the browser of {wanted.x}.")


FILE = click.Option(
    ["--file"],
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with cookies: a cookies.txt, or JSON, as extensions of browsers export them. Without it, a "
    "window opens, in which you log in.",
)
URL = click.Option(["--url"], metavar="URL", default="about:blank", help="Page that the window opens.")
add_verbs(
    command,
    {"login": Verb(prepare=_read, show=_show, options=(FILE, URL), without=frozenset({"cookies"}))},
)
