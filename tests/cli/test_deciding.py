"""Decisions at a terminal: keys in `talaria chat`, and what `talaria ask` says of a turn that waits."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import Serve, Talaria
from cli.terminal import Terminal
from support.programs import needs

WRITE = '[[call write_file {"path": "%s", "content": "hi"}]][[reply Written %s.]]'


@pytest.fixture
def careful(home: Path) -> Path:
    """A home whose gateway asks about every call that does not only read."""
    with (home / "config.toml").open("a") as config:
        config.write('\n[tools]\napprovals = "always"\n')
    return home


@needs("tmux")
def test_keys_decide_in_the_chat(terminal: Terminal, careful: Path) -> None:
    terminal.start(sys.executable, "-m", "talaria", "chat", "--home", str(careful))
    terminal.until("Talaria", "›")
    terminal.send(WRITE % ("a.txt", "one"))
    terminal.until('"path": "a.txt"', "a = approve once, s = approve for the session, d = deny ›")
    assert not list(careful.glob("files/*/a.txt"))
    terminal.press("x")
    terminal.press("a")
    terminal.until("Approved, once.", "Written one.", "›")
    assert list(careful.glob("files/*/a.txt"))
    terminal.send(WRITE % ("b.txt", "two"))
    terminal.until('"path": "b.txt"', "d = deny ›")
    terminal.press("d")
    terminal.until("Denied.", "Written two.", "›")
    assert not list(careful.glob("files/*/b.txt"))
    terminal.send('[[call ask_user {"question": "Which?", "choices": ["red", "blue"]}]]')
    terminal.until("? Which?", "your answer (or its number) ›")
    terminal.send("2")
    terminal.until("Answered: blue", "Tool results: blue", "›")
    terminal.send(WRITE % ("c.txt", "three"))
    terminal.until('"path": "c.txt"', "d = deny ›")
    terminal.press("C-c")
    terminal.until("(cancelled)", "›")
    terminal.press("C-d")
    terminal.until("LEFT WITH 0")


def test_lines_of_a_pipe_decide_in_the_chat(careful: Path, talaria: Talaria) -> None:
    lines = f"{WRITE % ('a.txt', 'one')}\na\n{WRITE % ('b.txt', 'two')}\ndeny\n"
    done = talaria("chat", stdin=lines)
    assert "Written one." in done.stdout and "Written two." in done.stdout
    assert [path.name for path in careful.glob("files/*/?.txt")] == ["a.txt"]


def test_ask_says_what_it_waits_for_and_how_to_decide(
    serve: Serve, talaria: Talaria, careful: Path, environ: dict[str, str]
) -> None:
    serve()
    asking = subprocess.Popen(
        [sys.executable, "-m", "talaria", "ask", "--home", str(careful), WRITE % ("a.txt", "one")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
        stdin=subprocess.DEVNULL,
    )
    try:
        assert asking.stderr is not None
        told = ""
        while "/deny" not in told:
            line = asking.stderr.readline()
            assert line, told
            told += line
        assert '"path": "a.txt"' in told
        found = re.search(r"ask --session (\S+) '(/approve q_\w+)'", told)
        assert found is not None, told
        approved = talaria("ask", "--session", found[1], found[2])
        assert approved.stdout.startswith("Approved, once: write_file")
        out, _ = asking.communicate(timeout=30)
        assert (out, asking.returncode) == ("Written one.\n", 0)
    finally:
        asking.kill()
        asking.wait()
    why = talaria("why").stdout
    turn_id = next(word for line in why.splitlines() if "write_file" in line for word in line.split()[-1:])
    story = talaria("why", turn_id).stdout
    assert "Asked a person whether it may run" in story and "approved it" in story
