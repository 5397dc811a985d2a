"""A tab of a browser: reading it as text, and doing what a person could do there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from talaria.core.errors import ToolError
from talaria.workspace.browser.devtools import BrowserGone, DevTools, DevToolsError

LOAD_SECONDS: Final = 20.0
_QUIET_MS: Final = 1500
_STATE_CHARS: Final = 1 << 20
_WORLD: Final = "talaria"
_NEW: Final = "new"
_KEYS: Final[Mapping[str, tuple[str, int, str]]] = {
    "Enter": ("Enter", 13, "\r"),
    "Backspace": ("Backspace", 8, ""),
}
_REFILL: Final = """(([url, session, local]) => {
  if (new URL(url).origin !== location.origin) return;
  for (const [key, value] of Object.entries(session)) sessionStorage.setItem(key, value);
  for (const [key, value] of Object.entries(local))
    if (localStorage.getItem(key) === null) localStorage.setItem(key, value);
})"""
_STALE: Final = "The page has changed since: this element is not there any more. The page as it is now:"


@cache
def _outline_script() -> str:
    return Path(__file__).with_name("outline.js").read_text()


class Outline(msgspec.Struct):
    """A page as text. `guarded` are elements whose use may send a password, a payment or a file, each with
    the host, the fields, and what it is. `secret` are the fields whose values are not shown."""

    title: str
    lines: list[str]
    links: list[str]
    guarded: dict[str, tuple[str, str, str]]
    secret: list[int]
    cut: bool


class DialogOpened(DevToolsError):
    """The page stands still, because one of its scripts has opened a dialog."""


class PageCrashed(DevToolsError):
    """The process of the page has ended."""

    def __init__(self) -> None:
        super().__init__("the page crashed")


class StaleElement(ToolError):
    """The model names an element that is gone. `outline` has the page as it is now."""

    def __init__(self, outline: Outline) -> None:
        super().__init__(_STALE)
        self.outline = outline


class TabState(msgspec.Struct):
    """State of a tab that is kept: its address, its scroll position, and the storage of its page."""

    url: str
    x: float = 0
    y: float = 0
    session: dict[str, str] | None = None
    local: dict[str, str] | None = None


class Dialog(msgspec.Struct):
    """A question of a page's script, which stops the page until it is answered."""

    type: str
    message: str = ""


class Tab:
    """A tab. `generation` is new for each document of the session's tabs, and is part of the names of
    elements. Methods raise `DevToolsError`, and `ToolError` for what the model can do better."""

    def __init__(self, tools: DevTools, target: str, session: str, new_generation: Callable[[], int]) -> None:
        self._tools = tools
        self.target = target
        self.session = session
        self._new_generation = new_generation
        self.generation = 0
        self.load_seconds = LOAD_SECONDS
        self.is_crashed = False
        self.is_loading = False
        self.dialog: Dialog | None = None
        self.url = "about:blank"
        self.guarded: dict[str, tuple[str, str, str]] = {}
        self.secret: frozenset[int] = frozenset()
        self.shown: frozenset[str] = frozenset()  # the lines that the model has seen last
        self._changed = asyncio.Event()
        self._world = 0
        self._refill = ""  # the script that puts back the storage of a page that is opened again
        self._state: TabState | None = None  # as it was last

    async def open(self) -> None:
        """Begin to listen to the tab. Not to its scripts: each line that one logs would be an event."""
        await self.call("Page.enable")

    def hear(self, name: str, params: Mapping[str, Any]) -> None:
        """Take an event of the tab."""
        if name == "Page.frameStartedLoading" and params["frameId"] == self.target:
            self.is_loading = True
        elif name == "Page.frameStoppedLoading" and params["frameId"] == self.target:
            self.is_loading = False
        elif name == "Page.frameNavigated" and params["frame"]["id"] == self.target:
            frame = params["frame"]
            self.url = frame.get("unreachableUrl") or frame["url"] + frame.get("urlFragment", "")
            self._world = 0
        elif name == "Page.navigatedWithinDocument" and params["frameId"] == self.target:
            self.url = params["url"]
        elif name == "Page.javascriptDialogOpening":
            self.dialog = Dialog(params["type"], params["message"])
        elif name == "Page.javascriptDialogClosed":
            self.dialog = None
        else:
            return
        self._changed.set()

    def crash(self) -> None:
        """Note that the page's process has ended."""
        self.is_crashed, self.is_loading, self.dialog, self._world = True, False, None, 0
        self._changed.set()

    async def call(
        self, method: str, params: Mapping[str, Any] | None = None, seconds: float = 0.0
    ) -> dict[str, Any]:
        return await self._tools.call(method, params, self.session, seconds)

    async def _call_page(
        self, method: str, params: Mapping[str, Any], seconds: float = 0.0
    ) -> dict[str, Any]:
        """Make a call that scripts of the page can hold up. Raises `DialogOpened` if a dialog does so."""
        answer = asyncio.ensure_future(self.call(method, params, seconds))
        opened = asyncio.ensure_future(self._stopped())
        try:
            await asyncio.wait((answer, opened), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise PageCrashed if self.is_crashed else DialogOpened("a dialog is open")
            return answer.result()
        finally:
            opened.cancel()
            answer.cancel()

    # -- reading ------------------------------------------------------------------------------------------

    async def outline(self, *, all: bool = False, within: str = "", deep: int = 100) -> Outline:
        number = self.number(within) if within else 0
        found = await self._ask("outline", {"all": all, "within": number, "deep": deep})
        if found is None:
            raise await self.stale()
        outline = msgspec.convert(found, Outline)
        self.guarded = outline.guarded if not within else self.guarded | outline.guarded
        self.secret = frozenset(outline.secret) if not within else self.secret.union(outline.secret)
        return outline

    async def guard(self, element: str) -> None:
        """Note in `guarded` what a use of the element may send now, if it is a secret."""
        number = self.number(element)
        found = await self._ask("guard", number)
        self.guarded.pop(str(number), None)
        if found is not None:
            self.guarded[str(number)] = msgspec.convert(found, tuple[str, str, str])

    async def find(self, words: str) -> list[str]:
        found = await self._ask("search", words)
        lines: list[str] = found["lines"]
        return lines

    async def state(self) -> TabState:
        """Return what has to be kept of the tab, as it was last if its page does not tell."""
        if self.dialog is None and self.url.startswith(("http://", "https://")):
            with suppress(DevToolsError):
                found = await self._ask("state", _STATE_CHARS, seconds=3.0)
                self._state = msgspec.structs.replace(msgspec.convert(found, TabState), url=self.url)
                return self._state
        return self._state if self._state is not None and self._state.url == self.url else TabState(self.url)

    async def picture(self, *, is_whole: bool = False) -> bytes:
        """Return a PNG of what is in sight, or of the whole page."""
        more: dict[str, Any] = {}
        if is_whole:
            size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
            more = {
                "captureBeyondViewport": True,
                "clip": {
                    "x": 0,
                    "y": 0,
                    "width": min(size["width"], 4000),
                    "height": min(size["height"], 8000),
                    "scale": 1,
                },
            }
        async with self._masked():
            return _bytes(await self.call("Page.captureScreenshot", {"format": "png", **more}))

    async def pdf(self) -> bytes:
        async with self._masked():
            return _bytes(await self.call("Page.printToPDF", {"printBackground": True}, seconds=60.0))

    @asynccontextmanager
    async def _masked(self) -> AsyncIterator[None]:
        """Show dots in secret fields meanwhile."""
        is_masked = self.dialog is None and await self._ask("mask", True)
        try:
            yield
        finally:
            if is_masked:
                await self._ask("mask", False)

    # -- acting -------------------------------------------------------------------------------------------

    async def go(self, url: str) -> str:
        """Open an address. Return the browser's error, empty if there is none or a download began."""
        self.is_loading, self.is_crashed = True, False
        try:
            answer = await self._call_page("Page.navigate", {"url": url}, seconds=self.load_seconds)
        except DialogOpened:
            raise
        except BrowserGone:
            if self._tools.is_gone:
                raise
            self.is_loading = False
            await self.call("Page.stopLoading", seconds=5.0)
            return f"the server did not answer within {self.load_seconds:g} seconds"
        except DevToolsError as error:
            self.is_loading = False
            return str(error)
        if answer.get("isDownload") or answer.get("errorText") or "loaderId" not in answer:
            self.is_loading = False
        await self.settle()
        return "" if answer.get("isDownload") else str(answer.get("errorText", ""))

    async def back(self) -> bool:
        """Go back to the page before. Return False if there is none."""
        history = await self.call("Page.getNavigationHistory")
        at = history["currentIndex"]
        if at == 0:
            return False
        entry = history["entries"][at - 1]
        self.is_loading = True
        await self.call("Page.navigateToHistoryEntry", {"entryId": entry["id"]})
        await self.settle()
        return True

    async def click(self, element: str, *, times: int = 1) -> None:
        place = await self._ask("locate", self.number(element))
        if place is None:
            raise await self.stale()
        if place["disabled"]:
            raise ToolError(f"{element} is disabled.", "Fill in what the page asks for first.")
        if place["hidden"]:
            raise ToolError(f"{element} is not visible now.", "browser_read shows what is.")
        if place["covering"]:
            raise ToolError(
                f"{element} is covered by {place['covering']}.", "Close or answer what covers it first."
            )
        at = {"x": place["x"], "y": place["y"], "button": "left"}
        await self._call_page("Input.dispatchMouseEvent", {**at, "type": "mouseMoved"})
        for count in range(1, times + 1):
            for kind in ("mousePressed", "mouseReleased"):
                await self._call_page("Input.dispatchMouseEvent", {**at, "type": kind, "clickCount": count})
        await self.settle()

    async def type(self, element: str, text: str, *, clear: bool = True, submit: bool = False) -> None:
        ready = await self._ask("prepare", self.number(element), text, clear)
        if ready is None:
            raise await self.stale()
        if ready.get("problem"):
            raise ToolError(ready["problem"], "browser_read shows the fields.")
        if not ready["isSet"]:
            if clear and not text:
                await self.press("Backspace")
            elif text:
                await self._call_page("Input.insertText", {"text": text})
        if submit:
            await self.press("Enter")
        await self.settle()

    async def press(self, key: str) -> None:
        name, code, text = _KEYS[key]
        key_of = {"key": name, "code": name, "windowsVirtualKeyCode": code}
        await self._call_page("Input.dispatchKeyEvent", {**key_of, "type": "keyDown", "text": text})
        await self._call_page("Input.dispatchKeyEvent", {**key_of, "type": "keyUp"})

    async def select(self, element: str, options: Sequence[str]) -> None:
        chosen = await self._ask("select", self.number(element), list(options))
        if chosen is None:
            raise await self.stale()
        if chosen.get("problem"):
            raise ToolError(chosen["problem"], "Choose one of them, or browser_read shows the lists.")
        await self.settle()

    async def scroll(self, element: str, direction: str) -> dict[str, Any]:
        moved = await self._ask("scroll", self.number(element) if element else 0, direction)
        if moved is None:
            raise await self.stale()
        await self.settle()
        found: dict[str, Any] = moved
        return found

    async def wait(self, words: str, *, is_gone: bool, seconds: float) -> bool:
        """Wait until the page has these words, or has them no longer. Return whether that was in time."""
        until = asyncio.get_running_loop().time() + seconds
        while (left := until - asyncio.get_running_loop().time()) > 0 and self.dialog is None:
            with suppress(_NewDocument, DialogOpened):
                if await self._ask("wait", words, is_gone, int(left * 1000), seconds=left + 10, promise=True):
                    return True
        return False

    async def choose_file(self, element: str, path: str) -> None:
        """Give a file to a field. `path` is one inside the sandbox."""
        number = self.number(element)
        found = await self._evaluate(f"talaria.element({number})", by_value=False)
        if "objectId" not in found:
            raise await self.stale()
        try:
            await self.call("DOM.setFileInputFiles", {"files": [path], "objectId": found["objectId"]})
        except BrowserGone:
            raise
        except DevToolsError as error:
            raise ToolError(
                f"{element} takes no file: {error}.", "browser_read shows the file fields."
            ) from error
        await self.settle()

    async def answer_dialog(self, *, accept: bool, text: str = "") -> None:
        self.dialog = None  # before the call: the page may open the next one before the answer is here
        await self.call("Page.handleJavaScriptDialog", {"accept": accept, "promptText": text})
        await self.settle()
        await self._end_refill()

    async def evaluate(self, script: str) -> str:
        """Run a script of the model in the page's own world, and return its result as JSON."""
        params = {"expression": script, "awaitPromise": True, "returnByValue": True, "timeout": 10_000}
        answer = await self._call_page("Runtime.evaluate", params, seconds=15.0)
        if thrown := answer.get("exceptionDetails"):
            text = thrown.get("exception", {}).get("description") or thrown.get("text", "")
            raise ToolError(f"The script failed: {str(text)[:500]}", "Correct it, or do without it.")
        return json.dumps(answer["result"].get("value"), ensure_ascii=False)

    async def restore(self, state: TabState) -> None:
        """Open a tab as it was kept."""
        self.url, self._state = state.url, state
        if state.session or state.local:
            kept = json.dumps([state.url, state.session or {}, state.local or {}])
            source = {"source": f"{_REFILL}({kept})"}
            self._refill = (await self.call("Page.addScriptToEvaluateOnNewDocument", source))["identifier"]
        await self.go(state.url)
        await self._end_refill()
        if state.x or state.y:
            await self._evaluate(f"scrollTo({{left: {state.x}, top: {state.y}, behavior: 'instant'}})")

    async def _end_refill(self) -> None:
        if self._refill and self.dialog is None:
            script, self._refill = self._refill, ""
            await self._call_page("Page.removeScriptToEvaluateOnNewDocument", {"identifier": script})

    async def settle(self) -> None:
        """Wait until the page has loaded and is quiet, for a limited time, or a dialog is open."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.load_seconds
        await asyncio.sleep(0.05)  # a navigation that a click began is announced a moment later
        while self.is_loading and self.dialog is None and loop.time() < until:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._changed.wait()
        if self.dialog is None:
            with suppress(_NewDocument, DialogOpened):
                await self._ask("wait", "", False, _QUIET_MS, promise=True)

    # -- elements and the page's world ----------------------------------------------------------------------

    def name(self, line: str) -> str:
        """Return a line of the outline with the generation in the name of its element."""
        return line.replace(" @", f" @{self.generation}.", 1) if " @" in line else line

    def number(self, element: str) -> int:
        """Return the number of an element. Raises `ToolError` for no name of an element."""
        generation, _, number = element.strip().lstrip("@").partition(".")
        if not generation.isdigit() or not number.isdigit():
            raise ToolError(
                f"{element!r} does not name an element.",
                f"Use a name of the last outline, such as @{self.generation}.5.",
            )
        return int(number) if int(generation) == self.generation else -1

    async def stale(self) -> StaleElement:
        return StaleElement(await self.outline())

    async def _stopped(self) -> None:
        """Wait until the page stands still or is gone."""
        while self.dialog is None and not self.is_crashed:
            self._changed.clear()
            await self._changed.wait()

    async def _ask(self, function: str, *args: Any, seconds: float = 0.0, promise: bool = False) -> Any:
        """Return what a function of `outline.js` returns. Brings the script into a new document first."""
        words = ", ".join(json.dumps(each) for each in args)
        found = f"talaria.{function}({words})"
        kept = f"Promise.resolve({found}).then(JSON.stringify)" if promise else f"JSON.stringify({found})"
        expression = f'typeof talaria === "undefined" ? "{_NEW}" : {kept}'
        answer = await self._evaluate(expression, seconds=seconds)
        if answer.get("value") == _NEW:
            await self._evaluate(_outline_script())
            self.generation = self._new_generation()
            self.shown = frozenset()
            answer = await self._evaluate(expression, seconds=seconds)
        return json.loads(answer.get("value") or "null")

    async def _evaluate(
        self, expression: str, *, by_value: bool = True, seconds: float = 0.0
    ) -> dict[str, Any]:
        """Evaluate in the world of our own in this tab. Raises `_NewDocument` if the page went meanwhile."""
        for is_last in (False, True):
            if not self._world:
                world = {"frameId": self.target, "worldName": _WORLD}
                made = await self._call_page("Page.createIsolatedWorld", world)
                self._world = made["executionContextId"]
            params = {
                "expression": expression,
                "contextId": self._world,
                "returnByValue": by_value,
                "awaitPromise": True,
            }
            try:
                answer = await self._call_page("Runtime.evaluate", params, seconds)
            except (BrowserGone, DialogOpened, PageCrashed):
                raise
            except DevToolsError as error:
                self._world = 0
                if is_last:
                    raise _NewDocument(str(error)) from error
                continue
            if thrown := answer.get("exceptionDetails"):
                text = thrown.get("exception", {}).get("description") or thrown.get("text", "")
                raise DevToolsError(f"the page could not be read: {str(text)[:300]}")
            result: dict[str, Any] = answer["result"]
            return result
        raise AssertionError("unreachable")


class _NewDocument(DevToolsError):
    """The document went while something was asked about it."""


def _bytes(answer: Mapping[str, Any]) -> bytes:
    import base64  # noqa: PLC0415 - with the first picture

    return base64.b64decode(answer["data"])
