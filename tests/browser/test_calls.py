"""The page that shows /openapi.json."""

from __future__ import annotations

import os

from browser.visitor import Visit

OVERFLOW = "() => document.scrollingElement.scrollWidth - innerWidth"
OPEN_ALL = "() => document.querySelectorAll('details:not([open]) > summary').forEach((node) => node.click())"
PICTURES = os.environ.get("TALARIA_PICTURES")  # a folder, for looking at the page


async def test_the_calls_are_shown_with_what_they_take_and_answer(visit: Visit) -> None:
    visitor = await visit()
    page = visitor.page
    await page.get_by_role("link", name="Calls").click()
    call = page.locator("details", has_text="/api/sessions/{x}/messages")
    await call.locator("summary").click()
    for text in ("Idempotency-Key", "MessageBody", "AcceptedTurn", "idempotency_conflict"):
        await call.get_by_text(text).first.wait_for()
    example = await call.locator("pre").text_content()
    assert f"curl '{visitor.url}/api/sessions/{{x}}/messages' -X POST" in example
    assert """-d '{"text":"hello"}'""" in example
    assert "Bearer $TOKEN" in example
    await call.get_by_role("link", name="AcceptedTurn").click()
    await page.locator("#type-AcceptedTurn:target").get_by_text("turn_id").wait_for()
    shown = await page.locator("details").count()
    await page.locator("#filter").fill("/v1/")
    assert 5 < await page.locator("details:visible").count() < shown
    await page.locator("#filter").fill("")
    await page.evaluate(OPEN_ALL)
    assert await page.locator(".inside").count() == shown
    await page.set_viewport_size({"width": 360, "height": 800})
    assert await page.evaluate(OVERFLOW) <= 0
    if PICTURES:
        await page.screenshot(path=f"{PICTURES}/narrow.png")
        await page.set_viewport_size({"width": 1280, "height": 1400})
        await page.evaluate("() => scrollTo(0, 0)")
        await page.screenshot(path=f"{PICTURES}/wide.png")


async def test_a_stranger_is_asked_for_a_token(visit: Visit) -> None:
    visitor = await visit(logged_in=False)
    page = visitor.page
    await page.goto(f"{visitor.url}/assets/calls.html")
    await page.locator("#token").fill("wrong")
    await page.get_by_role("button", name="Show").click()
    await page.get_by_text("The token is wrong").wait_for()
    await page.locator("#token").fill((visitor.gateway.home / "http.token").read_text().strip())
    await page.get_by_role("button", name="Show").click()
    await page.locator("details").first.wait_for()
    assert not await page.locator("#token-form").is_visible()
    assert "token" not in await page.evaluate("() => JSON.stringify(localStorage)")
