"""`talaria serve` from its banner to its end, as a process."""

from __future__ import annotations

import os
import pty
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import msgspec

from talaria.models.local.manifest import DEFAULT

Talaria = Callable[..., subprocess.CompletedProcess[str]]
Serve = Callable[..., "subprocess.Popen[str]"]


def read_banner(process: subprocess.Popen[str]) -> dict[str, str]:
    """What follows the first line, up to the home."""
    assert process.stdout is not None
    banner: dict[str, str] = {}
    while "home" not in banner:
        name, _, text = process.stdout.readline().strip().partition(" ")
        banner[name] = text.strip()
    return banner


def test_it_says_what_to_do_next_and_the_curl_line_works(serve: Serve, home: Path) -> None:
    process = serve()
    banner = read_banner(process)
    assert banner["model"] == "scripted/m"
    assert "read_file" in banner["tools"]
    assert banner["spend"].startswith("no cap")
    assert banner["home"] == str(home)
    assert f"chat --home {home}" in banner["chat"]
    done = subprocess.run(banner["curl"], shell=True, capture_output=True, text=True, check=True)
    assert msgspec.json.decode(done.stdout)["reply"] == "You said: Hello"


def test_it_says_what_may_be_spent(serve: Serve) -> None:
    env = {"TALARIA_BUDGETS__PER_DAY_USD": "5", "TALARIA_BUDGETS__PER_SESSION_USD": "0.5"}
    assert read_banner(serve(env=env))["spend"] == "at most $5 a day, at most $0.5 a session"


def test_sigterm_drains_and_leaves_nothing_behind(serve: Serve, home: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        process = serve()
        info = msgspec.json.decode((home / "gateway.json").read_bytes())
        assert info["pid"] == process.pid
        assert urllib.request.urlopen(f"{info['url']}/healthz").status == 200
        process.send_signal(number)
        assert process.wait(20) == 0
        assert not (home / "gateway.json").exists()


def test_a_second_signal_leaves_at_once(serve: Serve, home: Path, talaria: Talaria) -> None:
    process = serve(env={"TALARIA_SHUTDOWN__DEADLINE": "60s"})
    info = msgspec.json.decode((home / "gateway.json").read_bytes())
    token = (home / "http.token").read_text().strip()
    request = urllib.request.Request(
        f"{info['url']}/api/sessions/x/messages",
        b'{"text": "[[hang]]"}',
        {"Authorization": f"Bearer {token}"},
    )
    assert urllib.request.urlopen(request).status == 202
    process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 20
    while (home / "gateway.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 130


def test_a_home_serves_one_gateway(serve: Serve, talaria: Talaria) -> None:
    process = serve()
    second = talaria("serve", "--port", "0")
    assert second.returncode == 1
    assert f"Another process (pid {process.pid}) is using the home" in second.stderr
    assert second.stdout == ""


def test_a_busy_configured_port_is_an_error(talaria: Talaria) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = talaria("serve", "--port", str(port))
    assert done.returncode == 1
    assert f"Port {port} on 127.0.0.1 is in use" in done.stderr


def test_a_database_of_a_newer_version_is_left_alone(talaria: Talaria, home: Path) -> None:
    connection = sqlite3.connect(home / "talaria.db")
    connection.execute(f"PRAGMA application_id = {0x54414C41}")
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    before = (home / "talaria.db").read_bytes()
    done = talaria("serve", "--port", "0")
    assert done.returncode == 1
    assert "was written by a newer Talaria (schema 999" in done.stderr
    assert (home / "talaria.db").read_bytes() == before


def test_without_a_model_it_runs_and_says_what_to_do(serve: Serve, home: Path) -> None:
    (home / "config.toml").unlink()
    banner = read_banner(serve(env={"OPENAI_API_KEY": "sk-not-spent"}))
    assert banner["model"].startswith(f"built-in {DEFAULT}: The built-in model")
    assert banner["or:"].startswith("talaria setup")
    assert "found: OPENAI_API_KEY" in banner["or:"]


def test_warnings_of_the_config_are_logged(serve: Serve, home: Path, tmp_path: Path) -> None:
    with (home / "config.toml").open("a") as file:
        file.write("[pol]\nmax_agents = 3\n")
    read_banner(serve())
    assert "pool" in (tmp_path / "serve.log").read_text()


def test_a_closed_terminal_ends_what_ran_in_it(home: Path, environ: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "talaria", "serve", "--port", "0", "--no-model"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={"TALARIA_HOME": str(home), **environ},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        said = b""
        while b"home   " not in said:
            said += os.read(ours, 4096)
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        assert process.wait(20) == 0
        assert not (home / "gateway.json").exists()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
