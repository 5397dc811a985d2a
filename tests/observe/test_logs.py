from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.core.ids import SessionId, TurnId
from talaria.core.redaction import Redactor, Secret, SecretRegistry, mark_of
from talaria.observe.logs import LogControl, LogSettings, Redact, configure, log_turn

JSON = LogSettings(format="json", level="debug")
SECRET = 'sk-"quoted\\and\nbroken"'
MARK = mark_of("KEY")
log = logging.getLogger("talaria.test")


class Log:
    """A running log whose lines can be read once it is closed."""

    def __init__(self, settings: LogSettings, redact: Redact, queue_limit: int = 1000) -> None:
        self.stream = io.StringIO()
        self.control = configure(settings, redact, self.stream, queue_limit=queue_limit)

    def text(self) -> str:
        self.control.close()
        return self.stream.getvalue()

    def lines(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(row) for row in self.text().splitlines()]


@pytest.fixture
def running() -> Iterator[Log]:
    log = Log(JSON, Redactor([Secret("KEY", SECRET)]))
    yield log
    log.control.close()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("talaria")
    before, threads = (list(root.handlers), root.level, ours.level), set(threading.enumerate())
    yield
    assert (list(root.handlers), root.level, ours.level) == before
    assert set(threading.enumerate()) <= threads  # those of earlier tests may end meanwhile
    assert not logging.getLogger("uvicorn.access").disabled


def test_a_record_is_one_json_object_with_its_extra_fields(running: Log) -> None:
    log.info("pool has %d agents", 3, extra={"turn_id": "turn_1", "bytes": 12, "ratio": 0.5, "ok": True})

    (line,) = running.lines()
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "talaria.test",
        "message": "pool has 3 agents",
        "turn_id": "turn_1",
        "bytes": 12,
        "ratio": 0.5,
        "ok": True,
    }


def test_the_log_of_a_clone_names_its_commands(running: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    log.error("Telegram does not accept the token; `talaria connect telegram` sets another")

    (line,) = running.lines()
    assert line["message"] == "Telegram does not accept the token; `./dev connect telegram` sets another"


def test_the_time_is_utc_in_iso_form(running: Log) -> None:
    record = logging.makeLogRecord(
        {"name": "talaria", "levelno": 20, "msg": "x", "created": 1_700_000_000.25}
    )
    logging.getLogger("talaria").handle(record)

    assert running.lines()[0]["ts"] == "2023-11-14T22:13:20.250Z"


def test_an_exception_comes_with_its_traceback(running: Log) -> None:
    try:
        raise ValueError("boom " + SECRET)
    except ValueError:
        log.exception("failed")

    (line,) = running.lines()
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith(f"ValueError: boom {MARK}")


def test_an_extra_field_cannot_replace_the_message(running: Log) -> None:
    log.info("true", extra={"level": "forged", "ts": "never"})

    (line,) = running.lines()
    assert (line["level"], line["level_"], line["ts_"]) == ("info", "forged", "never")


def test_objects_in_extra_fields_are_text_taken_at_once(running: Log) -> None:
    held = ["before"]
    log.info("x", extra={"held": held, "nothing": None, "big": float("inf")})
    held.append("after")

    (line,) = running.lines()
    assert (line["held"], line["nothing"], line["big"]) == ("['before']", None, "inf")


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_a_bad_log_call_is_a_line_and_no_error() -> None:
    running = Log(JSON, Redactor())
    log.info("two %s %s", *["one"])
    log.info("object", extra={"it": Unprintable()})
    log.info(Unprintable())

    messages = [line["message"] for line in running.lines()]
    assert messages[0] == "two %s %s [bad log arguments: TypeError]"
    assert messages[2] == "<unprintable Unprintable> [bad log arguments: RuntimeError]"


def test_secrets_are_redacted_in_messages_arguments_fields_and_names(running: Log) -> None:
    log.info("key %s and %s", SECRET, SECRET.encode().hex(), extra={"key": SECRET, SECRET: 1})

    (line,) = running.lines()
    assert line["message"] == f"key {MARK} and {MARK}"
    assert line["key"] == MARK
    assert line[MARK] == 1


def test_secrets_that_become_known_later_are_redacted_from_then_on() -> None:
    secrets = SecretRegistry([Secret("KEY", SECRET)])
    running = Log(JSON, secrets)
    log.info("hunter22")
    running.control.flush()
    secrets.add([Secret("KEY", "hunter22")])
    log.info("hunter22 " + SECRET)

    assert [line["message"] for line in running.lines()] == ["hunter22", f"{MARK} {MARK}"]


@pytest.mark.parametrize("cut", range(0, len(SECRET), 5))
def test_a_cut_never_leaves_half_a_secret(running: Log, cut: int) -> None:
    log.info("x" * ((8 << 10) - cut) + SECRET)

    (line,) = running.lines()
    assert "sk-" not in line["message"]


def test_long_messages_are_cut_and_say_so(running: Log) -> None:
    log.info("a" * 10_000)

    (line,) = running.lines()
    assert line["message"] == "a" * 8192 + "… (1808 more characters)"


ANYTHING = st.text(st.characters() | st.sampled_from('\n\r\x1b\x9b\x00\u2028\u202e\ud800\udfff"\\'))


@given(message=ANYTHING, field=ANYTHING, name=ANYTHING)
def test_whatever_is_logged_each_record_is_one_line_of_valid_ascii_json(
    message: str, field: str, name: str
) -> None:
    with configure(JSON, Redactor(), stream := io.StringIO()):
        log.info("%s", message, extra={f"x-{name}": field})

    row = stream.getvalue()
    assert row.endswith("\n")
    assert all(" " <= character <= "~" for character in row[:-1])
    line = msgspec.json.decode(row)
    assert line == json.loads(row)
    assert line["message"] == message.encode("utf-8", "backslashreplace").decode()


@given(message=ANYTHING, field=ANYTHING)
def test_whatever_is_logged_text_has_no_control_characters(message: str, field: str) -> None:
    with configure(LogSettings(format="text"), Redactor(), stream := io.StringIO()):
        log.info("%s", message, extra={"field": field})

    row = stream.getvalue()
    assert row.splitlines(keepends=True) == [row]
    assert not set(row[:-1]) & set(map(chr, [*range(32), *range(127, 160), 0x202E, 0xD800]))


def test_text_is_for_people() -> None:
    running = Log(LogSettings(format="text"), Redactor([Secret("KEY", SECRET)]))
    try:
        raise ValueError("first\nsecond\x1b[2J")
    except ValueError:
        log.warning("line\nbreak", exc_info=True, extra={"key": SECRET})

    head, *trace = running.text().splitlines()
    assert head[8:] == f" warning talaria.test: line\\nbreak key={MARK}"
    assert trace[0] == "  Traceback (most recent call last):"
    assert trace[-1] == "  second\\x1b[2J"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "is_json"), [(io.StringIO(), True), (Terminal(), False)])
def test_auto_is_text_on_a_terminal_and_json_otherwise(stream: io.StringIO, is_json: bool) -> None:
    with configure(LogSettings(), Redactor(), stream):
        log.info("x")

    assert stream.getvalue().startswith("{") is is_json


async def test_a_turns_records_carry_its_ids_and_others_do_not(running: Log) -> None:
    both_inside = asyncio.Barrier(2)

    async def turn(name: str) -> None:
        log_turn(TurnId(name), SessionId(f"ses_{name}"))
        await both_inside.wait()
        log.info("inside")
        await asyncio.create_task(child())

    async def child() -> None:
        log.info("started by it")

    async with asyncio.TaskGroup() as group:
        group.create_task(turn("a"))
        group.create_task(turn("b"))
    log.info("outside")

    found = {(line["message"], line.get("turn_id"), line.get("session_id")) for line in running.lines()}
    assert found == {
        ("inside", "a", "ses_a"),
        ("inside", "b", "ses_b"),
        ("started by it", "a", "ses_a"),
        ("started by it", "b", "ses_b"),
        ("outside", None, None),
    }


class StuckStream(io.StringIO):
    """A terminal that was stopped: writing waits until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stuck = threading.Event()
        self.let_go = threading.Event()

    def write(self, text: str) -> int:
        self.is_stuck.set()
        self.let_go.wait()
        return super().write(text)


def test_a_stuck_stream_drops_records_instead_of_blocking_and_says_so_afterwards() -> None:
    stream = StuckStream()
    control = configure(JSON, Redactor(), stream, queue_limit=3)
    log.info("first")
    stream.is_stuck.wait()

    for n in range(10):
        log.info("%d", n)
    dropped = control.dropped
    stream.let_go.set()
    control.close()

    messages = [json.loads(row)["message"] for row in stream.getvalue().splitlines()]
    assert dropped == 7
    assert messages == [
        "first",
        "0",
        "1",
        "2",
        "7 log records were dropped: more came than could be written",
    ]


def test_a_broken_stream_costs_lines_and_nothing_else() -> None:
    stream = io.StringIO()
    control = configure(JSON, Redactor(), stream)
    stream.close()
    log.info("lost")
    control.flush()

    assert control.dropped == 1
    control.close()


def level_of(name: str, settings: LogSettings) -> int:
    with configure(settings, Redactor(), io.StringIO()):
        return logging.getLogger(name).getEffectiveLevel()


def test_our_loggers_follow_the_level_and_libraries_speak_from_warnings_up() -> None:
    assert level_of("talaria.pool", LogSettings(level="debug")) == logging.DEBUG
    assert level_of("talaria.pool", LogSettings(level="error")) == logging.ERROR
    assert level_of("asyncio", LogSettings(level="debug")) == logging.WARNING
    assert level_of("asyncio", LogSettings(level="error")) == logging.ERROR


def test_requests_are_not_logged_twice(running: Log) -> None:
    logging.getLogger("uvicorn.access").warning("GET /")
    logging.getLogger("asyncio").warning("slow callback")

    assert [line["logger"] for line in running.lines()] == ["asyncio"]


def test_closing_twice_is_closing_once(running: Log) -> None:
    control: LogControl = running.control
    control.close()
    control.close()
    control.flush()
    log.info("after")

    assert running.lines() == []


def test_what_ends_a_thread_or_a_destructor_is_logged_without_secrets() -> None:
    running = Log(JSON, Redactor([Secret("KEY", SECRET)]))

    class Broken:
        def __del__(self) -> None:
            raise ValueError(f"destructor {SECRET}")

    def fail() -> None:
        raise ValueError(f"thread {SECRET}")

    Broken()
    thread = threading.Thread(target=fail, name="worker")
    thread.start()
    thread.join()

    first, second = running.lines()
    assert first["exception"].endswith(f"ValueError: destructor {MARK}")
    assert second["exception"].endswith(f"ValueError: thread {MARK}")
    assert "worker" in second["message"]


def test_other_records_cannot_push_audit_lines_out() -> None:
    """The main stream is stuck and its queue full. The audit log has its own stream and queue."""
    stream, audit = StuckStream(), io.StringIO()
    control = configure(JSON, Redactor([Secret("KEY", SECRET)]), stream, audit=audit, queue_limit=3)
    log.info("first")
    stream.is_stuck.wait()
    for n in range(1000):
        log.info("%d", n)
    logging.getLogger("talaria.audit").info("pair.approve", extra={"who": SECRET})
    stream.let_go.set()
    control.close()

    rows = [json.loads(row) for row in audit.getvalue().splitlines()]
    assert [(row["logger"], row["message"], row["who"]) for row in rows] == [
        ("talaria.audit", "pair.approve", MARK)
    ]


def test_audit_lines_are_also_in_the_main_log_and_end_with_it() -> None:
    stream, audit = io.StringIO(), io.StringIO()
    control = configure(JSON, Redactor(), stream, audit=audit)
    logging.getLogger("talaria.audit").info("backup")
    control.close()
    assert json.loads(stream.getvalue())["message"] == "backup"
    assert not logging.getLogger("talaria.audit").handlers
