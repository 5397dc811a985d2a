"""`talaria ask`, `chat` through pipes, and `sessions`, with and without a running gateway."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cli.conftest import Caller, Serve, Talaria
from cli.terminal import Terminal
from support.programs import needs
from support.waiting import wait_until

needs_tmux = needs("tmux")


def test_ask_goes_through_the_running_gateway(serve: Serve, talaria: Talaria, home: Path) -> None:
    serve()
    first = talaria("ask", "--session", "work", "one")
    assert (first.stdout, first.stderr, first.returncode) == ("You said: one\n", "", 0)
    second = talaria("ask", "--session", "work", "-", stdin="[[history]]")
    assert second.stdout == "4\n"
    third = talaria("ask", stdin="from a pipe\n")
    assert third.stdout == "You said: from a pipe\n"
    assert not (home / "logs" / "console.log").exists()


def test_ask_runs_a_gateway_inside_when_there_is_none(talaria: Talaria, home: Path) -> None:
    for history in ("2", "4"):
        done = talaria("ask", "--session", "work", "[[history]]")
        assert (done.stdout, done.stderr, done.returncode) == (f"{history}\n", "", 0)
    assert not (home / "gateway.json").exists()


def test_a_gateway_inside_leaves_the_configured_address_to_a_real_one(talaria: Talaria, home: Path) -> None:
    with (home / "config.toml").open("a") as config:
        config.write('[http]\nhost = "192.0.2.1"\nport = 1\n')
    done = talaria("ask", "hello")
    assert (done.returncode, done.stdout) == (0, "You said: hello\n"), done.stderr


def test_a_command_of_its_own_leaves_alone_what_others_are_owed(
    serve: Serve, talaria: Talaria, home: Path
) -> None:
    """A shell without the key that their messages need would fail them all for good."""
    with (home / "config.toml").open("a") as config:
        config.write('[providers.keyed]\nbase_url = "http://127.0.0.1:9/v1"\napi_key_env = "THEIR_KEY"\n')
    env = {"THEIR_KEY": "sk-theirs", "TALARIA_MODEL__PROVIDER": "keyed"}
    process = serve(env=env)
    turn = Caller(home).call("/api/sessions/theirs/messages", b'{"text": "hello"}')["turn_id"]
    process.kill()
    process.wait()
    (home / "gateway.json").unlink()
    assert talaria("ask", "hi").stdout == "You said: hi\n"
    assert "Failed" not in talaria("why", turn).stdout
    theirs = talaria("ask", "--session", "theirs", "go on")
    assert theirs.returncode == 1
    assert "THEIR_KEY" in talaria("why", turn).stdout, "who asks there hears of it"


def test_a_failed_turn_exits_with_1_and_the_reason(serve: Serve, talaria: Talaria) -> None:
    serve()
    done = talaria("ask", "[[status 400]]")
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr.startswith("talaria: scripted (model m) refused the request (HTTP 400)")
    assert "\n  The whole story: talaria why turn_" in done.stderr
    assert "/model" not in done.stderr and "with --model" in done.stderr
    as_json = talaria("ask", "--json", "[[status 400]]")
    assert as_json.returncode == 1
    assert msgspec.json.decode(as_json.stdout)["state"] == "failed"


def test_ask_brings_files_into_the_chats_folder(talaria: Talaria, home: Path, tmp_path: Path) -> None:
    for name in ("a.txt", "b ü.bin"):
        (tmp_path / name).write_bytes(b"\0" + name.encode())
    files = [arg for name in ("a.txt", "b ü.bin") for arg in ("--file", str(tmp_path / name))]
    done = talaria("ask", "--session", "work", *files, "Look.")
    assert (done.stderr, done.returncode) == ("", 0)
    assert "[file a.txt (text/plain, 6 bytes) at a.txt]" in done.stdout
    kept = {path.name: path.read_bytes() for path in (home / "files").glob("*work/*.*")}
    assert kept == {"a.txt": b"\0a.txt", "b ü.bin": b"\0b \xc3\xbc.bin"}


def test_names_of_sessions_are_checked_before_anything_is_sent(talaria: Talaria) -> None:
    for name in ("", "a b", "x" * 129):
        refused = talaria("ask", "--session", name, "hello")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "is not a session name: use 1 to 128 letters" in refused.stderr
    assert talaria("ask", "--session", "x" * 128, "hello").returncode == 0
    missing = talaria("ask", "--session", "ses_0", "hello")
    assert (missing.returncode, missing.stdout) == (1, "")


def test_json_is_the_whole_turn(talaria: Talaria) -> None:
    done = talaria("ask", "--json", '[[call todo {"items": []}]] [[reply fine]]')
    turn = msgspec.json.decode(done.stdout)
    assert (turn["state"], turn["reply"]) == ("done", "fine")
    assert [step["kind"] for step in turn["steps"]] == ["model", "tool", "model"]


def test_a_model_that_nobody_knows_is_told(talaria: Talaria) -> None:
    done = talaria("ask", "--model", "nope", "hi")
    assert done.returncode == 1
    assert "There is no model or agent named nope." in done.stderr


def test_without_a_model_ask_says_what_to_do(talaria: Talaria, home: Path) -> None:
    (home / "config.toml").unlink()
    done = talaria("ask", "hi")
    assert done.returncode == 1
    assert "The built-in model" in done.stderr  # is not here, or this machine cannot run it
    assert "talaria setup" in done.stderr


def test_a_file_that_a_dead_gateway_left_is_no_gateway(serve: Serve, talaria: Talaria, home: Path) -> None:
    process = serve()
    process.kill()
    process.wait()
    info = msgspec.json.decode((home / "gateway.json").read_bytes())
    # Its pid belongs to someone else by now: to us.
    stale = {**info, "pid": os.getpid()}
    (home / "gateway.json").write_bytes(msgspec.json.encode(stale))
    assert talaria("ask", "hello").stdout == "You said: hello\n"


def test_an_interrupted_ask_exits_with_130(home: Path, environ: dict[str, str], serve: Serve) -> None:
    serve()
    command = [sys.executable, "-m", "talaria", "ask", "--home", str(home), "--session", "x", "[[hang]]"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            wait_until(lambda: "[[hang]]" in _show(home, environ))
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (130, b"", b"")


@needs_tmux
def test_on_a_terminal_a_line_moves_until_the_answer_comes(
    home: Path, terminal: Terminal, serve: Serve
) -> None:
    serve()
    message = '[[call todo {"items": []}]] [[delay 2.5]] [[reply fine]]'
    terminal.start(sys.executable, "-m", "talaria", "ask", "--home", str(home), message)
    terminal.until("⚙ todo … ok", "waiting … 1 s")
    terminal.until("waiting … 2 s")
    screen = terminal.until("fine", "LEFT WITH 0")
    assert screen.split() == ["⚙", "todo", "…", "ok", "fine", "LEFT", "WITH", "0"]


@needs_tmux
@pytest.mark.parametrize("is_running", [True, False])
def test_an_interrupted_ask_says_what_became_of_the_message(
    is_running: bool, home: Path, terminal: Terminal, serve: Serve, environ: dict[str, str]
) -> None:
    if is_running:
        serve()
    command = [sys.executable, "-m", "talaria", "ask", "--home", str(home), "--session", "x", "[[hang]]"]
    terminal.start(*command)
    terminal.until("waiting … 2 s")
    terminal.press("C-c")
    look = f"talaria sessions show x --home {home}"
    said = "".join(terminal.until("Cancelled. The message is saved", "LEFT WITH 130").split("\n"))
    assert f"without an answer: {look}" in said
    assert "[[hang]]" in _show(home, environ)


def _show(home: Path, environ: dict[str, str]) -> str:
    command = [sys.executable, "-m", "talaria", "sessions", "show", "x", "--home", str(home)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False).stdout


def test_chat_answers_the_lines_of_a_pipe(talaria: Talaria) -> None:
    done = talaria("chat", stdin="one\n\n/title My talk\n[[reply \x1b[31mred]]\n")
    assert done.stdout == "You said: one\nTitle set: My talk\n[31mred\n"
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize("is_running", [True, False])
def test_sessions_are_listed_shown_and_ended(
    is_running: bool, serve: Serve, talaria: Talaria, home: Path
) -> None:
    (home / "files").mkdir()
    if is_running:
        serve()
    talaria("ask", "--session", "work", 'hi [[call read_file {"path": "no.txt"}]]')
    listed = talaria("sessions", "list").stdout.splitlines()
    assert len(listed) == 2
    assert listed[0].startswith("LAST USED")
    assert " work " in listed[1]
    shown = talaria("sessions", "show", "work").stdout
    assert "\nyou, " in shown
    assert "⚙ read_file no.txt\n  ↳ read_file: error: " in shown
    ended = talaria("sessions", "end", "work")
    assert ended.stdout.startswith("Ended ses_")
    assert "had ended already" in talaria("sessions", "end", ended.stdout.split()[1].rstrip(".")).stdout
    assert "(ended)" in talaria("sessions", "list").stdout
    missing = talaria("sessions", "show", "nope")
    assert missing.returncode == 1
    assert missing.stderr.startswith("talaria: There is no session nope.\n  `talaria sessions list`")


def test_a_home_without_sessions_says_so_and_stays_as_it_is(talaria: Talaria, home: Path) -> None:
    assert talaria("sessions", "list").stdout == "There are no sessions yet.\n"
    assert sorted(path.name for path in home.iterdir()) == ["config.toml"]


def test_a_database_elsewhere_is_read_without_a_gateway_too(talaria: Talaria, tmp_path: Path) -> None:
    env = {"TALARIA_STORE__URL": f"sqlite://{tmp_path}/elsewhere.db"}
    assert talaria("ask", "--session", "work", "hi", env=env).returncode == 0
    assert " work " in talaria("sessions", "list", env=env).stdout
    assert talaria("sessions", "list").stdout == "There are no sessions yet.\n"


def test_a_chat_works_on_the_folder_that_it_is_given_and_keeps_it(
    talaria: Talaria, home: Path, tmp_path: Path
) -> None:
    project = tmp_path / "site"
    project.mkdir()
    if os.geteuid() == 0:
        os.chown(project, 65534, 65534)
    write = '[[call write_file {"path": "%s", "content": "x"}]][[reply done]]\n'
    first = talaria("chat", "--dir", str(project), stdin=write % "one.txt")
    assert f"This chat works on {project}." in first.stderr
    talaria("chat", stdin=write % "two.txt")
    assert {path.name for path in project.iterdir()} == {"one.txt", "two.txt"}
    refused = talaria("chat", "--dir", str(home), stdin="hello\n")
    assert refused.returncode == 1
    assert f"{home} contains a folder of the gateway, or lies in it" in refused.stderr
    back = talaria("chat", "--own-folder", stdin=write % "three.txt")
    own = home / "files" / "agent%3Amain%3Ahttp%3Aapi%3Aterminal"
    assert f"This chat works on {own}." in back.stderr
    assert ((own / "three.txt").exists(), (project / "three.txt").exists()) == (True, False)
    both = talaria("chat", "--own-folder", "--dir", str(project), stdin="hello\n")
    assert (both.returncode, "--dir and --own-folder" in both.stderr) == (2, True)
