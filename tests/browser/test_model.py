"""The model that answers: a badge names a built-in one, and the larger built-in model is one button away.

The gateway's status is the test's own, since a real download is a gigabyte.
"""

from __future__ import annotations

from typing import Any

from browser.visitor import Visitor
from talaria.models.local.downloads import LargerModel, LargerState, offer_sentence

TINY, LARGER = "local/qwen2.5-coder-0.5b", "local/qwen2.5-coder-1.5b"
LOOK = "document.dispatchEvent(new Event('visibilitychange'))"
OFFER = "Use the larger model (1.1 GB download, 2 GB of memory)"


class Status:
    """What `/api/status` answers from now on."""

    def __init__(self, visitor: Visitor, real: dict[str, Any]) -> None:
        self._visitor = visitor
        self._real = real
        self.calls: list[str] = []
        self.default = TINY
        self.weights: dict[str, Any] | None = None
        self.larger: dict[str, Any] = {
            "name": "qwen2.5-coder-1.5b", "size": 1_117_320_768, "memory": 2_000_000_000,
            "state": "absent", "done": 0, "seconds_left": None, "why": "",
        }  # fmt: skip

    @classmethod
    async def of(cls, visitor: Visitor) -> Status:
        status = cls(visitor, await visitor.gateway.call("GET", "/api/status"))
        await visitor.page.route("**/api/status", status._answer)
        await visitor.page.route("**/api/models/*/fetch", status._fetch)
        await status.shown()
        return status

    async def _answer(self, route: Any) -> None:
        model = self._real["model"] | {"default": self.default}
        built_in = {"pid": 7, "weights": self.weights, "larger": self.larger}
        await route.fulfill(json=self._real | {"model": model, "built_in_model": built_in})

    async def _fetch(self, route: Any) -> None:
        self.calls.append(route.request.url.partition("/api/")[2])
        self.larger |= {"state": "fetching", "done": 128_000_000, "seconds_left": 65.0}
        await route.fulfill(status=202, json={})

    async def shown(self) -> None:
        """Let the page read it."""
        async with self._visitor.page.expect_response("**/api/status"):
            await self._visitor.page.evaluate(LOOK)


async def answered_by_the_tiny_model(route: Any) -> None:
    log = await (await route.fetch()).json()
    for entry in log["entries"]:
        entry["body"] |= {"provider": "local", "model": TINY[6:]}
    await route.fulfill(json=log)


async def test_the_badge_tells_what_answers_in_this_chat(visitor: Visitor) -> None:
    badge = visitor.page.locator("#badge")
    assert not await badge.is_visible()
    status = await Status.of(visitor)
    await visitor.sees("tiny model: talks only, no tools", "#badge")
    status.weights = {"model": TINY[6:], "stage": "fetching", "done": 128_000_000, "total": 491_000_000}
    await status.shown()
    await visitor.sees("tiny model: fetching 128/491 MB", "#badge")
    status.weights, status.default = None, LARGER
    await status.shown()
    await visitor.sees("small model: makes mistakes", "#badge")
    await visitor.say("hello")  # the scripted model answers, whatever is the default and whatever is loaded
    await visitor.sees("You said: hello")
    await visitor.settled()
    await badge.wait_for(state="hidden")
    await status.shown()
    assert not await badge.is_visible()


async def test_the_larger_model_is_fetched_with_one_button_and_then_a_new_chat_begins(
    visitor: Visitor,
) -> None:
    offer = visitor.page.locator("#offer")
    status = await Status.of(visitor)
    await visitor.page.route("**/entries?*", answered_by_the_tiny_model)
    await visitor.say("hello")
    await visitor.sees("You said: hello")
    await visitor.settled()
    first = await visitor.name()
    await visitor.page.get_by_role("button", name=OFFER).focus()
    await visitor.page.keyboard.press("Enter")
    await visitor.sees("Fetching the larger model: 128 of 1117 MB, about 65 s", "#offer")
    assert status.calls == ["models/qwen2.5-coder-1.5b/fetch"]
    assert await offer.get_by_role("progressbar").get_attribute("value") == "128000000"
    assert not await offer.get_by_role("button").is_visible()
    status.larger |= {"state": "ready", "done": 1_117_320_768, "seconds_left": 0.0}
    status.default = LARGER
    await visitor.sees("The larger model is here. New chats use it.", "#offer")  # the page looks by itself
    assert await visitor.page.locator("#said").inner_text() == "The larger model is here."
    await visitor.sees("tiny model: talks only, no tools", "#badge")
    await visitor.page.get_by_role("button", name="Begin a new chat").click()
    assert await visitor.name() != first
    assert not await offer.is_visible()
    await visitor.sees("small model: makes mistakes", "#badge")


async def test_where_the_tiny_model_is_configured_this_chat_can_change(
    visitor: Visitor,
) -> None:
    status = await Status.of(visitor)
    status.larger |= {"state": "ready"}
    await status.shown()
    async with visitor.page.expect_request("**/messages*") as sent:
        await visitor.page.get_by_role("button", name="Use it in this chat").click()
    assert (await sent.value).post_data_json["text"] == f"/model {LARGER}"
    await visitor.settled()


async def test_a_refusal_of_the_tiny_model_names_the_button(visitor: Visitor) -> None:
    absent = offer_sentence(LargerModel(LARGER[6:], 1_117_320_768, 2_000_000_000, LargerState.ABSENT))
    await visitor.say(f"[[reply I can't do that: I only talk. {absent}]]")
    for _ in ("as it comes", "from the log"):
        await visitor.sees("or “Use the larger model” on the page, fetches it;", ".agent")
        await visitor.settled()
        await visitor.page.reload()


async def test_a_download_that_failed_says_why_and_can_be_tried_again(visitor: Visitor) -> None:
    status = await Status.of(visitor)
    status.larger |= {"why": "No source of the weights answered."}
    await status.shown()
    await visitor.sees("No source of the weights answered.", "#offer")
    await visitor.page.get_by_role("button", name=OFFER).click()
    await visitor.sees("Fetching the larger model", "#offer")


async def test_a_model_that_cannot_run_here_is_not_offered(visitor: Visitor) -> None:
    status = await Status.of(visitor)
    await visitor.page.locator("#offer").wait_for()
    status.larger |= {"state": "refused", "why": "This machine has 1 GB of memory."}
    await status.shown()
    await visitor.page.locator("#offer").wait_for(state="hidden")
