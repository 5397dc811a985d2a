"""`talaria jobs`, through the running gateway and without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import Serve, Talaria

SENTENCE = "every weekday at 9 tell me what changed in this folder"


@pytest.mark.parametrize("with_gateway", [True, False])
def test_add_list_edit_pause_and_remove(with_gateway: bool, talaria: Talaria, serve: Serve) -> None:
    if with_gateway:
        serve()
    refused = talaria("jobs", "add", SENTENCE)
    assert refused.returncode == 2
    assert "add --yes" in refused.stderr
    assert refused.stdout.count("09:00") == 3
    added = talaria("jobs", "add", SENTENCE, "--yes", "--name", "news")
    assert added.returncode == 0
    assert "Job: tell me what changed in this folder" in added.stdout
    assert added.stdout.count("09:00") == 3
    rows = talaria("jobs", "list").stdout.splitlines()
    assert rows[0].split() == ["NEXT", "WHEN", "NAME", "STATE", "ID"]
    assert "cron 0 9 * * 1-5" in rows[1]
    assert len(rows) == 2
    edited = talaria("jobs", "edit", "news", "--cron", "30 7 * * *", "--missed", "all").stdout
    assert "cron 30 7 * * *" in edited
    assert "07:30" in edited
    assert "paused: the job was paused" in talaria("jobs", "pause", "news").stdout
    assert "active" in talaria("jobs", "resume", "news").stdout
    assert "The job has not run yet." in talaria("jobs", "history", "news").stdout
    assert "Text" in talaria("jobs", "show", "news").stdout
    assert "Removed job_" in talaria("jobs", "remove", "news").stdout
    assert "There are no jobs." in talaria("jobs", "list").stdout


def test_a_reminder_is_shown_as_one_before_it_is_saved(talaria: Talaria) -> None:
    added = talaria("jobs", "add", "Call Ada.", "--remind", "--every", "1h", "--name", "ada")
    assert added.stdout.startswith("Reminder: Call Ada.\nSent as it is, without a model.\n")
    assert talaria("jobs", "show", "ada").stdout.startswith("Reminder")
    moved = talaria("jobs", "edit", "ada", "--when", "every day at 7", "--yes").stdout
    assert moved.startswith("Reminder: Call Ada.\n")
    assert talaria("jobs", "edit", "ada", "--no-remind", "--quiet").stdout.startswith("Job")
    asked = talaria("jobs", "add", "remind me to call Ada", "--every", "1h")
    assert (asked.returncode, "add --yes" in asked.stderr) == (2, True), "words only suggest"
    assert talaria("jobs", "add", "remind me to call Ada", "--every", "1h", "--no-remind").returncode == 0
    told = talaria("jobs", "add", "Call Eve.", "--every", "2h", "--json")
    assert json.loads(told.stdout)["text"] == "Call Eve."
    assert told.stderr.startswith("Job: Call Eve.\n")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("add", "x", "--cron", "0 9 31 2 *"), 1, "31 February"),
        (("add", "x", "--when", "every day"), 1, "At what time?"),
        (("add", "x", "--every", "1h", "--timezone", "Europe/Belin"), 1, "Did you mean Europe/Berlin?"),
        (("add", "tell me when it rains"), 1, "When should it run?"),
        (("add", "x", "--every", "1h", "--missed", "some"), 2, "'once', 'skip', 'all'"),
        (("add", "x", "--every", "1h", "--remind", "--model", "m"), 1, "it takes no model"),
        (("edit", "news"), 2, "Nothing to change"),
        (("show", "nothing"), 1, "There is no job 'nothing'"),
    ],
)
def test_what_is_wrong_is_said(talaria: Talaria, arguments: tuple[str, ...], code: int, says: str) -> None:
    done = talaria("jobs", *arguments)
    assert done.returncode == code
    assert says in done.stderr


def test_a_gateway_inside_a_command_starts_no_jobs(talaria: Talaria, home: Path) -> None:
    with (home / "config.toml").open("a") as config:
        config.write('[jobs.heartbeat]\nevery = "30m"\n')
    added = talaria("jobs", "add", "look around", "--every", "1h", "--name", "look").stdout
    assert "talaria serve`, which does not run now" in added
    assert "is due now" in talaria("jobs", "run", "look").stdout
    told = talaria("ask", "/jobs run look").stdout
    assert "look is due" in told and "talaria serve" in told
    states = [line.split()[1] for line in talaria("jobs", "history", "look").stdout.splitlines()]
    assert states == ["STATE", "due", "due"]
    assert "heartbeat" not in talaria("jobs", "list").stdout
