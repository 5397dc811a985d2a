"""The page in a real Chromium with a real gateway. All tests share them; the console must stay clean."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from browser.visitor import Visit, Visitor
from support.gateway import running_gateway
from support.ports import port_of, reserve_port
from support.programs import find_program, needs
from talaria.testing.gateway_process import GatewayProcess

CHROMIUM = find_program("chromium")
WIDE = {"width": 1280, "height": 800}


def _is_here(item: pytest.Item) -> bool:
    return item.path.parent == Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the browser tests on one loop, which the browser needs, and after all other tests."""
    items.sort(key=_is_here)
    for item in filter(_is_here, items):
        item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
        item.add_marker(needs("chromium"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Any]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def gateway() -> AsyncIterator[GatewayProcess]:
    async with running_gateway() as (gateway, _):
        yield gateway


@pytest_asyncio.fixture(loop_scope="session")
async def mortal() -> AsyncIterator[GatewayProcess]:
    """A gateway that tests may kill. It restarts at the same address."""
    with reserve_port() as place:
        settings = {"HTTP__PORT": str(port_of(place)), "SHUTDOWN__DEADLINE": "100ms"}
        async with running_gateway(settings) as (gateway, _):
            yield gateway


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def regular(browser: Any, gateway: GatewayProcess) -> AsyncIterator[Visitor]:
    """A browser context that is logged in, shared by all tests."""
    visitor = await Visitor.of(await browser.new_context(viewport=WIDE), gateway)
    await visitor.follow_link(await visitor.new_link())
    yield visitor
    await _close(visitor.page.context)


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(regular: Visitor) -> AsyncIterator[Visitor]:
    """A visitor in a new chat."""
    await regular.page.locator("#new").click()
    regular.requests.clear()
    yield regular
    await regular.page.unroute_all(behavior="ignoreErrors")  # a request may still be under way
    troubles, regular.troubles = regular.troubles, []
    assert troubles == []


async def _close(context: Any) -> None:
    """Close a browser context. A route whose handler has not answered yet would keep it open for ever."""
    for page in context.pages:
        await page.unroute_all(behavior="ignoreErrors")
    await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def visit(browser: Any, gateway: GatewayProcess) -> AsyncIterator[Visit]:
    """Open the page in a new browser context, logged in by a link unless told otherwise."""
    visitors: list[Visitor] = []
    async with AsyncExitStack() as scopes:

        async def open_page(
            at: GatewayProcess = gateway, *, logged_in: bool = True, **context: Any
        ) -> Visitor:
            opened = await browser.new_context(**{"viewport": WIDE} | context)
            scopes.push_async_callback(_close, opened)
            visitor = await Visitor.of(opened, at)
            visitors.append(visitor)
            if logged_in:
                await visitor.follow_link(await visitor.new_link())
            return visitor

        yield open_page
    assert [trouble for visitor in visitors for trouble in visitor.troubles] == []
