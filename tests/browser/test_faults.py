"""Faults that a trial of the page in a real browser found, with the numbers that they have there."""

from __future__ import annotations

import asyncio
from typing import Any

from browser.visitor import Visit, Visitor

NARROW = {"width": 390, "height": 844}


async def test_4_latex_is_typeset_or_keeps_its_backslashes(visitor: Visitor) -> None:
    await visitor.say(
        r"[[reply The sum \(\frac{a}{b}\) is $x_1 \times y$, $\wrong{x_1}$, it costs $5 or $6.]]"
    )
    await visitor.page.locator("#log .agent", has_text="The sum").wait_for()
    await visitor.settled()
    formulas = visitor.page.locator("#log .math")
    await visitor.page.locator("#log .math:nth-of-type(2) math").wait_for(state="attached")
    assert await formulas.evaluate_all("all => all.map((one) => one.title || one.textContent)") == [
        r"\(\frac{a}{b}\)",
        r"$x_1 \times y$",
        r"$\wrong{x_1}$",
    ], "one that cannot be read stays as it was written"
    assert await formulas.first.locator("mfrac mi").all_text_contents() == ["a", "b"]
    assert "it costs $5 or $6." in await visitor.page.locator("#log .words").inner_text()


async def test_5_escape_does_not_drop_what_was_typed_into_the_memory(visitor: Visitor) -> None:
    page = visitor.page
    await page.get_by_role("button", name="Memory").click()
    field = page.locator("#memory textarea").first
    await field.fill("I like tea.")
    await page.keyboard.press("Escape")
    await page.locator("#memory").get_by_text("Your changes are not saved.").wait_for()
    assert await field.input_value() == "I like tea."
    await page.keyboard.press("Escape")
    await page.locator("#memory").wait_for(state="hidden")


async def test_6_a_job_is_removed_after_a_question_and_its_run_is_shown_as_it_ends(visitor: Visitor) -> None:
    page = visitor.page
    body = {"text": "[[reply ran]]", "every": "1h", "name": "ask first"}
    await visitor.gateway.call("POST", "/api/jobs", json=body)
    await page.get_by_role("button", name="Jobs").click()
    card = page.locator("#jobs .job", has_text="ask first")
    await card.get_by_role("button", name="Run now").click()
    await card.get_by_text("Last run: done").wait_for()
    await card.get_by_role("button", name="Remove").click()
    await card.get_by_role("button", name="Keep it").click()
    await card.get_by_role("button", name="Remove").click()
    await card.get_by_role("button", name="Remove it with its history").click()
    await card.wait_for(state="detached")
    await page.keyboard.press("Escape")


async def test_7_a_gateway_without_a_model_says_so_before_anything_is_sent(visitor: Visitor) -> None:
    real = await visitor.gateway.call("GET", "/api/status")
    lost = real["model"] | {"default": "openai/gpt", "missing_keys": {"openai": "OPENAI_API_KEY"}}
    await visitor.page.route("**/api/status", lambda route: route.fulfill(json=real | {"model": lost}))
    await visitor.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await visitor.page.locator("#no-model").get_by_text("OPENAI_API_KEY").wait_for()
    await visitor.page.unroute_all()
    await visitor.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await visitor.page.locator("#no-model").wait_for(state="hidden")


async def test_a_chat_platform_that_is_down_is_named(visitor: Visitor) -> None:
    real = await visitor.gateway.call("GET", "/api/status")
    states = {"slack": "ready", "discord": "stopped: Discord does not accept the token"}
    body = real | {"channels": real["channels"] | states}
    await visitor.page.route("**/api/status", lambda route: route.fulfill(json=body))
    await visitor.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await visitor.page.locator("#down").get_by_text("discord is stopped: Discord does not accept").wait_for()
    assert "slack" not in await visitor.page.locator("#down").inner_text()
    await visitor.page.unroute_all()
    await visitor.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await visitor.page.locator("#down").wait_for(state="hidden")


async def test_8_an_address_of_no_chat_says_so_and_offers_a_new_one(visitor: Visitor) -> None:
    await visitor.page.evaluate("location.hash = '#chat=ses_nothing'")
    await visitor.sees("There is no such chat.", "#elsewhere")
    assert not await visitor.page.locator("#empty").is_visible()
    await visitor.page.get_by_role("button", name="Begin a new chat").click()
    await visitor.page.locator("#composer").wait_for()


async def test_9_a_lost_login_says_that_the_message_is_kept(visit: Visit) -> None:
    visitor = await visit()
    await visitor.page.locator("#chats[aria-busy=false]").wait_for(state="attached")
    await visitor.at_rest()
    await visitor.page.locator("#text").fill("written before the login")
    await visitor.page.context.clear_cookies()
    await visitor.page.keyboard.press("Enter")
    await visitor.page.locator("#login").get_by_text("Your message is kept in this browser").wait_for()
    await visitor.follow_link(await visitor.new_link())
    name = await visitor.page.evaluate("JSON.parse(localStorage['talaria.outbox'] ?? '[]')[0]?.chat")
    if name:
        await visitor.page.evaluate(f"location.hash = '#chat={name}'")
    await visitor.page.locator("#chats a", has_text="written before the login").wait_for()


async def test_11_a_failure_has_a_button_to_try_again(visitor: Visitor) -> None:
    await visitor.say("[[status 400]]")
    await visitor.page.locator("#log .error").wait_for()
    await visitor.settled()
    async with visitor.page.expect_request("**/messages") as sent:
        await visitor.page.locator("#log .error").get_by_role("button", name="Try again").click()
    assert (await sent.value).post_data_json["text"] == "/retry"
    await visitor.settled()


async def test_12_files_are_not_taken_by_a_chat_that_can_only_be_read(visitor: Visitor) -> None:
    await visitor.say("hello")
    await visitor.sees("You said: hello")
    await visitor.settled()
    session = (await visitor.gateway.call("GET", f"/api/sessions/{await visitor.name()}"))["id"]
    await visitor.say("/new")
    await visitor.settled()
    await visitor.page.evaluate(f"location.hash = '#chat={session}'")
    await visitor.page.get_by_text("This is an earlier conversation").wait_for()
    effect = await visitor.page.evaluate("""() => {
      const files = new DataTransfer();
      files.items.add(new File(["x"], "x.txt"));
      const over = new DragEvent("dragover", { dataTransfer: files, bubbles: true, cancelable: true });
      document.getElementById("app").dispatchEvent(over);
      return ["drop" in document.getElementById("app").dataset, over.defaultPrevented];
    }""")
    assert effect == [False, True]


async def test_12_a_chat_says_why_it_can_only_be_read_though_it_is_read_again_meanwhile(
    visitor: Visitor,
) -> None:
    await visitor.say("hello")
    await visitor.sees("You said: hello")
    await visitor.settled()
    name = await visitor.name()
    session = (await visitor.gateway.call("GET", f"/api/sessions/{name}"))["id"]
    await visitor.say("/new")
    await visitor.settled()
    asked, goes_on = asyncio.Event(), asyncio.Event()

    async def hold(route: Any) -> None:
        asked.set()
        await goes_on.wait()
        await route.continue_()

    async def with_news(route: Any) -> None:
        answer = await (await route.fetch()).json()
        for item in answer["items"]:
            item["revision"] = "0.999" if item["id"] == session else item["revision"]
        await route.fulfill(json=answer)

    await visitor.page.route(f"**/api/sessions/{name}", hold)
    await visitor.page.evaluate(f"location.hash = '#chat={session}'")
    await asked.wait()
    await visitor.page.route("**/api/sessions?*", with_news)
    async with visitor.page.expect_response(f"**/api/sessions/{session}/entries?*"):
        await visitor.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    goes_on.set()
    await visitor.page.get_by_text("This is an earlier conversation").wait_for()


async def test_13_messages_of_a_group_have_the_names_of_their_senders(visitor: Visitor) -> None:
    async def add_name(route: Any) -> None:
        log = await (await route.fetch()).json()
        for entry in log["entries"]:
            if entry["body"]["type"] == "user":
                entry["body"]["name"] = "Ada"
        await route.fulfill(json=log)

    await visitor.page.route("**/entries?*", add_name)
    await visitor.say("hello")
    await visitor.page.locator("#log .person .who", has_text="Ada").wait_for()
    await visitor.settled()


async def test_14_no_drawer_stays_open_behind_a_dialog(visit: Visit) -> None:
    visitor = await visit(viewport=NARROW)
    await visitor.page.locator("#menu").click()
    await visitor.page.locator("#side").wait_for()
    await visitor.page.keyboard.press("Escape")
    await visitor.page.get_by_role("button", name="Jobs").click()
    await visitor.page.get_by_role("dialog", name="Jobs").wait_for()
    await visitor.page.locator("#side").wait_for(state="hidden")


async def test_15_the_state_keeps_its_contrast(visitor: Visitor) -> None:
    await visitor.say("[[delay 30]]")
    await visitor.page.locator("#live .state").wait_for()
    running = "document.querySelector('#live .state').getAnimations().length"
    assert await visitor.page.evaluate(running) == 0, "the words do not fade"
    await visitor.page.get_by_role("button", name="Stop").click()
    await visitor.settled()


async def test_17_a_message_that_waits_can_be_taken_back(visitor: Visitor) -> None:
    await visitor.say("[[delay 30]]")
    await visitor.page.locator("#live .person").wait_for()
    await visitor.say("on second thought")
    waiting = visitor.page.locator("#waiting .person", has_text="on second thought")
    await waiting.get_by_role("button", name="Withdraw").click()
    await waiting.wait_for(state="detached")
    await visitor.has_written("on second thought")
    await visitor.page.get_by_role("button", name="Stop").click()
    await visitor.sees("Stopped.")
    await visitor.settled()
    assert not [body for body in await visitor.entries() if "second thought" in str(body)]
    await visitor.page.locator("#text").fill("")


async def test_18_the_answer_of_a_command_is_there_after_a_reload(visitor: Visitor) -> None:
    await visitor.say("hello")
    await visitor.sees("You said: hello")
    await visitor.say("/title A good name")
    await visitor.sees("Title set: A good name")
    await visitor.settled()
    before = await visitor.conversation()
    await visitor.page.reload()
    await visitor.sees("Title set: A good name")
    assert await visitor.conversation() == before


async def test_19_a_title_has_the_width_of_the_list(visitor: Visitor) -> None:
    await visitor.say("Plan a trip to Lisbon in May")
    await visitor.sees("You said: Plan a trip")
    row = visitor.page.locator("#chats a", has_text="Plan a trip to Lisbon").first
    shown = "(node) => node.scrollWidth <= node.clientWidth"
    assert await row.locator(".title").evaluate(shown)
    await visitor.settled()


async def test_19_the_commands_are_a_list(visitor: Visitor) -> None:
    await visitor.say("/help")
    await visitor.page.locator("#log .words li code", has_text="/help [COMMAND]").wait_for()
    await visitor.settled()


async def test_a_part_of_another_version_asks_for_a_reload(visit: Visit) -> None:
    """A page that stays open over an upgrade has parts that it has not loaded yet."""
    visitor = await visit()
    await visitor.page.route("**/inspector.js", lambda route: route.fulfill(status=404))
    await visitor.say("hello")
    await visitor.page.locator("#log .sum").get_by_role("button", name="Details").click()
    await visitor.sees("reload the page", "#line")
    await visitor.settled()


async def test_a_long_block_of_code_is_appended_to(visitor: Visitor) -> None:
    """It was built anew for each frame, which took up to 283 ms."""
    made = await visitor.page.evaluate("""async () => {
      const base = document.querySelector("script[type=module]").src.replace("app.js", "");
      const { show } = await import(`${base}markdown.js`);
      const node = document.createElement("div");
      let text = "```py\\n";
      show(node, text);
      const [pre, first] = [node.querySelector("pre"), node.querySelector("code span")];
      for (let line = 0; line < 2000; line += 1) {
        text += `print(${line})\\n`;
        if (line % 10 === 0) show(node, text);
      }
      text += "```\\nafter";
      show(node, text);
      const code = node.querySelector("code");
      return [node.querySelector("pre") === pre, code.firstChild === first, code.children.length,
        code.textContent === Array.from({ length: 2000 }, (_, line) => `print(${line})`).join("\\n"),
        node.lastChild.textContent];
    }""")
    assert made == [True, True, 40, True, "after"]


async def test_nothing_grows_while_many_turns_pass(visitor: Visitor) -> None:
    """The components of turns that are over are let go."""
    for number in range(6):
        await visitor.say(f'[[think aha]][[call read_file {{"path":"none"}}]] turn {number}')
        await visitor.settled()
    await visitor.page.get_by_role("button", name="New chat").click()
    assert await visitor.page.locator("#log > *, #live > *, #waiting > *").count() == 0
