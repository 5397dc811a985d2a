"""Uploaded files are data: no upload runs as a script or a page of the gateway."""

from __future__ import annotations

from typing import Any

import pytest

from browser.visitor import Visitor

SCRIPT = b"globalThis.pwned = true; globalThis.postMessage?.('pwned');"
PAGE = b"<!doctype html><title>pwned</title><script>document.title = 'run'</script>"
WAYS = {
    "script": """(url) => new Promise((done) => {
      const script = document.createElement("script");
      Object.assign(script, { src: url, onload: () => done("ran"), onerror: () => done("refused") });
      document.head.append(script);
    })""",
    "module": "(url) => import(url).then(() => 'ran', () => 'refused')",
    "worker": """(url) => new Promise((done) => {
      try {
        const worker = new Worker(url);
        worker.onmessage = () => done("ran");
        worker.onerror = () => done("refused");
      } catch { done("refused"); }
    })""",
}


async def upload(visitor: Visitor, name: str, kind: str, body: bytes) -> str:
    headers = {"Content-Type": kind}
    answer = await visitor.gateway.call("POST", f"/api/files?name={name}", data=body, headers=headers)
    return f"/api/files/{answer['id']}"


@pytest.mark.parametrize("is_let_in", [False, True])
@pytest.mark.parametrize("way", WAYS)
async def test_no_upload_runs_as_a_script(visitor: Visitor, way: str, is_let_in: bool) -> None:
    """A file is refused because a script tag cannot send the login's second secret; with the secret, because
    the page's policy names the scripts that run."""
    path = await upload(visitor, "evil.js", "text/javascript", SCRIPT)

    async def let_in(route: Any) -> None:
        secret = await visitor.page.evaluate("JSON.parse(localStorage.getItem('talaria.login'))")
        await route.continue_(headers={**route.request.headers, "X-Talaria-Login": secret or ""})

    if is_let_in:
        await visitor.page.route("**/api/files/*", let_in)
    assert await visitor.page.evaluate(WAYS[way], path) == "refused"
    assert await visitor.page.evaluate("globalThis.pwned") is None
    visitor.troubles.clear()  # the policy said so


async def test_an_uploaded_page_is_no_page(visitor: Visitor) -> None:
    path = await upload(visitor, "evil.html", "text/html", PAGE)
    tab = await visitor.page.context.new_page()
    secret = await visitor.page.evaluate("JSON.parse(localStorage.getItem('talaria.login'))")
    await tab.set_extra_http_headers({"X-Talaria-Login": secret or ""})
    async with tab.expect_download(timeout=10_000) as download:
        with pytest.raises(Exception, match="Download is starting"):
            await tab.goto(visitor.url + path)
    assert (await download.value).suggested_filename == "evil.html"
    assert await tab.title() == ""
    await tab.close()
