"""The agent's own browser, as a person on the page sees it: the approval with the page, and the receipt."""

from __future__ import annotations

import json
from typing import Any

from browser.visitor import Visit
from support.browsed_site import browsed_site
from support.gateway import running_gateway
from support.programs import needs

pytestmark = [needs("bwrap")]
FORM = """<title>Order</title><h1>Order a book</h1><form action=/order method=post>
<p><label>Name <input name=name></label><p><label>Card number <input name=card></label>
<p><button>Pay 12 €</button>"""


def calling(tool: str, **arguments: Any) -> str:
    return f"[[call {tool} {json.dumps(arguments, ensure_ascii=False)}]][[reply Done.]]"


async def test_a_form_is_filled_in_approved_with_its_picture_and_the_receipt_sent(visit: Visit) -> None:
    async with browsed_site() as site:
        site.pages["/book"] = FORM
        settings = {"TOOLS__ENABLED": "files,browser", "NETWORK__ALLOW_PRIVATE": f"127.0.0.1:{site.port}"}
        async with running_gateway(settings) as (gateway, _):
            visitor = await visit(gateway)
            page = visitor.page
            for text in (
                f"Fill in this form: {calling('browser_open', url=f'{site.url}/book')}",
                calling("browser_type", element="@1.1", text="Ada Lovelace"),
                calling("browser_type", element="@1.2", text="4111 1111 1111 1111"),
            ):
                await visitor.say(text)
                await visitor.settled()
            await visitor.say("/browser")
            await visitor.sees("/browser close")
            picture = page.get_by_role("img", name="Preview of browser.png")
            await picture.wait_for()
            await page.reload()
            await picture.wait_for()
            await visitor.say(calling("browser_click", element="@1.3"))
            card = page.locator("section.question")
            await card.wait_for()
            asked = await card.locator("pre").text_content()
            assert "Card number: ••••" in asked and "4111" not in asked and 'button "Pay 12 €"' in asked
            await card.locator("img.page-shown").wait_for()
            await card.get_by_role("button", name="Approve once").click()
            await visitor.settled()
            assert [order["name"] for order in site.orders] == ["Ada Lovelace"]
            await visitor.say(calling("browser_screenshot", save="receipt.pdf"))
            await visitor.settled()
            await visitor.say(f"and send me the receipt as PDF {calling('send_file', path='receipt.pdf')}")
            await visitor.settled()
            await page.locator("figure.sent, .sent", has_text="receipt.pdf").first.wait_for()
