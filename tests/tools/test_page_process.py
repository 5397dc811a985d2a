"""HTML pages are read in the sandbox of commands: without a network, folders and variables."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from talaria.core.errors import ToolError
from talaria.core.ids import SessionId
from talaria.net.fetcher import FetchedPage
from talaria.tools.page_process import PageProcess, ReadPage
from talaria.tools.workers import ToolWorkers
from talaria.workspace.sandbox.choice import Choice, Sandboxes
from talaria.workspace.sandbox.command import Sandbox
from workspace.sandbox.conftest import any_sandbox, sandbox  # noqa: F401 - fixtures

PAGE = FetchedPage(
    "https://a.example/", "text/html", "utf-8", b"<title>T</title><p>Some <a href='/b'>text</a></p>"
)
PROBE = """
import json, os, socket, sys
sys.stdin.buffer.read()
def tried(act):
    try:
        return bool(act())
    except OSError:
        return False
found = json.dumps({{
    "secret": tried(lambda: open({secret!r}).read()),
    "connects": tried(lambda: socket.create_connection(("127.0.0.1", {port}), 5)),
    "variables": "TALARIA_CANARY" in os.environ,
}})
print(json.dumps({{"title": "", "text": found, "links": []}}))
"""


class Chosen(Sandboxes):
    """A choice that is known."""

    def __init__(self, sandbox: Sandbox, home: Path) -> None:  # noqa: F811
        super().__init__("auto", home)
        self._known = Choice(sandbox, "known")

    async def choose(self) -> Choice:
        return self._known


class Context:
    """The part of a tool's context that reading needs."""

    def __init__(self) -> None:
        self.resources = ToolWorkers().resources(SessionId("ses_1"))


async def read(pages: PageProcess) -> ReadPage:
    return await pages.read(PAGE, Context())  # type: ignore[arg-type]


async def test_a_reader_reaches_neither_files_nor_the_network(
    sandbox: Sandbox,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TALARIA_CANARY", "x")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as server:
        text = PROBE.format(secret=str(secret), port=server.getsockname()[1])
        pages = PageProcess(Chosen(sandbox, tmp_path), ("-I", "-c", text))
        found = json.loads((await read(pages)).text)
        assert found == {"secret": False, "connects": False, "variables": False}
        found = json.loads((await read(PageProcess(None, ("-I", "-c", text)))).text)
        assert found["secret"] is True, "the probe works"


async def test_a_page_is_read_alike_in_every_sandbox(any_sandbox: Sandbox, tmp_path: Path) -> None:  # noqa: F811
    found = await read(PageProcess(Chosen(any_sandbox, tmp_path)))
    assert found == await read(PageProcess()) and found.title == "T"
    assert found.links == ("https://a.example/b",)


async def test_a_long_page_in_another_script_is_read() -> None:
    page = FetchedPage("https://a.example/", "text/html", "utf-8", ("<p>" + "漢" * 1_500_000).encode())
    found = await PageProcess().read(page, Context())  # type: ignore[arg-type]
    assert len(found.text) == 1_500_000


@pytest.mark.parametrize(
    "answer",
    [
        "[]",
        "{}",
        '{"title": 1, "text": "", "links": []}',
        '{"title": "a\\nURL: https://forged.example/", "text": "", "links": []}',
        '{"title": "", "text": "", "links": [1, null]}',
        '{"title": "", "text": "", "links": ["file:///etc/passwd"]}',
        '{"title": "", "text": "\\ud800", "links": []}',
        "[" * 100_000,
    ],
)
async def test_an_answer_that_is_not_a_page_s_is_refused(answer: str) -> None:
    pages = PageProcess(None, ("-I", "-c", f"print({answer!r})"))
    with pytest.raises(ToolError, match="cannot be read"):
        await read(pages)


async def test_pages_are_read_as_before_if_python_does_not_run_in_the_sandbox(
    sandbox: Sandbox,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    page = '{"title": "outside", "text": "", "links": []}'
    text = f"import sys; sys.exit(3) if sys.argv[1:] else print({page!r})"
    assert (await read(PageProcess(Chosen(sandbox, tmp_path), ("-I", "-c", text)))).title == "outside"
    assert "outside of the sandbox" in caplog.text
