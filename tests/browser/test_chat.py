"""Talking on the page: what is said, done and refused is shown as it is, and nothing of it is obeyed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from browser.visitor import Visitor
from support.link_table import OWN, TABLE
from talaria.core.program import program_name

HOSTILE = (
    '<img src=x onerror="document.title = 1"> <script>document.title = 1</script> '
    "[one](javascript:document.title=1) [two](data:text/html,x) [three](https://example.org/three) "
    "![four](https://example.org/four.png) <style>body { display: none }</style>"
)
PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c4944415408d763f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)


async def test_an_answer_streams_in(visitor: Visitor) -> None:
    await visitor.say("[[chunks 16]][[chunk-delay 0.1]][[words 40]]")
    await visitor.page.locator("#live").get_by_text("word1 word2").wait_for()
    assert "word40" not in " ".join(await visitor.conversation())
    await visitor.sees("word40")
    await visitor.settled()
    assert (await visitor.page.locator("#said").inner_text()).endswith("word40")
    await visitor.page.locator("#chats a[aria-current]").get_by_text("[[chunks 16]]").wait_for()


async def test_a_steered_message_is_shown_once_and_a_queued_one_says_that_it_waits(visitor: Visitor) -> None:
    look = '[[call list_files {"path":"."}]]'
    await visitor.say(f"[[chunks 30]][[chunk-delay 0.1]][[words 60]]{look}[[reply Looked.]]")
    await visitor.page.locator("#live").get_by_text("word1 word2").wait_for()
    await visitor.say("/steer beta")
    await visitor.say("gamma")
    await visitor.page.get_by_text("waits for the answer before it").wait_for()
    await visitor.sees("You said: gamma", "#log .agent")
    await visitor.settled()
    before = await visitor.conversation()
    assert sum("beta" in said for said in before) <= 2, before
    assert not any("/steer" in said for said in before)
    await visitor.page.reload()
    await visitor.sees("You said: gamma", "#log .agent")
    assert await visitor.conversation() == before


async def test_a_tool_call_is_a_line_that_opens(visitor: Visitor) -> None:
    await visitor.say('[[think aha]][[call write_file {"path":"a.txt","content":"hi"}]][[reply Written.]]')
    await visitor.sees("Written.", "#log .agent")
    await visitor.settled()
    line = visitor.page.locator("details.tool", has_text="write_file")
    assert " ".join((await line.locator("summary").inner_text()).split()) == "write_file a.txt, hi done"
    assert not await line.locator("pre").first.is_visible()
    await line.locator("summary").click()
    await visitor.sees("Wrote 2 bytes to a.txt (a new file).", "details.tool")
    assert await visitor.page.locator("details.tool", has_text="Thoughts").count() == 1
    before = await visitor.conversation()
    await visitor.page.reload()
    await visitor.sees("Written.", "#log .agent")
    assert await visitor.conversation() == before


async def test_tool_output_and_questions_are_shown_and_unknown_events_are_ignored(visitor: Visitor) -> None:
    events = (
        {"type": "tool.started", "call_id": "c", "name": "terminal", "arguments": "{}"},
        {"type": "of.a.later.version", "call_id": "c", "text": "never shown"},
        {"type": "tool.output", "call_id": "c", "text": "compiling\n"},
        {"type": "tool.output", "call_id": "unknown", "text": "never shown"},
        {"type": "tool.output", "call_id": "c", "text": "linking\n"},
        {"type": "approval", "question_id": "q", "kind": "approval", "text": "May it run?", "call_id": "d"},
    )
    body = "".join(f"id: {n}\ndata: {json.dumps(event)}\n\n" for n, event in enumerate(events, 1))
    is_seen = asyncio.Event()
    tries: list[Any] = []

    async def begin_then_wait(route: Any) -> None:
        tries.append(route)
        if len(tries) == 1:
            await route.fulfill(content_type="text/event-stream", body=body)
            return
        await is_seen.wait()
        await route.continue_()

    await visitor.page.route("**/events", begin_then_wait)
    await visitor.say("hello")
    tool = visitor.page.locator("#live details.tool", has_text="linking")
    await tool.wait_for()
    assert await tool.locator(".result").text_content() == "compiling\nlinking\n"
    assert await visitor.page.get_by_text("never shown").count() == 0
    await visitor.sees("May it run?", "#live")
    assert await visitor.page.locator("#live .state").text_content() == "Waiting for a decision"
    # A wait is counted. The line is hidden while the page has no connection, as here.
    await visitor.page.locator("#live .state[data-passed$=' s']").wait_for(state="attached")
    is_seen.set()
    await visitor.sees("You said: hello")
    await visitor.settled()


async def test_markdown_becomes_elements(visitor: Visitor) -> None:
    text = (
        "# Head\n\nsome **bold**, *slanted* and `code`\nnext line\n\n- one\n  - inner\n- two\n\n3. three\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n> said\n\n```py\nx = `1` # **no**\n\n# still\n```\n\n"
        "snake_case_name, 2 * 3 * 4, https://example.org/a_(b)."
    )
    await visitor.say(f"[[reply {text}]]")
    await visitor.sees("still", "#log pre")
    words = visitor.page.locator("#log .words")
    shape = {
        "h2": "Head", "strong": "bold", "em": "slanted", "p code": "code", "li li": "inner",
        "td >> nth=1": "2", "blockquote": "said", "pre": "x = `1` # **no**\n\n# still",
        "a": "https://example.org/a_(b)",
    }  # fmt: skip
    assert {path: await words.locator(path).inner_text() for path in shape} == shape
    assert await words.locator("ol").get_attribute("start") == "3"
    assert "snake_case_name, 2 * 3 * 4," in await words.inner_text()
    await visitor.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await words.get_by_role("button", name="Copy").click()
    await words.get_by_role("button", name="Copied").wait_for()
    assert await visitor.page.evaluate("navigator.clipboard.readText()") == shape["pre"]


async def test_hostile_content_stays_text(visitor: Visitor) -> None:
    """Nothing is run, loaded or styled by it; the fixture sees whether the policy had to step in."""
    call = json.dumps({"path": HOSTILE[:40], "content": HOSTILE})
    await visitor.say(f"[[think {HOSTILE}]][[call write_file {call}]][[reply {HOSTILE}]]")
    await visitor.sees("document.title = 1", "#log .agent")
    await visitor.settled()
    answer = visitor.page.locator("#log .agent .words")
    shown = await answer.inner_text()
    assert '<img src=x onerror="document.title = 1"> <script>' in shown
    assert "one (javascript:document.title=1) two (data:text/html,x) three (example.org)" in shown
    assert [await link.get_attribute("href") for link in await answer.locator("a").all()] == [
        "https://example.org/three",
        "https://example.org/four.png",
    ]
    assert {await link.get_attribute("rel") for link in await answer.locator("a").all()} == {
        "noopener noreferrer nofollow"
    }
    assert await visitor.page.locator("#scroll :is(img, script, style, iframe)").count() == 0
    assert "1 ·" not in await visitor.page.title()
    assert not [request for request in visitor.requests if "example.org" in request]


async def test_only_public_hosts_become_links(visitor: Visitor) -> None:
    """The table is that of every channel; `talaria.example.org` plays the page's own host."""
    judge = """async ([urls, own]) => {
      const { outer } = await import("/assets/markdown.js");
      return urls.map((url) => own.every((host) => outer(url, host) !== null));
    }"""
    own = [host if ":" not in host else f"[{host}]" for host in OWN]
    found = await visitor.page.evaluate(judge, [[url for url, _ in TABLE], own])
    assert {url: may for (url, _), may in zip(TABLE, found, strict=True)} == dict(TABLE)


async def test_a_link_shows_where_it_leads(visitor: Visitor) -> None:
    draw = """async (text) => {
      const node = document.createElement("div");
      (await import("/assets/markdown.js")).show(node, text);
      return [node.textContent, [...node.querySelectorAll("a")].map((link) => link.href)];
    }"""
    inner = f"{visitor.url}/api/status"
    text = f"[https://good.example](https://evil.example/x) [me]({inner}) {inner} https://plain.example/"
    assert await visitor.page.evaluate(draw, text) == [
        f"https://good.example (evil.example) me ({inner}) {inner} https://plain.example/",
        ["https://evil.example/x", "https://plain.example/"],
    ]


@pytest.mark.timeout(30)
async def test_text_made_to_be_slow_is_not(visitor: Visitor) -> None:
    """Work that grows with the square of the length would take minutes."""
    await visitor.page.evaluate("""async () => {
      const { show } = await import("/assets/markdown.js");
      const pieces = ["**a ", "[a", "[", "`a ", "*a_b~~", "> ", "- ", "\\\\", "http://(", "| a |\\n|--|\\n",
        "a\\n\\n"];
      const many = (piece, more = "") => piece.repeat(100_000) + more;
      const texts = [`# a${many(" ", "x")}`, `# ${many(" ", "x")}${many(" ", "\u2028x")}`,
        `a|\n${many(" ", "x")}|`, `a|\n|${many("-", "x")}`, `[a](${many(" ")}`,
        `[a](b${many(" ", "x")}`, `http://a${many(".", "x")}`,
        `# a${many("#", "x")}`, `---${many(" ", "x")}`];
      texts.push(...pieces.map((piece) => piece.repeat(300_000 / piece.length)));
      for (const text of texts) show(document.createElement("div"), text);
    }""")


async def test_what_is_out_of_sight_is_not_laid_out(visitor: Visitor) -> None:
    await visitor.say("hello")
    await visitor.page.locator("#log .agent").wait_for()
    style = "getComputedStyle(document.querySelector('#log .block')).contentVisibility"
    assert await visitor.page.evaluate(style) == "auto"


async def test_stop_cancels_the_turn(visitor: Visitor) -> None:
    await visitor.say("[[chunks 100]][[chunk-delay 0.1]][[words 200]]")
    await visitor.page.locator("#live").get_by_text("word1 word2").wait_for()
    await visitor.page.get_by_role("button", name="Stop").click()
    await visitor.sees("Stopped.")
    await visitor.settled()
    assert [body.get("interrupted") for body in await visitor.entries()][-1] is True
    await visitor.page.reload()
    await visitor.sees("Stopped.")


async def test_messages_wait_for_the_one_before_and_commands_pass(visitor: Visitor) -> None:
    await visitor.say("[[delay 30]]")
    await visitor.page.locator("#live .person").wait_for()
    await visitor.say("and then")
    await visitor.say("/stop")
    await visitor.sees("You said: and then")
    await visitor.settled()
    said = await visitor.conversation()
    assert [said.count(text) for text in ("[[delay 30]]", "and then", "/stop", "Stopped.")] == [1, 1, 1, 1]


async def test_a_message_whose_turn_has_come_does_not_wait_any_more(visitor: Visitor) -> None:
    await visitor.say("[[delay 30]]")
    await visitor.page.locator("#live .person").wait_for()
    await visitor.say("[[delay 31]]")
    await visitor.page.locator("#waiting .person").wait_for()
    await visitor.page.get_by_role("button", name="Stop").click()
    await visitor.page.locator("#live, #log").get_by_text("[[delay 31]]").wait_for()
    await visitor.sees("Working", "#live")
    await visitor.page.get_by_role("button", name="Stop").click()
    await visitor.settled()


async def test_a_command_is_answered_and_new_begins_anew(visitor: Visitor) -> None:
    await visitor.say("first words")
    await visitor.sees("You said: first words")
    await visitor.say("/title A name for now")
    await visitor.sees("Title set: A name for now")
    await visitor.page.locator("h1", has_text="A name for now").wait_for()
    await visitor.say("/new")
    await visitor.sees("New session")
    await visitor.settled()
    assert len(await visitor.conversation()) == 2
    old = visitor.page.locator("#chats a", has_text="A name for now")
    await old.click()
    await visitor.sees("You said: first words")
    await visitor.page.get_by_role("button", name="Continue it").click()
    await visitor.sees("Back in A name for now")
    await visitor.sees("You said: first words")


async def test_a_failed_turn_says_what_why_and_what_to_do_also_after_a_reload(visitor: Visitor) -> None:
    await visitor.say("[[status 400]]")
    await visitor.page.locator("#log .error").wait_for()
    await visitor.settled()
    before = await visitor.conversation()
    assert before[0] == "[[status 400]]"
    await visitor.page.reload()
    await visitor.page.locator("#log .error").wait_for()
    assert await visitor.conversation() == before


async def test_files_go_with_the_message(visitor: Visitor) -> None:
    await visitor.page.locator("#file").set_input_files(
        [
            {"name": "dot.png", "mimeType": "image/png", "buffer": PICTURE},
            {"name": "note.txt", "mimeType": "text/plain", "buffer": b"hello"},
        ]
    )
    await visitor.page.get_by_role("button", name="Remove note.txt").wait_for()
    await visitor.say("look")
    await visitor.sees("note.txt (5 B)", "#log .person")
    await visitor.settled()
    assert (await visitor.page.locator("#log .person img").get_attribute("src")).startswith("data:image/png")
    user = next(body for body in await visitor.entries() if body["type"] == "user")
    assert [part["type"] for part in user["parts"]] == ["text", "file", "image", "file"]


async def test_what_others_say_in_the_chat_appears(visitor: Visitor) -> None:
    await visitor.say("mine")
    await visitor.sees("You said: mine")
    await visitor.settled()
    path = f"/api/sessions/{await visitor.name()}/messages?wait=10"
    await visitor.gateway.call("POST", path, json={"text": "theirs"})
    await visitor.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await visitor.sees("You said: theirs")


async def test_two_chats_are_two_addresses_and_back_goes_back(visitor: Visitor) -> None:
    await visitor.say("in the first")
    await visitor.sees("You said: in the first")
    await visitor.page.get_by_role("button", name="New chat").click()
    await visitor.page.locator("#text").fill("a draft of the second")
    await visitor.page.go_back()
    await visitor.sees("You said: in the first")
    await visitor.page.go_forward()
    await visitor.has_written("a draft of the second")


async def test_a_chat_has_one_name_before_its_first_answer(visitor: Visitor) -> None:
    await visitor.say("[[delay 300]] about pears")
    await visitor.page.locator("#live .person").wait_for()
    await visitor.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await visitor.page.wait_for_function(
        """() => document.querySelector('#chats a[aria-current="page"] span')?.textContent
            === document.querySelector("#title").textContent"""
    )
    await visitor.page.get_by_role("button", name="Stop").click()


async def test_a_new_chat_has_nothing_of_the_one_before(visitor: Visitor) -> None:
    await visitor.say("[[delay 30]]")
    await visitor.page.locator("#live .person").wait_for()
    await visitor.say("still to come")
    await visitor.page.locator("#waiting").get_by_text("still to come").wait_for()
    await visitor.page.get_by_role("button", name="New chat").click()
    assert await visitor.conversation() == []
    await visitor.page.go_back()
    await visitor.page.locator("#waiting").get_by_text("still to come").wait_for()
    await visitor.page.get_by_role("button", name="Stop").click()
    await visitor.sees("You said: still to come")


async def test_the_id_of_a_message_is_told_on_request(visitor: Visitor) -> None:
    await visitor.say("hello")
    await visitor.sees("You said: hello")
    await visitor.settled()
    button = visitor.page.get_by_role("button", name="About this message")
    await button.focus()
    await visitor.page.keyboard.press("Enter")
    story = visitor.page.locator("#inspector")
    await story.locator(".story li").first.wait_for()
    turn = await story.locator(".identity code").inner_text()
    assert (await visitor.gateway.call("GET", f"/api/turns/{turn}"))["reply"] == "You said: hello"
    assert f"{program_name()} why {turn} on the gateway's machine" in await story.inner_text()
    await visitor.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await story.get_by_role("button", name="Copy").click()
    await story.get_by_role("button", name="Copied").wait_for()
    assert await visitor.page.evaluate("navigator.clipboard.readText()") == turn
    await visitor.page.keyboard.press("Escape")
    await story.wait_for(state="detached")
    assert await button.evaluate("(node) => node === document.activeElement"), "the focus returns"
