"""The browsers of sessions: started with the first call, closed when unused, restored from what was kept."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from talaria.core.errors import ToolError
from talaria.core.ids import SessionId
from talaria.core.tasks import Tasks, finish_in_task, stop
from talaria.core.text import clean_line
from talaria.core.units import format_age, format_size
from talaria.core.whole_files import replace_file
from talaria.net.host_rules import NetworkSettings
from talaria.workspace.browser.devtools import BrowserGone, DevTools, DevToolsError
from talaria.workspace.browser.page import Tab, TabState
from talaria.workspace.browser.settings import BrowserSettings, find_program
from talaria.workspace.network import SessionNetworks
from talaria.workspace.places import SessionPlaces, make_private, remove_tree, session_folder
from talaria.workspace.sandbox.command import ProcessLimits, SandboxCommand, hand_over, shell
from talaria.workspace.sandbox.group import below
from talaria.workspace.sandbox.process import SandboxedProcess, open_process

if TYPE_CHECKING:
    from talaria.core.slots import FairThreads
    from talaria.workspace.sandbox.choice import Sandboxes

_log = logging.getLogger("talaria.workspace.browser")
FOLDER: Final = "browser"
MOST_TABS: Final = 10
MOST_OPEN: Final = 8  # browsers; the one that was unused for longest makes room
MAX_DOWNLOAD: Final = 100 << 20  # of all that is downloaded in one call, too
MOST_DOWNLOADS: Final = 20
_LOOK_SECONDS: Final = 2.0
_RESTORE_SECONDS: Final = 20.0
_SAVE_AGAIN_SECONDS: Final = 60.0  # pages change without a call, too
_START_SECONDS: Final = 30.0
_SAVE_SECONDS: Final = 5.0
_LIMITS: Final = ProcessLimits(
    memory=16 << 30,  # the engine reserves far more than it uses; `max_memory` is what counts
    processes=2000,
    seconds=366 * 86400.0,
    file_size=2 * MAX_DOWNLOAD,
    open_files=8192,
)
# Everything that would use the network by itself is off. The network of the sandbox has no other way than the
# proxy, so these flags save work; they are not what keeps pages in.
_FLAGS: Final = (
    "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--no-default-browser-check",
    "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--disable-default-apps", "--disable-domain-reliability",
    "--disable-client-side-phishing-detection", "--disable-crash-reporter", "--disable-breakpad",
    "--no-pings", "--disable-quic", "--disable-extensions", "--mute-audio", "--hide-scrollbars",
    "--password-store=basic",
    "--disable-features=Translate,OptimizationHints,MediaRouter,AutofillServerCommunication",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp", "--window-size=1280,900",
    "--disk-cache-size=33554432", "--lang=en-US", "--proxy-bypass-list=<-loopback>",
)  # fmt: skip


class Kept(msgspec.Struct):
    """State of a browser that is stored beside its profile."""

    tabs: list[TabState] = []
    active: int = 0
    cookies: list[dict[str, Any]] = []
    generation: int = 0


@dataclass(slots=True)
class Download:
    name: str
    received: int = 0
    total: int = 0
    state: str = "inProgress"
    why: str = ""


@dataclass(slots=True, eq=False)
class Browser:
    """A running browser of one session. `downloads` are by the names of their files in `folder`; `refused`
    counts those that were too many. `generation` is that of the newest document in its tabs."""

    process: SandboxedProcess
    folder: Path
    tmp: str  # the temporary folder, inside the sandbox
    tabs: dict[str, Tab] = field(default_factory=dict)
    active: str = ""
    downloads: dict[str, Download] = field(default_factory=dict)
    refused: int = 0
    generation: int = 0
    tools: DevTools = field(init=False)
    _sessions: dict[str, Tab] = field(default_factory=dict)
    _tasks: Tasks = field(default_factory=Tasks)

    def __post_init__(self) -> None:
        self.tools = DevTools(self.process, self.hear)

    @property
    def tab(self) -> Tab:
        return self.tabs[self.active]

    def hear(self, session: str, name: str, params: Mapping[str, Any]) -> None:
        if session:
            if (tab := self._sessions.get(session)) is not None:
                tab.hear(name, params)
            return
        match name:
            case "Target.targetCreated":
                info = params["targetInfo"]
                if info["type"] == "page" and info.get("openerId"):
                    self._tasks.start(self._adopt(info["targetId"]), "new tab")
            case "Target.targetDestroyed":
                self._lose(params["targetId"])
            case "Target.targetCrashed":
                if (tab := self.tabs.get(params["targetId"])) is not None:
                    tab.crash()
            case "Browser.downloadWillBegin":
                self._take_download(params["guid"], params["suggestedFilename"])
            case "Browser.downloadProgress":
                self._note_progress(params)

    def list_tabs(self) -> list[str]:
        """Return a line for each tab, with a mark at the one that is shown."""
        return [
            f"{'→' if target == self.active else ' '} {number}. {clean_line(tab.url, 300)}"
            for number, (target, tab) in enumerate(self.tabs.items(), 1)
        ]

    async def new_tab(self) -> Tab:
        """Open an empty tab and show it. Raises `ToolError` if there are too many."""
        if len(self.tabs) >= MOST_TABS:
            raise ToolError(f"There are {MOST_TABS} tabs already.", "Close one with browser_tabs.")
        made = await self.tools.call("Target.createTarget", {"url": "about:blank"})
        return await self._attach(made["targetId"])

    async def add_cookies(self, cookies: Sequence[Mapping[str, Any]]) -> None:
        await self.tools.call("Storage.setCookies", {"cookies": cookies})

    async def close_tab(self, target: str) -> None:
        await self.tools.call("Target.closeTarget", {"targetId": target})
        self._lose(target)
        if not self.tabs:
            await self.new_tab()

    async def settled(self) -> None:
        """Wait until new tabs are known, and shown."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=5.0)
        if not self.tabs:
            await self.new_tab()

    async def revive(self) -> str:
        """Open pages again that have crashed. Return a note for the model."""
        crashed = [tab for tab in self.tabs.values() if tab.is_crashed]
        for tab in crashed:
            with suppress(DevToolsError):
                await tab.go(tab.url)
            if tab.is_crashed:
                await self.close_tab(tab.target)
        await self.settled()
        urls = ", ".join(clean_line(tab.url, 200) for tab in crashed)
        return f"These pages had crashed and were opened again: {urls}." if crashed else ""

    def new_generation(self) -> int:
        self.generation += 1
        return self.generation

    async def _adopt(self, target: str) -> None:
        """Take over a tab that a page has opened; one too many is closed."""
        if len(self.tabs) >= MOST_TABS:
            await self._tell("Target.closeTarget", targetId=target)
            return
        with suppress(DevToolsError):
            tab = await self._attach(target)
            await tab.settle()

    async def _attach(self, target: str) -> Tab:
        given = {"targetId": target, "flatten": True}
        attached = await self.tools.call("Target.attachToTarget", given)
        session = attached["sessionId"]
        tab = self._sessions[session] = Tab(self.tools, target, session, self.new_generation)
        self.tabs[target] = tab
        self.active = target
        await tab.open()
        tree = await tab.call("Page.getFrameTree")
        tab.url = tree["frameTree"]["frame"]["url"]
        return tab

    def _lose(self, target: str) -> None:
        if (tab := self.tabs.pop(target, None)) is None:
            return
        tab.crash()
        self._sessions.pop(tab.session, None)
        if self.active == target:
            self.active = next(reversed(self.tabs), "")

    def _take_download(self, guid: str, suggested: str) -> None:
        if len(self.downloads) >= MOST_DOWNLOADS:
            self.refused += 1
            self._tasks.start(self._tell("Browser.cancelDownload", guid=guid), "cancel a download")
            return
        self.downloads[guid] = Download(Path(suggested).name or "download")

    def _note_progress(self, params: Mapping[str, Any]) -> None:
        download = self.downloads.get(params["guid"])
        if download is None:
            return
        download.received, download.total = int(params["receivedBytes"]), int(params["totalBytes"])
        download.state = params["state"]
        received = sum(each.received for each in self.downloads.values())
        if download.state == "inProgress" and max(received, download.total) > MAX_DOWNLOAD:
            download.why = f"it is larger than {format_size(MAX_DOWNLOAD)}"
            if received > download.received:
                download.why += ", with the others"
            self._tasks.start(self._tell("Browser.cancelDownload", guid=params["guid"]), "cancel a download")

    async def _tell(self, method: str, **params: str) -> None:
        with suppress(DevToolsError):
            await self.tools.call(method, params)


@dataclass(slots=True, eq=False)
class _Slot:
    """A session's browser in this process, if it is open. The model is told `note` with the next call."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    browser: Browser | None = None
    is_starting: bool = False
    scope: AsyncExitStack | None = None
    used_at: float = 0.0
    saved_at: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class SessionBrowser:
    """The access of tools to the browser of one session. `claim` is awaited before it is used."""

    _browsers: SessionBrowsers | None
    _places: SessionPlaces
    _claim: Callable[[], Awaitable[None]]

    @asynccontextmanager
    async def use(self) -> AsyncIterator[tuple[Browser, str]]:
        """Give the browser for one call, and a note for the model. Raises `ToolError`."""
        if self._browsers is None:
            raise ToolError("There is no browser here.", "Use web_fetch to read pages.")
        await self._claim()
        async with self._browsers.use(self._places) as used:
            yield used

    def tabs(self) -> list[str]:
        """Return a line for each tab; none if the browser is closed."""
        return [] if self._browsers is None else self._browsers.tabs_of(self._places.session_id)

    async def picture(self) -> bytes | None:
        """Return a PNG of the tab that is shown; None if the browser is closed or busy."""
        return None if self._browsers is None else await self._browsers.picture(self._places.session_id)

    def refusal(self, host: str) -> str:
        """Return why the network refused a host since the last call. Pages and the browser itself ask for
        others, which nobody has to know."""
        if self._browsers is None:
            return ""
        refusals = self._browsers.networks.take_refusals(self._places.session_id)
        return next((each for each in refusals if each.startswith((f"{host}:", f"{host} ", f"[{host}]"))), "")

    async def retire(self) -> bool:
        """Save and close the browser until a call needs it. Return whether it was open."""
        return self._browsers is not None and await self._browsers.retire(self._places.session_id)


class SessionBrowsers:
    """The browsers of all sessions of this process, as `Belongings`. Nothing is started before a call.

    A session's browser has a sandbox and a network of its own. Its state is in the session's folder: the
    browser's profile, and what a profile does not keep (tabs, and cookies and storage of their sessions),
    which is saved after each call, and every minute.
    """

    def __init__(
        self,
        home: Path,
        sandboxes: Sandboxes,
        threads: FairThreads,
        *,
        settings: Callable[[], BrowserSettings],
        network: Callable[[], NetworkSettings],
        count: Callable[[str, int, int], None] = lambda outcome, sent, received: None,
    ) -> None:
        self._home = Path(os.path.realpath(home))
        self._sandboxes = sandboxes
        self._threads = threads
        self._settings = settings
        self._network = network
        self.networks = SessionNetworks(
            home, partial(_reach, network), threads=threads, count=count, folder=f"{FOLDER}-network"
        )
        self.restore_seconds = _RESTORE_SECONDS
        self.save_again_seconds = _SAVE_AGAIN_SECONDS
        self._slots: dict[SessionId, _Slot] = {}
        self._watching: asyncio.Task[None] | None = None

    @property
    def open_count(self) -> int:
        return sum(slot.browser is not None for slot in self._slots.values())

    @asynccontextmanager
    async def use(self, places: SessionPlaces) -> AsyncIterator[tuple[Browser, str]]:
        """Give the session's browser for one call, and a note for the model. Starts and restores it if it
        does not run. Raises `ToolError`."""
        async with self._held(places.session_id) as slot:
            if slot.browser is not None and (slot.browser.tools.is_gone or slot.browser.process.has_ended):
                words = slot.browser.tools.last_words()
                slot.note = slot.note or f"The browser had ended ({words}) and was opened again."
                await self._shut(slot)
            if slot.browser is None:
                await self._make_room()
                slot.is_starting = True
                try:
                    await self._start(places, slot)
                finally:
                    slot.is_starting = False
            browser = slot.browser
            assert browser is not None
            try:
                note = " ".join(filter(None, (slot.note, await browser.revive())))
                slot.note = ""
                yield browser, note
            except BrowserGone as error:
                await self._shut(slot)
                text, slot.note = slot.note or f"The browser did not answer and was ended: {error}.", ""
                raise ToolError(text, "Try again: it opens with its last state.") from error
            except DevToolsError as error:
                hint = "Look at the page with browser_read, and try again or in another way."
                raise ToolError(f"The browser could not do this: {error}.", hint) from error
            finally:
                slot.used_at = slot.saved_at = asyncio.get_running_loop().time()
            await self._save(places.session_id, browser)

    @asynccontextmanager
    async def _held(self, session_id: SessionId) -> AsyncIterator[_Slot]:
        """Give the session's slot, locked. The one that was waited for may be dropped by now."""
        while True:
            slot = self._slots.setdefault(session_id, _Slot())
            async with slot.lock:
                if self._slots.get(session_id) is slot:
                    yield slot
                    return

    def tabs_of(self, session_id: SessionId) -> list[str]:
        """Return a line for each open tab of a session."""
        slot = self._slots.get(session_id)
        return slot.browser.list_tabs() if slot is not None and slot.browser is not None else []

    async def picture(self, session_id: SessionId) -> bytes | None:
        """Return a PNG of the page that a session shows, with dots in secret fields. None if no browser is
        open, or it is busy."""
        slot = self._slots.get(session_id)
        if slot is None or slot.lock.locked():
            return None
        async with slot.lock:
            tab = slot.browser.tabs.get(slot.browser.active) if slot.browser is not None else None
            with suppress(DevToolsError, TimeoutError):
                async with asyncio.timeout(_SAVE_SECONDS):
                    return await tab.picture() if tab is not None and tab.dialog is None else None
        return None

    async def retire(self, session_id: SessionId, note: str = "") -> bool:
        """Save and close the session's browser. The next call is told `note`. Return whether it was open."""
        slot = self._slots.get(session_id)
        if slot is None:
            return False
        async with slot.lock:
            if (browser := slot.browser) is None:
                return False
            await self._save(session_id, browser)
            with suppress(DevToolsError, TimeoutError):
                await browser.tools.call("Browser.close", seconds=5.0)  # it writes its profile
                async with asyncio.timeout(5.0):
                    await browser.process.ended()
            await self._shut(slot)
            slot.note = note
            return True

    async def end(self, session_id: SessionId) -> None:
        """Close the session's browser and forget its state. A call that comes meanwhile waits."""
        folder = session_folder(self._home, session_id)
        async with self._held(session_id) as slot:
            try:
                await self._shut(slot)
                await self.networks.end(session_id)
                for name in (FOLDER, f"{FOLDER}-network"):
                    if (folder / name).exists():
                        await self._threads.run(session_id, remove_tree, folder / name)
            finally:
                if slot.browser is None:
                    del self._slots[session_id]

    async def close(self) -> None:
        """Save and close all browsers."""
        if self._watching is not None:
            await stop(self._watching)
        await asyncio.gather(*map(self.retire, tuple(self._slots)))
        await self.networks.close()

    # -- start and end ------------------------------------------------------------------------------------

    async def _start(self, places: SessionPlaces, slot: _Slot) -> None:
        if self._network().fetch == "off":
            raise ToolError("The web is switched off here.", 'The operator sets network.fetch = "public".')
        program = find_program(self._settings())
        if program is None:
            raise ToolError(
                "There is no Chromium on this machine.", "`talaria doctor` says how to install it."
            )
        sandbox = await self._sandboxes.get()
        if sandbox.name != "bubblewrap":
            text = "A browser needs the sandbox bubblewrap."
            raise ToolError(text, "`talaria doctor` says what is missing.")
        folder = places.session / FOLDER
        await self._threads.run(places.session_id, _make_folders, folder)
        own = replace(places, folder=folder / "profile", home=folder / "home")
        access = await self.networks.access(own, sandbox)
        if access is None:
            why = self.networks.reading().trouble or "commands cannot have one here"
            raise ToolError(f"The browser has no network: {why}", "`talaria doctor` says more.")
        command = SandboxCommand(
            (),
            own.folder,
            own.home,
            folder / "tmp",
            limits=_LIMITS,
            network=access,
            has_input=True,
            may_nest=True,
        )
        tmp = sandbox.temporary(command)
        flags = [
            *_FLAGS,
            f"--user-data-dir={own.folder}",
            f"--disk-cache-dir={tmp}/cache",
            f"--proxy-server={access.environ['HTTP_PROXY']}",
            "about:blank",
        ]
        # The protocol is on the descriptors 3 and 4; its own output is of no use.
        words = shlex.join((program, *flags))
        argv = shell(f"exec {words} 3<&0 4>&1 0</dev/null 1>/dev/null")
        async with AsyncExitStack() as scope:
            process = await scope.enter_async_context(open_process(sandbox, replace(command, argv=argv)))
            browser = Browser(process, folder, tmp)
            scope.push_async_callback(browser.tools.close)
            try:
                await self._prepare(browser)
                note = await self._restore(places.session_id, browser)
            except DevToolsError as error:
                raise ToolError(
                    f"The browser could not be started: {error}.", "Run `talaria doctor`."
                ) from error
            slot.scope, slot.browser = scope.pop_all(), browser
            slot.note = " ".join(filter(None, (slot.note, note)))
        slot.used_at = asyncio.get_running_loop().time()
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name="browsers of sessions")

    async def _prepare(self, browser: Browser) -> None:
        tools = browser.tools
        await tools.call("Browser.getVersion", seconds=_START_SECONDS)
        behavior = {
            "behavior": "allowAndName",
            "downloadPath": f"{browser.tmp}/downloads",
            "eventsEnabled": True,
        }
        await tools.call("Browser.setDownloadBehavior", behavior)
        await tools.call("Target.setDiscoverTargets", {"discover": True})
        targets = (await tools.call("Target.getTargets"))["targetInfos"]
        for each in targets:
            if each["type"] == "page":
                await browser._attach(each["targetId"])
        if not browser.tabs:
            await browser.new_tab()

    async def _restore(self, session_id: SessionId, browser: Browser) -> str:
        """Open the tabs as they were kept. Return a note about those that could not be opened."""
        kept = await self._threads.run(session_id, _read_kept, browser.folder)
        browser.generation = kept.generation
        if kept.cookies:
            await browser.add_cookies([*map(_settable, kept.cookies)])
        opened: list[tuple[Tab, TabState]] = []
        for state in kept.tabs[:MOST_TABS]:
            opened.append((await browser.new_tab() if opened else browser.tab, state))
        hung = await asyncio.gather(*(self._restore_tab(tab, state) for tab, state in opened))
        lost = []
        for (tab, state), is_hung in zip(opened, hung, strict=True):
            if is_hung:
                await browser.close_tab(tab.target)
                lost.append(clean_line(state.url))
        if kept.active < len(opened) and opened[kept.active][0].target in browser.tabs:
            browser.active = opened[kept.active][0].target
        return f"These tabs did not answer and were closed: {', '.join(lost)}." if lost else ""

    async def _restore_tab(self, tab: Tab, state: TabState) -> bool:
        """Open a tab as it was kept. Return whether its page hangs."""
        if not state.url.startswith(("http://", "https://")):
            return False
        with suppress(DevToolsError, TimeoutError):
            async with asyncio.timeout(self.restore_seconds):
                await tab.restore(state)
        if tab.dialog is not None or tab.is_crashed:
            return tab.is_crashed
        try:
            await tab.call("Runtime.evaluate", {"expression": "1"}, seconds=3.0)
        except DevToolsError:
            return tab.dialog is None
        return False

    async def _save(self, session_id: SessionId, browser: Browser) -> None:
        """Store what a profile does not keep. The file is ours alone. A failure is only logged: the call has
        done its work."""
        try:
            async with asyncio.timeout(_SAVE_SECONDS):
                cookies = (await browser.tools.call("Storage.getCookies"))["cookies"]
                states = await asyncio.gather(*(tab.state() for tab in browser.tabs.values()))
            active = list(browser.tabs).index(browser.active) if browser.active in browser.tabs else 0
            kept = msgspec.json.encode(Kept(states, active, cookies, browser.generation))
            await self._threads.run(session_id, _write_kept, browser.folder, kept)
        except (DevToolsError, TimeoutError, OSError) as error:
            _log.warning("the browser of %s could not be saved: %s", session_id, error or "it took too long")

    async def _shut(self, slot: _Slot) -> None:
        """End the browser's process, and what belongs to it."""
        scope, slot.scope, slot.browser = slot.scope, None, None
        if scope is not None:
            await finish_in_task(scope.aclose())

    async def _make_room(self) -> None:
        """Close the browsers that were unused for longest. Raises `ToolError` if all are in use."""
        opened = [each for each in self._slots.items() if each[1].browser is not None or each[1].is_starting]
        idle = [(slot.used_at, key) for key, slot in opened if not slot.lock.locked()]
        too_many = len(opened) - MOST_OPEN + 1
        for _, key in sorted(idle)[: max(0, too_many)]:
            await self.retire(key)
        if too_many > len(idle):
            raise ToolError(f"{MOST_OPEN} browsers are in use already.", "Try again in a minute.")

    async def _watch(self) -> None:
        """Close browsers that are unused or too large. Ends when none is open."""
        while self.open_count:
            await asyncio.sleep(_LOOK_SECONDS)
            now, settings = asyncio.get_running_loop().time(), self._settings()
            for key, slot in tuple(self._slots.items()):
                if (browser := slot.browser) is None:
                    continue
                memory = await self._threads.run(key, memory_of, browser.process.pid)
                if slot.browser is not browser:
                    continue
                if memory > settings.max_memory:
                    why = f"it used {format_size(memory)} (browser.max_memory)"
                    _log.warning("the browser of %s is closed: %s", key, why)
                    note = f"The browser was closed because {why}, and opened again."
                    if slot.lock.locked():  # the call that uses it fails with this
                        slot.note = f"The browser was closed because {why}."
                        await browser.process.kill()
                    else:
                        await self.retire(key, note)
                elif not slot.lock.locked() and now - slot.used_at >= settings.idle_close.total_seconds():
                    _log.info("the browser of %s is closed after %s", key, format_age(now - slot.used_at))
                    await self.retire(key)
                elif not slot.lock.locked() and now - slot.saved_at >= self.save_again_seconds:
                    async with slot.lock:
                        slot.saved_at = now
                        await self._save(key, browser)
            for key in [each for each, slot in self._slots.items() if _is_over(slot)]:
                del self._slots[key]


def memory_of(pid: int) -> int:
    """Return the bytes that a process and all below it have for themselves: shared ones do not count."""
    total = 0
    for each in (pid, *below(pid)):
        with suppress(OSError, ValueError, IndexError):
            pages = Path(f"/proc/{each}/statm").read_text().split()
            total += int(pages[1]) - int(pages[2])
    return total * os.sysconf("SC_PAGE_SIZE")


def _is_over(slot: _Slot) -> bool:
    return slot.browser is None and not slot.lock.locked() and not slot.note


def _reach(network: Callable[[], NetworkSettings]) -> NetworkSettings:
    """Return the rules for browsers, as those of commands: pages may load from every public host."""
    settings = network()
    if settings.fetch == "off":
        return msgspec.structs.replace(settings, commands="off")
    return msgspec.structs.replace(settings, commands="open")


def _make_folders(folder: Path) -> None:
    """Make the folders that the browser writes. What an earlier one has left in the temporary one goes."""
    make_private(folder)
    inner = [folder / name for name in ("profile", "home", "tmp")]
    remove_tree(inner[2])
    for each in inner:
        make_private(each)
    (inner[2] / "downloads").mkdir(mode=0o700)
    (inner[2] / "uploads").mkdir(mode=0o700)
    for lock in inner[0].glob("Singleton*"):
        lock.unlink(missing_ok=True)
    hand_over(tuple(inner))


def _read_kept(folder: Path) -> Kept:
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((folder / "state.json").read_bytes(), type=Kept)
    return Kept()


def _write_kept(folder: Path, data: bytes) -> None:
    replace_file(folder / "state.json", data, is_durable=False)


_SETTABLE = ("name", "value", "domain", "path", "secure", "httpOnly", "sameSite", "expires", "priority",
             "sourceScheme", "sourcePort", "partitionKey")  # fmt: skip


def _settable(cookie: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: cookie[key] for key in _SETTABLE if key in cookie and not (key == "expires" and cookie[key] < 0)
    }
