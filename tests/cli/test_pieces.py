"""Pieces of commands that no process is needed for: what they draw, count and choose."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import deque
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from talaria.cli.demo import render, summary
from talaria.cli.doctor import _NAME_WIDTH, _count, _print
from talaria.cli.home_checks import LITTLE_SPACE, NO_SPACE, _check_disk, _connect, check_machine
from talaria.cli.logs import CONSOLE_LOG, GATEWAY_LOG, _last, following, older, open_log
from talaria.cli.model import _progress_printer
from talaria.cli.model_checks import _is_fetching, _reason
from talaria.cli.serve import _moving
from talaria.cli.service import Service, _name, _quoted, _to_start, run_command, wait_for
from talaria.cli.sessions import _head, _table, entry_lines
from talaria.cli.setup_plan import find_candidates, find_foreign_keys
from talaria.cli.text import when
from talaria.config.home import DEFAULT_HOME, Home
from talaria.config.issues import Issue
from talaria.config.model_choice import Candidate, detected_candidate, list_models
from talaria.core.entries import Entry, EntryBody, Hidden, ReasoningSet, TitleSet
from talaria.core.errors import ConfigError
from talaria.core.ids import ChatKey, SessionId
from talaria.core.messages import (
    AssistantMessage,
    File,
    Image,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutcome,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.problems import ok, warn
from talaria.models.discovery import DetectedProvider
from talaria.models.local.runtime import _describe_exit
from talaria.models.local.weights import FetchProgress, FetchStage
from talaria.models.settings import PRESETS
from talaria.operations.sessions import SessionView
from talaria.parts import PARTS
from talaria.testing.crash_demo import DemoState, MessageState
from talaria.testing.simulated_users import DeliveryReport

# -- the demonstration --------------------------------------------------------------------------------------


def drawn(state: DemoState, log: deque[str]) -> list[str]:
    out = StringIO()
    Console(file=out, width=100, color_system=None).print(render(state, log))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_the_demonstration_shows_each_message_and_what_happens() -> None:
    rows = (
        ("Ada", (MessageState.ANSWERED, MessageState.RESENT, MessageState.ACCEPTED)),
        ("Bob", (MessageState.SENT, MessageState.TO_COME, MessageState.LOST)),
    )
    state = DemoState(rows, "DOWN", 2, 5, 7.4, None, 0)
    assert drawn(state, deque(["  1.0 s  kill -9 12", "  2.0 s  gateway up"])) == [
        "",
        "  Ten people write to a gateway that is killed 5 times (SIGKILL)",
        "",
        "  gateway DOWN   kills 2 of 5   answered 2 of 6   7 s",
        "",
        "  Ada   ● ↻ ◐      1.0 s  kill -9 12",
        "  Bob   ○ · ✗      2.0 s  gateway up",
        "",
        "  ○ sent   ◐ accepted   ● answered   ↻ twice, marked   ✗ lost   ‼ duplicated",
        "",
    ]
    assert "killed once (SIGKILL)" in drawn(DemoState(rows, "up", 0, 1, 0, None, 0), deque())[1]


def test_the_end_of_the_demonstration_is_counted_in_words() -> None:
    report = DeliveryReport(40, 38, 1, 2, 3, ("a",), ("b",), ("c",))
    assert summary(DemoState((), "up", 5, 5, 9.6, report, 4)).splitlines() == [
        "40 messages, 5 kills, 10 s: 38 answered, 1 lost, 1 duplicated.",
        "Tool calls that took effect twice: 4. Replies out of order: 1.",
        "Abandoned after three crashes, and reported as such: 1.",
        "Sent again with a visible mark, because a kill hid whether the first attempt arrived: 2.",
        "Previews of unfinished answers that a kill left in a chat: 3.",
    ]
    assert len(summary(DemoState((), "up", 1, 1, 1, DeliveryReport(1, 1), 0)).splitlines()) == 2


# -- the service --------------------------------------------------------------------------------------------


def test_a_command_of_the_service_manager_is_run_and_its_failure_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(("/bin/sh", "-c", "echo $XDG_RUNTIME_DIR; echo"))
    said = capsys.readouterr()
    expected = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    assert (said.out, said.err) == (f"{expected}\n", "")
    assert not run_command(("/bin/sh", "-c", "echo no >&2; exit 3"))
    assert capsys.readouterr().err == "talaria: `/bin/sh -c echo no >&2; exit 3` failed: no\n"
    assert not run_command(("/bin/sh", "-c", "exit 3"))
    assert "failed: 3" in capsys.readouterr().err
    assert not run_command(("/bin/sh", "-c", "exit 3"), quiet_failure=True)
    assert capsys.readouterr().err == ""


def test_a_condition_is_waited_for() -> None:
    tries = iter([False, False, True])
    assert wait_for(lambda: next(tries))
    assert list(tries) == []


def test_a_service_is_named_after_its_home() -> None:
    assert _name(Path(DEFAULT_HOME).expanduser()) == "talaria"
    assert _name(Path("/srv/a b/c.")) == "talaria-srv-a-b-c"


@pytest.mark.parametrize("value", ["it's", "two\nlines", "a\x7fb"])
def test_a_value_that_cannot_be_quoted_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="KEY has characters"):
        _quoted("KEY", value)
    assert _quoted("KEY", 'a "b" $c ü') == "'a \"b\" $c ü'"


def test_a_service_that_is_not_started_says_how(tmp_path: Path) -> None:
    service = Service("systemd", tmp_path, "", (("a", "b"), ("c",)), (), (), is_usable=True)
    assert _to_start(service, None) == "To start it:\n  a b\n  c"  # type: ignore[arg-type]


# -- setup --------------------------------------------------------------------------------------------------


async def test_candidates_come_from_variables_and_files(tmp_path: Path) -> None:
    environ = {"OPENAI_API_KEY": "sk-1", "HOME": str(tmp_path)}
    found = {each.provider: each for each in await find_candidates(environ)}
    assert (found["openai"].where, found["openai"].key_env) == ("key in OPENAI_API_KEY", "OPENAI_API_KEY")
    assert found["openai"].is_own_variable
    assert found["openai"].label == "openai"
    folder = tmp_path / ".codex"
    folder.mkdir()
    (folder / "auth.json").write_text('{"OPENAI_API_KEY": " sk-2 ", "OTHER": 1}')
    (key,) = find_foreign_keys(tmp_path)
    assert (key.provider, key.key, key.is_foreign) == ("openai", "sk-2", True)
    assert "~/.codex/auth.json" in key.where
    (folder / "auth.json").write_text('{"OPENAI_API_KEY": "' + "x" * 2_000_000 + '"}')
    assert find_foreign_keys(tmp_path) == [], "a file that is too large is left alone"
    for text in (
        "[1]",
        "{",
        '{"OPENAI_API_KEY": ""}',
        '{"OPENAI_API_KEY": 5}',
        '{"OPENAI_API_KEY": "a\\u0007"}',
    ):
        (folder / "auth.json").write_text(text)
        assert find_foreign_keys(tmp_path) == [], text


def test_a_server_on_this_machine_is_a_candidate_with_its_models() -> None:
    url = PRESETS["ollama"].base_url
    found = detected_candidate(DetectedProvider("Ollama", "ollama", url, models=("a", "b")))
    assert (found.provider, found.base_url, found.models) == ("ollama", "", ("a", "b"))
    assert found.where == f"Ollama at {url}, 2 models"
    found = detected_candidate(DetectedProvider("Ollama", "ollama", "http://127.0.0.1:9/v1", models=("a",)))
    assert (found.base_url, found.where) == (
        "http://127.0.0.1:9/v1",
        "Ollama at http://127.0.0.1:9/v1, 1 model",
    )
    assert detected_candidate(DetectedProvider("x", "mine", "http://h/v1")).base_url == "http://h/v1"


async def test_models_that_are_known_are_not_asked_for() -> None:
    candidate = Candidate("x", base_url="http://127.0.0.1:1/v1", models=("a", "b"))
    assert await list_models(candidate, {}) == (candidate, ["a", "b"])
    _, built_in = await list_models(Candidate("local"), {})
    assert len(built_in) >= 2


# -- logs ---------------------------------------------------------------------------------------------------


def test_the_last_lines_come_from_two_files(tmp_path: Path) -> None:
    path = tmp_path / "gateway.log"
    older(path, 1).write_text("1\n2\n3\n")
    path.write_text("4\n5\n")
    for count, lines in ((0, ""), (1, "5"), (3, "345"), (9, "12345")):
        with path.open() as file:
            assert "".join(_last(path, file, count)) == lines


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_a_log_is_followed_over_its_rotation(tmp_path: Path) -> None:
    path = tmp_path / "gateway.log"
    path.write_text("one\ntw")
    texts = ["o\n", "three\n", "four\n"]
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        text = texts.pop(0)
        append(path.rename(older(path, 1)) if text == "three\n" else path, text)

    with path.open() as file:
        lines = following(path, file, wait)
        assert [next(lines) for _ in range(4)] == ["one", "two", "three", "four"]
    assert len(waits) == 3
    assert all(0 < seconds <= 1 for seconds in waits)


def test_a_log_that_cannot_be_written_goes_elsewhere(tmp_path: Path) -> None:
    home = Home(tmp_path)
    beside = StringIO()
    home.logs.write_text("no folder")
    with open_log(home, beside) as stream:
        stream.write("told\n")
    assert beside.getvalue() == "told\n"
    assert not beside.closed
    with open_log(home) as stream:
        stream.write("lost\n")
    home.logs.unlink()
    for given, name in ((None, CONSOLE_LOG), (StringIO(), GATEWAY_LOG)):
        with open_log(home, given) as stream:
            stream.write("kept\n")
        assert (home.logs / name).read_text() == "kept\n"


# -- the machine and the model ------------------------------------------------------------------------------


def test_the_doctor_tells_how_much_room_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type(shutil.disk_usage(tmp_path))
    for free, level in (
        (LITTLE_SPACE, "ok"),
        (LITTLE_SPACE - 1, "warn"),
        (NO_SPACE, "warn"),
        (NO_SPACE - 1, "problem"),
    ):
        monkeypatch.setattr(shutil, "disk_usage", lambda folder, free=free: usage(0, 0, free))
        assert _check_disk(tmp_path).severity == level, free


def test_a_clock_before_the_installation_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = [(each.subject, each.severity) for each in check_machine(Home(tmp_path))]
    assert [name for name, _ in levels] == ["talaria", "clock", "disk"]
    assert ("clock", "ok") in levels
    monkeypatch.setattr(time, "time", lambda: 0.0)
    (wrong,) = [each for each in check_machine(Home(tmp_path)) if each.subject == "clock"]
    assert wrong.severity == "problem" and wrong.text.startswith("The clock says 20")


def progress(stage: FetchStage, done: int, total: int = 100) -> FetchProgress:
    return FetchProgress("tiny", stage, done, total)


def test_progress_is_a_line_for_each_tenth_or_one_moving_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with _progress_printer() as report:
        for done in range(0, 65, 4):
            report(progress(FetchStage.FETCHING, done, 64))
        report(progress(FetchStage.VERIFYING, 64, 64))
    assert len(capsys.readouterr().out.splitlines()) == 8
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with _progress_printer() as report:
        report(progress(FetchStage.VERIFYING, 100, 5_000_000))
    assert capsys.readouterr().out == "\r\033[K  verifying 5.0 MB\r\033[K"
    assert _moving(None) == ""
    assert _moving(progress(FetchStage.VERIFYING, 1, 5_000_000)) == "tiny: verifying 5.0 MB"


@pytest.mark.parametrize(
    ("stage", "is_fetching"),
    [("waiting", True), ("fetching", True), ("verifying", True), ("here", False), ("failed", False)],
)
def test_the_doctor_knows_a_running_download(stage: str, is_fetching: bool) -> None:
    assert _is_fetching({"built_in_model": {"weights": {"stage": stage}}}) is is_fetching
    assert not _is_fetching({"built_in_model": None})
    assert not _is_fetching({})


def test_a_connection_that_failed_has_a_reason() -> None:
    assert _reason(TimeoutError()) == "no answer"
    assert _reason(OSError("odd")) == "no answer"
    assert _reason(ConnectionRefusedError(111, "x")) == "Connection refused"
    assert _reason(OSError(-2, "Name or service not known")) == "Name or service not known"


# -- sessions -----------------------------------------------------------------------------------------------

AT = 1_700_000_000.0


def entry(body: EntryBody) -> str:
    return "\n".join(entry_lines(Entry(SessionId("ses_1"), 1, 1, AT, None, body)))


def test_each_entry_of_a_session_is_shown_in_plain_lines() -> None:
    at = when(AT)
    picture, file = Image("https://x.org/a.png"), File("a\x07.txt", "a.txt", "text/plain", 3)
    assert (
        entry(UserMessage((Text("hi\x1b[1m"), picture, file))) == f"\nyou, {at}\nhi[1m\n[image]\n[file a.txt]"
    )
    calls = (ToolCall("1", "read_file", '{"path": "a.txt"}'),)
    assert entry(AssistantMessage("yes", calls, model="m")) == f"\nm, {at}\nyes\n⚙ read_file a.txt"
    assert entry(AssistantMessage(interrupted=True)) == f"\nassistant, {at} (interrupted)"
    results = (ToolResult("1", "now", "12:00"), ToolResult("2", "now", "no", ToolOutcome.ERROR))
    assert entry(ToolResults(results)) == "  ↳ now: 12:00\n  ↳ now: error: no"
    assert entry(SystemMessage("be kind")) == f"\nsystem, {at}\nbe kind"
    assert entry(TitleSet("A title")) == "\n(title: A title)"
    assert entry(Hidden(3, 5)) == "\n(entries 3 to 5 undone)"
    assert entry(ReasoningSet("high")) == "\n(reasoning: high)"
    assert entry(ReasoningSet("")) == "\n(reasoning: as configured)"
    assert len(entry(ToolResults((ToolResult("1", "now", "x" * 9999),)))) < 1000


def test_sessions_are_a_table() -> None:
    views = [
        SessionView(SessionId("ses_1"), "work", ChatKey("agent:main:cli"), "A title", AT, AT + 60, "1", None),
        SessionView(SessionId("ses_2"), None, ChatKey("agent:main:cli"), "", AT, AT, "1", AT + 1),
    ]
    head, first, second = (line.split() for line in _table(views).splitlines())
    assert head == ["LAST", "USED", "NAME", "TITLE", "ID"]
    assert first == [*when(AT + 60).split(), "work", "A", "title", "ses_1"]
    assert second == [*when(AT).split(), "agent:main:cli", "-", "(ended)", "ses_2"]
    assert _head(views[0]) == f"ses_1 “A title”: chat work, begun {when(AT)}"
    assert _head(views[1]) == f"ses_2: chat agent:main:cli, begun {when(AT)}, ended {when(AT + 1)}"


# -- the doctor ---------------------------------------------------------------------------------------------


def test_findings_are_printed_with_their_fix_and_their_command(capsys: pytest.CaptureFixture[str]) -> None:
    _print(
        [
            ok("disk", "All good."),
            warn("model", "Two\nlines.", "Do\x1b this.", "talaria setup"),
        ]
    )
    margin = " " * (len("problem") + 2 + _NAME_WIDTH + 2)
    assert capsys.readouterr().out.splitlines() == [
        f"{'ok':7}  {'disk':{_NAME_WIDTH}}  All good.",
        f"{'warn':7}  {'model':{_NAME_WIDTH}}  Two",
        f"{margin}lines.",
        f"{margin}→ Do this.",
        f"{margin}$ talaria setup",
    ]
    assert [_count(number, "problem") for number in range(3)] == ["no problems", "1 problem", "2 problems"]


@pytest.mark.parametrize(
    ("path", "command"),
    [
        (("channels", "telegram", "token"), "talaria connect telegram --wait 0"),
        (("channels", "telegram"), "talaria connect telegram --wait 0"),
        (("http", "port"), ""),
        (("channels", "other", "token"), ""),
    ],
)
def test_a_wrong_key_of_a_channel_is_mended_by_connecting_it(path: tuple[str, ...], command: str) -> None:
    assert _connect(Issue("text", path=path), PARTS) == command


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "it ended with status 0"),
        (3, "it ended with status 3"),
        (-9, "it was ended by SIGKILL"),
        (-4, "illegal instruction"),
        (-200, "it was ended by signal 200"),
    ],
)
def test_the_end_of_a_model_process_is_described(status: int, words: str) -> None:
    assert _describe_exit(status) == words
