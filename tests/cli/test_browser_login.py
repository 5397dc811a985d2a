"""`talaria browser login` without a file: a window in which a person logs in."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from time import sleep

import pytest

from support.browsed_site import browsed_site
from support.programs import find_program, needs
from talaria.cli.browser import find_window_program, window_cookies
from talaria.core.errors import Refused
from talaria.workspace.browser.cookies import parse_cookies

LOGIN = "<script>document.cookie = 'sid=secret; max-age=9999'; fetch('/logged-in')</script>"


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A screen that nobody sees."""
    reading, writing = os.pipe()
    program = find_program("Xvfb")
    assert program is not None
    with subprocess.Popen(
        [program, "-displayfd", str(writing), "-screen", "0", "800x600x24", "-nolisten", "tcp"],
        pass_fds=(writing,),
        stderr=subprocess.DEVNULL,
    ) as screen:
        os.close(writing)
        with open(reading, "rb") as told:
            monkeypatch.setenv("DISPLAY", f":{told.readline().decode().strip()}")
        try:
            yield
        finally:
            screen.terminate()


@needs("Xvfb")
@needs("chromium")
async def test_the_cookies_of_a_window_are_read_when_the_person_has_logged_in(display: None) -> None:
    program = find_window_program(os.environ)
    waiting, done = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait() -> None:
        loop.call_soon_threadsafe(waiting.set)
        asyncio.run_coroutine_threadsafe(done.wait(), loop).result()

    async with browsed_site() as site:
        site.pages["/login-window"] = LOGIN
        reading = asyncio.ensure_future(
            asyncio.to_thread(window_cookies, program, f"{site.url}/login-window", wait)
        )
        await waiting.wait()
        while "/logged-in" not in site.paths:
            await asyncio.sleep(0.05)
        done.set()
        cookies = await reading
    assert [cookie["value"] for cookie in json.loads(cookies) if cookie["name"] == "sid"] == ["secret"]
    assert [cookie["name"] for cookie in parse_cookies(cookies)] == ["sid"]


@needs("Xvfb")
@needs("chromium")
def test_a_window_that_was_closed_says_what_to_do(display: None) -> None:
    with pytest.raises(Refused, match="was closed before") as refused:
        window_cookies("/bin/true", "about:blank", lambda: sleep(0.3))
    assert "press Enter here" in refused.value.hint


def test_without_a_display_the_hint_names_the_other_way() -> None:
    with pytest.raises(Refused, match="no display") as refused:
        find_window_program({})
    assert "--file" in refused.value.hint
