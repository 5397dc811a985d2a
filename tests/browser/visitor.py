"""A user of the web page: actions on the page, and checks of its content."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

from talaria.testing.gateway_process import GatewayProcess

# Chromium's own notes about answers that are no 2xx and connections that broke: both are meant here.
NETWORK_NOTE = "Failed to load resource"
WATCH_POLICY = """addEventListener("securitypolicyviolation",
  (event) => console.error("policy violated: " + event.violatedDirective + " " + event.blockedURI))"""


@dataclass
class Visitor:
    """`troubles` are errors of the page's code and of its security policy; `requests` are its requests."""

    page: Any
    gateway: GatewayProcess
    troubles: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    pending: set[Any] = field(default_factory=set)

    @classmethod
    async def of(cls, context: Any, gateway: GatewayProcess) -> Self:
        await context.add_init_script(WATCH_POLICY)
        visitor = cls(await context.new_page(), gateway)
        visitor.page.set_default_timeout(30_000)  # a busy machine is slow, not wrong
        visitor.page.on("console", visitor._hear)
        visitor.page.on("pageerror", lambda error: visitor.troubles.append(str(error)))
        visitor.page.on("request", visitor._follow)
        visitor.page.on("requestfinished", visitor._let_go)
        visitor.page.on("requestfailed", visitor._let_go)
        return visitor

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(NETWORK_NOTE):
            self.troubles.append(message.text)

    @property
    def url(self) -> str:
        address: str = json.loads((self.gateway.home / "gateway.json").read_text())["url"]
        return address

    async def new_link(self) -> str:
        code = (await self.gateway.call("POST", "/api/login/codes"))["code"]
        return f"{self.url}/#code={code}"

    async def follow_link(self, link: str) -> None:
        await self.page.goto(link)
        await self.page.locator("#app:visible, #login:visible").wait_for()

    async def say(self, text: str) -> None:
        await self.page.locator("#text").fill(text)
        await self.page.keyboard.press("Enter")

    async def has_written(self, text: str) -> None:
        """Wait until the message field has this text."""
        from playwright.async_api import expect

        await expect(self.page.locator("#text")).to_have_value(text, timeout=30_000)

    async def sees(self, text: str, selector: str = "#scroll") -> None:
        """Wait until the page shows this text exactly once."""
        await self.page.locator(selector).get_by_text(text).wait_for()
        assert await self.page.locator(selector).get_by_text(text).count() == 1

    async def come_back_until(self, shown: Any) -> None:
        """Return to the tab until the page shows this. It asks the gateway at each return."""
        while not await shown.count():
            await self.page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
            await self.page.wait_for_timeout(50)

    async def at_rest(self) -> None:
        """Wait until no request but a stream of events is under way, over several frames."""
        calm = 0
        while calm < 5:
            await self.page.evaluate("new Promise(requestAnimationFrame)")
            calm = 0 if self.pending else calm + 1

    def _follow(self, request: Any) -> None:
        self.requests.append(request.url)
        if not request.url.endswith("/events"):
            self.pending.add(request)

    def _let_go(self, request: Any) -> None:
        self.pending.discard(request)

    async def settled(self) -> None:
        """Wait until no turn runs and everything on the page comes from the log."""
        await self.page.locator("#stop").wait_for(state="hidden")
        await self.page.locator("#live:empty").wait_for(state="attached")

    async def conversation(self) -> list[str]:
        """Return the visible lines of the chat."""
        said, told = "> * > :is(.bubble, .words, summary)", "> :is(p, .error)"
        blocks = ":is(#log, #live) > .block"
        places = (f"{blocks} {said}", f"{blocks} {told}", "#live > p", ":is(#live, #waiting) > * > .bubble")
        pieces = self.page.locator(", ".join(places))
        texts: list[str] = await pieces.all_text_contents()  # a tab behind another is not laid out
        return [" ".join(text.split()) for text in texts]

    async def count_in_every_frame(self, text: str) -> Callable[[], Awaitable[int]]:
        """Count how often the text is on the page, and keep the maximum over all frames from now on."""
        await self.page.evaluate(
            """(text) => {
              const scroll = document.getElementById("scroll");
              window.most = 0;
              const look = () => {
                window.most = Math.max(most, scroll.textContent.split(text).length - 1);
                requestAnimationFrame(look);
              };
              look();
            }""",
            text,
        )

        async def most() -> int:
            found: int = await self.page.evaluate("most")
            return found

        return most

    async def name(self) -> str:
        address: str = await self.page.evaluate("location.hash")
        return address.removeprefix("#chat=")

    async def entries(self) -> list[dict[str, Any]]:
        """Return the entries of the open chat from the gateway."""
        log = await self.gateway.call("GET", f"/api/sessions/{await self.name()}/entries?limit=500")
        return [entry["body"] for entry in log["entries"]]


Visit = Callable[..., Awaitable[Visitor]]
