"""Files that the agent sends and sessions that are deleted, on the command line."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import msgspec
import pytest

from cli.conftest import DEADLINE, Caller, Serve, Talaria
from cli.terminal import Terminal
from support.programs import needs
from support.waiting import wait_until

MAKE = (
    '[[call write_file {"path": "plan.md", "content": "the plan"}]]'
    '[[call send_file {"path": "plan.md"}]][[reply Here it is.]]'
)


@pytest.mark.parametrize("is_running", [True, False])
def test_ask_prints_where_a_sent_file_is(
    is_running: bool, serve: Serve, talaria: Talaria, home: Path
) -> None:
    if is_running:
        serve()
    done = talaria("ask", "--session", "work", MAKE)
    reply, line = done.stdout.splitlines()
    (copy,) = home.glob("files/*work/.talaria/sent/*/plan.md")
    assert (reply, line) == ("Here it is.", f"⇩ plan.md, 8 B: {copy}")
    turn = msgspec.json.decode(talaria("ask", "--json", "--session", "work", MAKE).stdout)
    (file,) = turn["files"]
    assert (file["name"], file["type"], file["size"]) == ("plan.md", "text/markdown", 8)
    assert Path(file["path"]).read_text() == "the plan"
    shown = talaria("sessions", "show", "work").stdout
    assert f"Here it is.\n⇩ plan.md, 8 B: {copy}\n" in shown
    assert f"⇩ plan.md, 8 B: {file['path']}\n" in shown


@pytest.mark.parametrize("is_running", [True, False])
def test_a_session_is_deleted_with_what_it_had(
    is_running: bool, serve: Serve, talaria: Talaria, home: Path
) -> None:
    if is_running:
        serve()
    talaria("ask", "--session", "work", MAKE)
    refused = talaria("sessions", "delete", "work")
    assert refused.returncode == 2
    assert "add --yes" in refused.stderr
    deleted = talaria("sessions", "delete", "work", "--yes")
    (told,) = deleted.stdout.splitlines()
    assert told.startswith("Deleted ses_")
    assert deleted.stderr.startswith(told.removeprefix("Deleted ").rstrip("."))
    assert "chat work, begun " in deleted.stderr
    (folder,) = home.glob("files/*work")
    assert f"The files of its chat are still in {folder}." in deleted.stderr
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["plan.md"]
    assert talaria("sessions", "list").stdout == "There are no sessions yet.\n"
    missing = talaria("sessions", "delete", "work", "--yes")
    assert (missing.returncode, "There is no session work." in missing.stderr) == (1, True)


def test_a_session_with_a_turn_that_runs_is_not_deleted(serve: Serve, talaria: Talaria, home: Path) -> None:
    gateway = serve()
    with Caller(home).open("/api/sessions/work/messages", b'{"text": "[[hang]]"}') as response:
        assert response.status == 202
    refused = talaria("sessions", "delete", "work", "--yes")
    assert refused.returncode == 1
    assert "is not over, so the session cannot be deleted" in refused.stderr
    assert "/cancel" in refused.stderr
    gateway.kill()
    gateway.wait(DEADLINE)
    refused = talaria("sessions", "delete", "work", "--yes")
    assert "No gateway is running." in refused.stderr
    assert "`talaria serve`" in refused.stderr


@pytest.mark.parametrize("point", ["session.deleted", "session.purged"])
def test_the_next_start_removes_what_a_kill_left(
    point: str, serve: Serve, talaria: Talaria, home: Path
) -> None:
    talaria("ask", "--session", "work", MAKE)
    gateway = serve(env={"TALARIA_FAILPOINTS": f"{point}=1"})
    talaria("sessions", "delete", "work", "--yes")
    assert gateway.wait(DEADLINE) == -signal.SIGKILL
    assert list(home.glob("files/*work/.talaria/sent/*/plan.md"))
    assert talaria("sessions", "list").stdout == "There are no sessions yet.\n", (
        "gone at once, also by a kill"
    )
    serve()
    wait_until(lambda: not list(home.glob("files/*work/.talaria/sent/*")))
    assert list(home.glob("files/*work/plan.md"))


@needs("tmux")
def test_a_deletion_is_asked_about(terminal: Terminal, talaria: Talaria, home: Path) -> None:
    talaria("ask", "--session", "work", "hi")
    command = [sys.executable, "-m", "talaria", "sessions", "delete", "work", "--home", str(home)]
    terminal.start(*command)
    terminal.until("Delete it with its history? This cannot be undone.")
    terminal.send("n")
    terminal.until("LEFT WITH 1")
    assert " work " in talaria("sessions", "list").stdout


def test_a_message_and_a_file_are_sent_to_a_chat_without_an_agent(talaria: Talaria, tmp_path: Path) -> None:
    talaria("ask", "--session", "work", "hello")
    (tmp_path / "report.txt").write_text("all is well")
    sent = talaria("send", "work", "--file", str(tmp_path / "report.txt"), "-", stdin="Here is the report.\n")
    assert (sent.returncode, sent.stderr) == (0, "")
    assert "outside of a turn" in talaria("why", sent.stdout.strip()).stdout
    shown = talaria("sessions", "show", "work").stdout
    assert "Here is the report." in shown and "⇩ report.txt, 11 B: " in shown
    missing = talaria("send", "play", "hello")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "There is no chat play." in missing.stderr
