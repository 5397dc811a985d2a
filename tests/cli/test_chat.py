"""`talaria chat` in a real terminal: typed keys in, the screen out."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from cli.conftest import Serve, Talaria
from cli.terminal import Terminal
from support.programs import needs

pytestmark = needs("tmux")


@pytest.fixture
def chat(terminal: Terminal, home: Path) -> Terminal:
    """A chat at its prompt, with a gateway inside."""
    terminal.start(sys.executable, "-m", "talaria", "chat", "--home", str(home))
    terminal.until("Talaria", "›")
    return terminal


def test_a_conversation(chat: Terminal, home: Path) -> None:
    assert "scripted/m · chat “terminal”" in chat.screen()
    assert "No gateway runs, so this chat runs one itself until you leave" in chat.screen()
    chat.send("hello **there** [[chunks 4]] [[chunk-delay 0.05]]")
    screen = chat.until("You said: hello there", " out · ", "›")
    assert screen.count("You said") == 1
    chat.send('[[call list_files {"path": "sub"}]] [[reply Nothing in it.]]')
    chat.until("⚙ list_files sub … ", "Nothing in it.", "›")
    chat.type("/sta")
    chat.until("session, model and what is running")
    chat.press("Tab")
    chat.until("/status")
    chat.press("Enter")
    chat.until("Agent main with scripted/m", "›")
    chat.press("C-c")
    chat.until("Press Ctrl-C again or Ctrl-D to leave.", "›")
    chat.press("C-d")
    chat.until("LEFT WITH 0")
    assert (home / "chat.history").stat().st_mode & 0o777 == 0o600
    assert not (home / "gateway.json").exists()


def test_a_command_folds_unfolds_and_is_undone(chat: Terminal, home: Path) -> None:
    command = json.dumps({"command": "seq 30 | tee x; exit 4"})
    chat.send(f"[[call terminal {command}]] [[reply It ran.]]")
    screen = chat.until("… exit code 4 · 30 lines (Ctrl-O shows them)", "It ran.", "›")
    assert "  29" not in screen.splitlines()
    chat.press("C-o")
    chat.until("  29", "  30", "›")
    chat.send("/undo")
    chat.until("Removed: `x`.", "›")
    assert not list((home / "files").rglob("x"))


def test_a_file_that_is_sent_is_told_with_its_place(chat: Terminal, home: Path) -> None:
    write = '[[call write_file {"path": "plan.md", "content": "the plan"}]]'
    chat.send(f'{write}[[call send_file {{"path": "plan.md"}}]][[reply Here it is.]]')
    chat.until("Here it is.", "⇩ plan.md, 8 B: ", "›")
    (copy,) = home.glob("files/*terminal/.talaria/sent/*/plan.md")
    assert str(copy) in chat.screen().replace("\n", "")


def test_ctrl_c_cancels_the_turn_and_the_chat_goes_on(chat: Terminal) -> None:
    chat.send("one two three four five [[chunks 30]] [[chunk-delay 1]]")
    chat.until("You said:", "›")  # the turn runs: before it is accepted, Ctrl-C takes the message back
    chat.type("typed ahead")
    chat.press("C-c")
    chat.until("Cancelling…", "(cancelled)", "› typed ahead")
    chat.press("Enter")
    chat.until("You said: typed ahead", "›")


def test_the_keyboard_is_live_while_a_turn_runs(chat: Terminal) -> None:
    """Typed text is shown, a command is answered at once, and a message waits, and says so."""
    chat.send("[[hang]]")
    chat.until("thinking… (Ctrl-C cancels)\n›", "›")
    chat.type("/whoanyi")
    chat.until("thinking…", "› /whoanyi")
    chat.press("BSpace", "BSpace", "BSpace")
    chat.type("mi")
    chat.until("› /whoami")
    chat.press("Enter")
    chat.until("You are", "thinking… (Ctrl-C cancels)\n›", "›")
    chat.send("and then")
    chat.until("› and then", "(it waits for the running turn)", "thinking… (Ctrl-C cancels)\n›", "›")
    chat.send("/stop")
    chat.until("(cancelled)", "You said: and then", "›")


def test_ctrl_d_while_a_turn_runs_says_how_to_leave(chat: Terminal) -> None:
    chat.send("[[hang]]")
    chat.until("thinking… (Ctrl-C cancels)\n›", "›")
    chat.type("text")
    chat.press("C-d")
    chat.until("› text")
    chat.press("C-u", "C-d")
    chat.until(
        "A turn is running. Ctrl-D again leaves, its reply is kept", "thinking… (Ctrl-C cancels)\n›", "›"
    )
    chat.press("C-d")
    chat.until("LEFT WITH 0")


def test_a_session_shows_its_own_model(terminal: Terminal, home: Path, talaria: Talaria) -> None:
    assert talaria("ask", "--session", "terminal", "hello").returncode == 0
    config = (home / "config.toml").read_text()
    (home / "config.toml").write_text(config.replace('name = "m"', 'name = "another"'))
    terminal.start(sys.executable, "-m", "talaria", "chat", "--home", str(home))
    screen = terminal.until("Ctrl-D leaves.", "›")
    assert "scripted/m · chat “terminal”" in screen
    assert "This session keeps its model; /new begins one with scripted/another." in screen


def test_what_is_sent_to_the_chat_is_shown_also_what_came_before_it_was_opened(
    terminal: Terminal, home: Path, serve: Serve, talaria: Talaria
) -> None:
    serve()
    talaria("ask", "--session", "terminal", "hello")
    talaria("send", "terminal", "The build is red.")
    terminal.start(sys.executable, "-m", "talaria", "chat", "--home", str(home))
    terminal.until("Sent to this chat:", "The build is red.", "›")
    terminal.type("half a mess")
    talaria("send", "terminal", "The backup is done.")
    terminal.until("The backup is done.", "› half a mess")
    terminal.send("age")
    screen = terminal.until("You said: half a message", "›")
    assert screen.count("The backup is done.") == 1


def test_several_lines_are_one_message(chat: Terminal) -> None:
    chat.type("one")
    chat.press("M-Enter")
    chat.type("two\\")
    chat.press("Enter")
    chat.type("three [[history]]")
    chat.press("Enter")
    chat.until("\n2", "›")


def test_model_text_cannot_steer_the_terminal(chat: Terminal) -> None:
    before = chat.title()
    chat.send("first")
    chat.until("You said: first", "›")
    # Typed as JSON escapes in a tool call: the result carries real escape characters.
    chat.send(r'[[call write_file {"path": "x", "content": "\u001b]0;owned\u0007\u001b[2J\u001b[Hgone"}]]')
    chat.until("⚙ write_file x … ok", "›")
    chat.send('[[call read_file {"path": "x"}]]')
    screen = chat.until("[2J[Hgone", "›")
    assert "You said: first" in screen
    assert chat.title() == before


def test_a_chat_outlives_its_gateway(terminal: Terminal, home: Path, serve: Serve) -> None:
    process = serve()
    terminal.start(sys.executable, "-m", "talaria", "chat", "--home", str(home))
    terminal.until("Talaria", "›")
    terminal.send("[[words 12]] [[chunks 12]] [[chunk-delay 0.1]]")
    terminal.until("word1 word2", "›")
    process.kill()
    terminal.until("Your message is safe", "waiting for the gateway… (Ctrl-C stops waiting)\n›", "›")
    serve()
    terminal.until("The gateway is back.", "word11 word12", " out · ", "›")
    terminal.press("C-d")
    terminal.until("LEFT WITH 0")


def test_a_chat_whose_terminal_hangs_up_more_than_once_ends(chat: Terminal, home: Path) -> None:
    pid = json.loads((home / "gateway.json").read_text())["pid"]
    chat.send("[[hang]]")
    chat.until("thinking… (Ctrl-C cancels)\n›", "›")
    for _ in range(5):
        os.kill(pid, signal.SIGHUP)
    chat.until("LEFT WITH 0")
    assert not (home / "gateway.json").exists()
