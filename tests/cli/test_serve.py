"""`talaria serve` from its banner to its end, as a process."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import msgspec
import pytest

from cli.conftest import DEADLINE, Caller, Serve, Talaria
from support.forks import ForkedProcess
from support.waiting import wait_until
from talaria.core.program import this_version
from talaria.models.local.runtime import missing_requirement
from talaria.models.local.weights import DEFAULT_MODEL


def read_banner(process: ForkedProcess) -> dict[str, str]:
    """Return the lines up to the spend cap by their names. Else their first words name them."""
    assert process.stdout is not None
    banner: dict[str, str] = {}
    while "spend cap" not in banner:
        line = process.stdout.readline()
        name = line[:10].strip() or line.split(maxsplit=1)[0]
        banner[name] = line[10:].strip().removeprefix(f"{name} ")
    return banner


def log_in(link: str) -> dict[str, str]:
    """The headers of a page that a link with a code has logged in."""
    address, _, code = link.partition("/#code=")
    body = msgspec.json.encode({"code": code})
    with urllib.request.urlopen(urllib.request.Request(f"{address}/api/login", body)) as response:
        secret = msgspec.json.decode(response.read())["secret"]
        cookie = str(response.headers["Set-Cookie"]).partition(";")[0]
        return {"Cookie": cookie, "X-Talaria-Login": secret}


def test_it_says_what_there_is_and_how_to_log_in(
    serve: Serve, home: Path, talaria: Talaria, tmp_path: Path
) -> None:
    banner = read_banner(serve())
    assert banner["model"] == "scripted/m"
    assert banner["tools"] == "ask, delegate, files, jobs, memory, recall, skills, terminal, todo, web"
    assert banner["spend cap"] == "none"
    _, version, address, how = (tmp_path / "title").read_text().split(maxsplit=3)
    assert version == this_version()
    assert f"open --home {home} logs a browser in)" in how
    check_link(talaria("open", "--print").stdout.strip(), address)


def check_link(link: str, address: str) -> None:
    assert link.startswith(f"{address}/#code=")
    request = urllib.request.Request(f"{address}/api/pool", headers=log_in(link))
    assert urllib.request.urlopen(request).status == 200
    with pytest.raises(urllib.error.HTTPError, match="401"):
        log_in(link)


def test_no_live_link_is_written_where_no_terminal_is(serve: Serve, home: Path, tmp_path: Path) -> None:
    """A pipe, a file and a journal keep what they are given; a link in them would log their readers in."""
    process = serve()
    read_banner(process)
    process.send_signal(signal.SIGTERM)
    process.wait(DEADLINE)
    assert process.stdout is not None
    told = (tmp_path / "title").read_text() + process.stdout.read() + (tmp_path / "serve.log").read_text()
    logged = "".join(path.read_text() for path in (home / "logs").iterdir())
    assert "ready at http://127.0.0.1:" in logged
    assert "code=" not in told + logged


def test_a_page_can_be_opened_only_while_it_runs(talaria: Talaria) -> None:
    done = talaria("open", "--print")
    assert done.returncode == 1
    assert "No gateway runs on this home" in done.stderr
    assert "serve" in done.stderr


def test_open_starts_a_browser_where_there_is_one(serve: Serve, talaria: Talaria, tmp_path: Path) -> None:
    process = serve()
    browser = write_browser(tmp_path)
    done = talaria("open", env={"BROWSER": str(browser)})
    assert done.stdout == ""
    assert "Opened in your browser" in done.stderr
    page = Path((tmp_path / "opened").read_text().removeprefix("file://"))
    assert (page.stat().st_mode & 0o777, page.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    found = re.search(r'url=(http://\S+/#code=\w+)"', page.read_text())
    assert found is not None
    log_in(found[1])
    assert not page.exists()
    talaria("open", env={"BROWSER": str(browser)})
    process.send_signal(signal.SIGTERM)
    process.wait(DEADLINE)
    assert not page.parent.exists()


def write_browser(folder: Path) -> Path:
    """Write a browser that notes its argument, and the command lines that another user sees meanwhile."""
    browser = folder / "browser"
    browser.write_text(f"""#!{sys.executable}
import os, pathlib, sys
folder = pathlib.Path({str(folder)!r})
(folder / "opened").write_text(sys.argv[1])
with (folder / "seen").open("wb") as seen:
    if os.getuid() == 0:
        os.setgroups([])
        os.setuid(65534)
    for line in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            seen.write(line.read_bytes())
        except OSError:
            pass
""")
    browser.chmod(0o755)
    return browser


def test_other_users_see_no_login_code_while_a_browser_starts(
    serve: Serve, talaria: Talaria, tmp_path: Path
) -> None:
    serve()
    address = (tmp_path / "title").read_text().split()[2]
    talaria("open", env={"BROWSER": str(write_browser(tmp_path))})
    seen = (tmp_path / "seen").read_bytes()
    assert b"/open/" in seen
    assert f"{address}/#code=".encode() not in seen


def test_a_browser_that_cannot_read_the_home_gets_no_page(
    serve: Serve, talaria: Talaria, home: Path, tmp_path: Path
) -> None:
    serve()
    address = (tmp_path / "title").read_text().split()[2]
    (tmp_path / "snap").mkdir()
    browser = write_browser(tmp_path / "snap")
    done = talaria("open", env={"BROWSER": str(browser)})
    assert "cannot read" in done.stderr
    check_link(done.stdout.strip(), address)
    assert not (tmp_path / "snap" / "opened").exists()
    assert not (home / "open").exists()


def test_without_a_cap_it_says_how_to_set_one(serve: Serve, home: Path) -> None:
    config = (home / "config.toml").read_text().replace("scripted", "openai").replace('"m"', '"gpt-5-mini"')
    (home / "config.toml").write_text(config)
    process = serve()
    assert read_banner(process)["spend cap"] == "none"
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == f"{'':11}to set one: talaria config set budgets.per_day_usd 5 --home {home}\n"


def test_it_says_what_may_be_spent(serve: Serve) -> None:
    env = {"TALARIA_BUDGETS__PER_DAY_USD": "5", "TALARIA_BUDGETS__PER_SESSION_USD": "0.5"}
    assert read_banner(serve(env=env))["spend cap"] == "$5 a day, $0.5 a session"


def test_sigterm_drains_and_leaves_nothing_behind(serve: Serve, home: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        process = serve()
        info = msgspec.json.decode((home / "gateway.json").read_bytes())
        assert info["pid"] == process.pid
        assert urllib.request.urlopen(f"{info['url']}/healthz").status == 200
        process.send_signal(number)
        assert process.wait(DEADLINE) == 0
        assert not (home / "gateway.json").exists()


def test_a_second_signal_leaves_at_once(serve: Serve, home: Path, talaria: Talaria) -> None:
    process = serve(env={"TALARIA_SHUTDOWN__DEADLINE": "60s"})
    with Caller(home).open("/api/sessions/x/messages", b'{"text": "[[hang]]"}') as answer:
        assert answer.status == 202
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: not (home / "gateway.json").exists())
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 130


def test_a_home_serves_one_gateway(serve: Serve, talaria: Talaria) -> None:
    process = serve()
    second = talaria("serve", "--port", "0")
    assert second.returncode == 1
    assert "A gateway runs on this home already: http://127.0.0.1:" in second.stderr
    assert f"(pid {process.pid})" in second.stderr
    assert second.stdout == ""


def test_a_busy_configured_port_is_an_error(talaria: Talaria) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = talaria("serve", "--port", str(port))
    assert done.returncode == 1
    assert f"Port {port} on 127.0.0.1 is in use by " in done.stderr
    if sys.platform == "linux":
        assert f"(process {os.getpid()})." in done.stderr
    assert (
        "`talaria config set http.port 0` at every start, `talaria serve --port 0` at this one."
        in done.stderr
    )


@pytest.mark.broken_database
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
    about = banner["model"]
    if missing_requirement() is None:
        assert about == f"built-in {DEFAULT_MODEL}: not here yet (491 MB)"
        assert banner["get"] == "it: talaria model pull --home " + str(home)
    else:
        assert about.startswith(f"built-in {DEFAULT_MODEL}: ")
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
        while b"spend cap" not in said:
            said += os.read(ours, 4096)
        (link,) = re.findall(r"http://\S+/#code=\w{16}", said.decode())
        check_link(link, link.partition("/#")[0])
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        assert process.wait(DEADLINE) == 0
        assert not (home / "gateway.json").exists()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
