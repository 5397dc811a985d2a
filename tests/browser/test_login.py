"""Getting in: a link works once, leaves no trace in the address bar, and says what to do when it does not."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from browser.visitor import Visit
from support.gateway import running_gateway
from talaria.cli.open import _write_page
from talaria.config.home import Home
from talaria.core.program import program_name
from talaria.testing.gateway_process import GatewayProcess


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


async def test_a_page_in_the_home_leads_to_the_link(visit: Visit) -> None:
    visitor = await visit(logged_in=False)
    page = _write_page(Home(visitor.gateway.home), await visitor.new_link())
    await visitor.page.goto(page.as_uri())
    await visitor.page.locator("#app").wait_for()
    assert "code=" not in visitor.page.url
    assert not page.exists()


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
    assert f"{program_name()} open makes a new link" in told
    assert "code=" not in second.page.url


async def test_a_link_can_be_pasted_and_logging_out_forgets_everything(visit: Visit) -> None:
    visitor = await visit(logged_in=False)
    await visitor.page.goto(visitor.url)
    await visitor.sees(f"To log in, run {program_name()} open on", "#login")
    await visitor.page.get_by_label("Or paste a link or its code here").fill(await visitor.new_link())
    await visitor.page.keyboard.press("Enter")
    await visitor.page.locator("#text").fill("half a thought")
    assert await visitor.page.evaluate("localStorage.length") > 0
    await visitor.page.get_by_role("button", name="Log out").click()
    await visitor.page.locator("#login").wait_for()
    assert await visitor.page.evaluate("localStorage.length") == 0
    assert await visitor.page.context.cookies() == []


async def test_a_cookie_that_another_port_got_opens_nothing(visit: Visit) -> None:
    """Browsers keep cookies by host: a click on a link to another port of it brings the cookie there."""
    visitor = await visit()
    got: list[str] = []

    async def receive(request: web.Request) -> web.Response:
        got.append(request.headers.get("Cookie", ""))
        return web.Response(text="hello", content_type="text/html")

    app = web.Application()
    app.router.add_get("/trap", receive)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        trap = f"http://127.0.0.1:{runner.addresses[0][1]}/trap"
        await visitor.page.evaluate(
            """(href) => document.body.append(
              Object.assign(document.createElement("a"), { href, id: "lure", textContent: "look" }))""",
            trap,
        )
        await visitor.page.evaluate("document.getElementById('lure').click()")
        await visitor.page.wait_for_url("**/trap")
    finally:
        await runner.cleanup()
    assert got[0].startswith("talaria_login_"), "the other port did get it"

    headers = {"Cookie": got[0], "Origin": visitor.url, "Sec-Fetch-Site": "same-origin"}
    calls = [
        ("GET", "/api/sessions"),
        ("GET", "/api/status"),
        ("GET", "/api/pairings"),
        ("POST", "/api/pairings/invite"),
        ("POST", "/api/sessions/one/messages"),
        ("POST", "/api/backup"),
        ("POST", "/api/logout"),
    ]
    async with aiohttp.ClientSession(visitor.url, headers=headers) as thief:
        for method, path in calls:
            async with thief.request(method, path, json={} if method == "POST" else None) as response:
                assert response.status == 401, (method, path)
    await visitor.page.goto(visitor.url)
    await visitor.page.locator("#app").wait_for()


async def test_a_login_without_its_second_secret_asks_for_another(visit: Visit) -> None:
    """Logins of earlier versions have the cookie only."""
    visitor = await visit()
    await visitor.page.evaluate("localStorage.removeItem('talaria.login')")
    await visitor.page.reload()
    await visitor.sees(f"To log in, run {program_name()} open on", "#login")
    await visitor.follow_link(await visitor.new_link())
    await visitor.page.locator("#app").wait_for()


async def test_the_tabs_of_a_browser_log_in_and_out_together(visit: Visit) -> None:
    visitor = await visit(logged_in=False)
    waiting = await visitor.page.context.new_page()
    await waiting.goto(visitor.url)
    await waiting.locator("#login").wait_for()
    await visitor.follow_link(await visitor.new_link())
    await waiting.locator("#app").wait_for()
    await waiting.reload()
    await waiting.locator("#app").wait_for()
    await visitor.page.route("**/api/**", lambda route: route.abort())  # it is told by the other tab alone
    await waiting.get_by_role("button", name="Log out").click()
    await visitor.page.locator("#login").wait_for()


async def test_a_restart_of_the_gateway_keeps_the_login(visit: Visit, mortal: GatewayProcess) -> None:
    visitor = await visit(mortal)
    await mortal.kill()
    await mortal.start()
    await visitor.page.reload()
    await visitor.page.locator("#app").wait_for()


async def test_the_page_works_below_the_path_at_which_a_proxy_publishes_it(visit: Visit) -> None:
    async with running_gateway({"HTTP__BASE_PATH": "/talaria"}) as (gateway, _):
        visitor = await visit(gateway, logged_in=False)
        await visitor.follow_link((await visitor.new_link()).replace("/#", "/talaria/#"))
        await visitor.say("hello")
        answer = visitor.page.get_by_role("log").get_by_text("You said: hello")
        await answer.wait_for()
        await visitor.page.reload()
        await answer.wait_for()
        paths = {urlsplit(request).path for request in visitor.requests}
        assert all(path.startswith("/talaria/") for path in paths), paths
