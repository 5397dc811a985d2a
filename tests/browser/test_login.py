"""Getting in: a link works once, leaves no trace in the address bar, and says what to do when it does not."""

from __future__ import annotations

from typing import Any

from browser.visitor import Visit


async def test_a_link_logs_in_and_its_code_leaves_the_address_bar(visit: Visit) -> None:
    visitor = await visit(logged_in=False)
    link = await visitor.new_link()
    code = link.partition("code=")[2]
    shown = []

    async def look(route: Any) -> None:
        shown.append(await visitor.page.evaluate("location.href"))
        await route.continue_()

    await visitor.page.route("**/api/login", look)
    await visitor.follow_link(link)
    await visitor.page.locator("#app").wait_for()
    assert shown == [f"{visitor.url}/"]
    assert code not in visitor.page.url
    assert not [request for request in visitor.requests if code in request]
    assert not await visitor.page.evaluate("navigation.entries().some(({url}) => url.includes('code='))")
    cookies = await visitor.page.context.cookies()
    assert [(cookie["httpOnly"], cookie["sameSite"]) for cookie in cookies] == [(True, "Strict")]
    assert await visitor.page.evaluate("document.cookie") == ""
    await visitor.page.reload()
    await visitor.page.locator("#app").wait_for()


async def test_a_used_link_says_what_why_and_what_to_do(visit: Visit) -> None:
    first = await visit(logged_in=False)
    link = await first.new_link()
    await first.follow_link(link)
    second = await visit(logged_in=False)
    await second.follow_link(link)
    told = await second.page.locator("#login-error").inner_text()
    assert told.startswith("You are not logged in.")
    assert "was used" in told
    assert "older than 10 minutes" in told
    assert "talaria open (in a clone: ./dev open)" in told
    assert "code=" not in second.page.url


async def test_a_link_can_be_pasted_and_logging_out_forgets_everything(visit: Visit) -> None:
    visitor = await visit(logged_in=False)
    await visitor.page.goto(visitor.url)
    await visitor.sees("To log in, run talaria open (in a clone: ./dev open)", "#login")
    await visitor.page.get_by_label("Or paste a link or its code here").fill(await visitor.new_link())
    await visitor.page.keyboard.press("Enter")
    await visitor.page.locator("#text").fill("half a thought")
    assert await visitor.page.evaluate("localStorage.length") > 0
    await visitor.page.get_by_role("button", name="Log out").click()
    await visitor.page.locator("#login").wait_for()
    assert await visitor.page.evaluate("localStorage.length") == 0
    assert await visitor.page.context.cookies() == []
