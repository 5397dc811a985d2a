"""`talaria open`: the web page of the running gateway, logged in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import webbrowser
from contextlib import suppress
from html import escape
from pathlib import Path

import click

from talaria.access.credentials import CODE_MARK, CODE_SECONDS, link
from talaria.cli.home_gateway import running_gateway
from talaria.cli.options import Invocation, run_loop, verb
from talaria.config.home import Home
from talaria.core.errors import NotFound
from talaria.core.whole_files import write_new


@verb("open", "talaria open", "talaria open --print")
@click.option("--print", "print_only", is_flag=True, help="Print the link and open nothing.")
def command(invocation: Invocation, print_only: bool) -> None:
    """Open the web page in a browser, logged in.

    Each call makes a new link. It works once, within ten minutes, and logs the browser in for 30 days. If no
    browser can be started, the link is printed.
    """
    login_link = run_loop(_new_link(invocation))
    home = invocation.read_home()
    if not print_only and _has_display():
        if _is_confined(_browser()):
            text = "Your browser is a snap or flatpak, which cannot read the home. Open this link in it:"
            click.echo(text, err=True)
        elif webbrowser.open(_write_page(home, login_link).as_uri()):
            text = "Opened in your browser. If no page appears, run `talaria open --print` for the link."
            click.echo(invocation.spoken(text), err=True)
            return
    click.echo(login_link)


def _write_page(home: Home, login_link: str) -> Path:
    """Write a page that sends a browser to the link, readable for this user only. Other users can read every
    command line, so the browser's must not have the link. The gateway removes the page after the login."""
    for old in home.login_pages.glob("*.html"):
        with suppress(FileNotFoundError):
            if old.stat().st_mtime < time.time() - CODE_SECONDS:
                old.unlink()
    home.login_pages.mkdir(mode=0o700, exist_ok=True)
    page = home.login_page(login_link.partition(CODE_MARK)[2])
    address = escape(login_link)
    refresh = f'<meta http-equiv="refresh" content="0; url={address}">'
    write_new(page, f'<!doctype html>{refresh}<a href="{address}">Open Talaria</a>\n'.encode())
    return page


def _browser() -> Path | None:
    """Return the program of the browser that would be started, or the file that describes it."""
    if named := os.environ.get("BROWSER", "").partition(os.pathsep)[0].split():
        return Path(os.path.realpath(shutil.which(named[0]) or named[0]))
    if (settings := shutil.which("xdg-settings")) is None:
        return None
    asked = [settings, "get", "default-web-browser"]
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=False)  # noqa: S603
        folders = os.environ.get("XDG_DATA_DIRS", "/usr/local/share:/usr/share").split(os.pathsep)
        files = (Path(folder) / "applications" / done.stdout.strip() for folder in folders)
        return next((file for file in files if file.is_file()), None)
    return None


def _is_confined(browser: Path | None) -> bool:
    """Return whether the browser is a snap or a flatpak: these read no hidden folders such as the home."""
    return browser is not None and not {"snap", "snapd", "flatpak"}.isdisjoint(browser.parts)


async def _new_link(invocation: Invocation) -> str:
    async with running_gateway(invocation.read_home(), os.environ) as client:
        if client is None:
            raise NotFound(
                "No gateway runs on this home, so there is no page to open.",
                f"Start it in another terminal: {invocation.command_line('serve')}",
            )
        return link(client.url, await client.login_code())


def _has_display() -> bool:
    """Return whether a browser window can open here: not a text browser, and not over ssh."""
    if sys.platform == "darwin":
        return "SSH_CONNECTION" not in os.environ
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
