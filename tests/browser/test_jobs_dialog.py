"""Jobs on the page: shown before they are saved, run, paused, and removed, with the strip of their runs."""

from __future__ import annotations

from browser.visitor import Visitor


async def test_job_is_made_in_words_run_paused_and_removed(visitor: Visitor) -> None:
    page = visitor.page
    await page.get_by_role("button", name="Jobs").click()
    dialog = page.get_by_role("dialog", name="Jobs")
    await visitor.sees("There are no jobs yet.", "#jobs")
    field = dialog.get_by_label("A new job")
    await field.fill("water the flowers")
    await field.press("Enter")
    await visitor.sees("When should it run?", "#jobs")
    await field.fill("every weekday at 9 tell me what changed")
    await field.press("Enter")
    proposal = page.locator("#jobs-proposal")
    await proposal.get_by_text("Next:").wait_for()
    assert await proposal.get_by_text("then:").count() == 2
    await dialog.get_by_role("button", name="Save this job").click()
    job = page.locator(".job")
    await job.wait_for()
    assert (await job.locator("p.quiet").first.text_content() or "").count(" · ") == 2, "three times"
    await dialog.get_by_role("button", name="Run now").click()
    strip = page.locator(".strip rect")
    while not await strip.count() or "done" not in (await strip.first.get_attribute("class") or ""):
        await page.get_by_role("button", name="Close").click()
        await page.get_by_role("button", name="Jobs").click()
        await job.wait_for()
    await visitor.sees("Last run: done", "#jobs")
    await dialog.get_by_role("button", name="Pause").click()
    await dialog.get_by_role("button", name="Resume").wait_for()
    await dialog.get_by_role("button", name="Remove").click()
    await dialog.get_by_role("button", name="Remove it with its history").click()
    await visitor.sees("There are no jobs yet.", "#jobs")
    await page.keyboard.press("Escape")
    await dialog.wait_for(state="hidden")
    assert not visitor.troubles


async def test_result_of_a_job_made_in_a_new_chat_is_shown_there(visitor: Visitor) -> None:
    page, call = visitor.page, visitor.gateway.call
    await page.get_by_role("button", name="New chat").click()
    name = await visitor.name()
    await page.get_by_role("button", name="Jobs").click()
    dialog = page.get_by_role("dialog", name="Jobs")
    field = dialog.get_by_label("A new job")
    await field.fill("every day at 9 [[reply one file is new]]")
    await field.press("Enter")
    await visitor.sees("Results go to: this chat", "#jobs-proposal")
    await dialog.get_by_role("button", name="Save this job").click()
    await dialog.get_by_role("button", name="Run now").click()
    await page.get_by_role("button", name="Close").click()
    results = page.locator("#log").get_by_text("one file is new", exact=True)
    await visitor.come_back_until(results)
    link = page.locator(f'#chats a[href="#chat={name}"]')
    await link.wait_for()
    assert await link.count() == 1, "the list of chats has it once"
    (job,) = [job for job in (await call("GET", "/api/jobs"))["items"] if name in job["chat_key"]]
    await page.get_by_role("button", name="New chat").click()
    await visitor.say("hello")
    await visitor.sees("You said: hello")
    await visitor.settled()
    await link.locator(".unread").wait_for(state="detached")  # it was read
    await call("POST", f"/api/jobs/{job['id']}/run")
    await visitor.come_back_until(link.locator(".unread"))
    await page.reload()
    await link.locator(".unread").wait_for()
    await link.click()
    await results.nth(1).wait_for()
    await link.locator(".unread").wait_for(state="detached")
    await page.reload()
    await results.nth(1).wait_for()
    assert await link.locator(".unread").count() == 0
    await call("DELETE", f"/api/jobs/{job['id']}")
    assert not visitor.troubles


async def test_finished_jobs_stay_in_the_dialog_newest_first(visitor: Visitor) -> None:
    page, call = visitor.page, visitor.gateway.call
    for text in ("first", "second"):
        job = await call("POST", "/api/jobs", json={"text": text, "when": "in 1 second", "remind": True})
        while (await call("GET", f"/api/jobs/{job['id']}"))["state"] != "done":
            await page.wait_for_timeout(50)
    await page.get_by_role("button", name="Jobs").click()
    finished = page.locator("#jobs details")
    await finished.get_by_text("Finished").click()
    names = [text.strip() for text in await finished.locator("h3").all_text_contents()]
    assert names[:2] == ["second", "first"]
    assert "Last run: done" in (await finished.locator(".job").first.text_content() or "")
    for name in names:
        job = finished.locator(".job", has_text=name).first
        await job.get_by_role("button", name="Remove").click()
        await job.get_by_role("button", name="Remove it with its history").click()
        await job.wait_for(state="detached")
    await page.keyboard.press("Escape")
    assert not visitor.troubles


async def test_reminder_is_suggested_by_words_and_decided_by_its_checkbox(visitor: Visitor) -> None:
    page = visitor.page
    await page.get_by_role("button", name="Jobs").click()
    dialog = page.get_by_role("dialog", name="Jobs")
    field, remind = dialog.get_by_label("A new job"), dialog.get_by_label("Send the text as it is")
    await field.fill("remind me every day at 9 to stretch")
    await field.press("Enter")
    await visitor.sees("Reminder: stretch", "#jobs-proposal")
    assert await remind.is_checked()
    await remind.uncheck()
    await visitor.sees("Job: stretch", "#jobs-proposal")
    await remind.check()
    await visitor.sees("Reminder: stretch", "#jobs-proposal")
    await dialog.get_by_role("button", name="Save this job").click()
    await page.locator(".job").wait_for()
    (job,) = (await visitor.gateway.call("GET", "/api/jobs"))["items"]
    assert (job["text"], job["reminder"]) == ("stretch", True)
    await dialog.get_by_role("button", name="Remove").click()
    await dialog.get_by_role("button", name="Remove it with its history").click()
    await visitor.sees("There are no jobs yet.", "#jobs")
    await page.keyboard.press("Escape")
    assert not visitor.troubles


async def test_the_result_of_a_job_comes_to_the_chat_that_asked(visitor: Visitor) -> None:
    await visitor.say("hello")
    await visitor.sees("You said: hello")
    await visitor.settled()
    call, chat = visitor.gateway.call, await visitor.name()
    body = {"text": "[[reply two files are new]]", "every": "1h", "name": "news", "chat": chat}
    job = await call("POST", "/api/jobs", json=body)
    await call("POST", f"/api/jobs/{job['id']}/run")
    await visitor.sees("two files are new")
    await visitor.sees("(job news")
    await call("DELETE", f"/api/jobs/{job['id']}")
    assert not visitor.troubles
