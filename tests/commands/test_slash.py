"""Slash commands are pure: a view and arguments in, a reply and actions out."""

from __future__ import annotations

import msgspec
import pytest

from talaria.commands.command_types import Command, CommandContext, CommandResult, SpecChange
from talaria.commands.slash import (
    ALIASES,
    SLASH_COMMANDS,
    find_session,
    parse_command,
    run_command,
)
from talaria.core.entries import Exchange, Hidden, ReasoningSet, Revision, TitleSet
from talaria.core.ids import ChatKey, SessionId, SpecId, TurnId
from talaria.core.ledger import ChatSummary
from talaria.core.messages import Text, TokenUsage, UserMessage
from talaria.core.sessions import Session
from talaria.core.spending import Account, Cap, Scope, Spending, Spent
from talaria.core.turns import Sender

CHAT = ChatKey("agent:main:test:dm:one")


def session(name: str, title: str = "") -> Session:
    return Session(SessionId(f"ses_{name}"), CHAT, 1.0, 2.0, Revision(0, 3), title=title)


NOW, OLD, OLDER = session("now", "Now here"), session("old", "Taxes 2025"), session("older", "Taxes 2024")


ACCOUNT = Account(
    Spending(
        session=Spent(3, TokenUsage(100, 75, 20, 5), 12_500_000),
        user=Spent(4, TokenUsage(110, 75, 25, 5), 12_500_000, unpriced=1),
        everyone=Spent(1, TokenUsage(9, 0, 1), 0, unpriced=1),
        reserved=2_000_000_000,
    ),
    (Cap(Scope.DAY, 5_000_000_000), Cap(Scope.USER, 500_000_000), Cap(Scope.SESSION, 10_000_000_000)),
    "2026-11-16 00:00 CET",
)


def view(*, running: bool = False, waiting: int = 0) -> CommandContext:
    summary = ChatSummary(NOW, (NOW, OLD, OLDER), turns=4)
    return CommandContext(
        summary=summary,
        sender=Sender("42", "Ada"),
        agent="main",
        model="scripted/scripted",
        tools=("read_file", "todo"),
        running=TurnId("turn_1") if running else None,
        waiting=waiting,
        models=("main", "fast"),
        all_tools=("read_file", "todo", "write_file"),
        origin=lambda name: "mcp:lists" if name == "todo" else "files",
        searched=frozenset({"todo"}),
        changed=(("hub", 1), ("lists", 2)),
        exchanges=(
            Exchange(2, 4, UserMessage((Text("hello\n there"),))),
            Exchange(6, 7, UserMessage((Text("and then?"),))),
        ),
        reasoning="low",
        account=ACCOUNT,
    )


def run(text: str, **more: int) -> CommandResult:
    command = parse_command(text)
    assert command is not None
    return run_command(command, view(**more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/help", Command("help")),
        ("  /Title  My trip \n", Command("title", "My trip")),
        ("/title\nTwo lines", Command("title", "Two lines")),
        ("/usr/bin/env is a path", None),
        ("/", None),
        ("/ 2", None),
        ("1 / 2", None),
        ("//comment", None),
        ("hello /help", None),
    ],
)
def test_what_is_a_command(text: str, command: Command | None) -> None:
    assert parse_command(text) == command


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        (
            "/usage",
            "This session: 3 model calls, 100 tokens in (75 % from the provider's cache), 20 out, 5 of them "
            "reasoning; $0.0125.\nYou today: 4 model calls,",
        ),
        ("/usage", "25 out, 5 of them reasoning; $0.0125, and 1 of the calls have no known price.\n"),
        ("/usage", "Everyone today: 1 model call, 9 tokens in (0 % from the provider's cache), 1 out; "),
        ("/usage", "; the price is not known.\nOn the gateway's machine `"),
        (
            "/usage",
            """ config set 'prices."scripted/scripted"' '{input = 1.00, output = 2.00}'` sets a price, in """,
        ),
        ("/usage", "\nCaps: $5.00 a day, $0.50 a day for each user, $10.00 for a "),
        ("/usage", "The day ends at 2026-11-16 00:00 CET. $2.00 is set aside for calls under way."),
        ("/tools", "come from:\n- files: read_file\n- mcp:lists, found with tool_search: todo\n"),
        ("/tools", "\n- mcp:hub: 1 change waits for approval. `"),
        ("/tools", "\n- mcp:lists: 2 changes wait for approval. `"),
        ("/tools", "mcp approve lists` on the gateway's machine shows what changed.\n"),
        ("/tools", "- off, files: write_file\n`/tools [NAME…|all|none]` changes them."),
        (
            "/tools read_fil",
            "There is no tool 'read_fil'. There are: files, mcp:lists, read_file",
        ),
        ("/whoami", "You are 42 (Ada), in chat agent:main:test:dm:one."),
        ("/title", "The title is: Now here."),
        ("/sessions", "1. Taxes 2025 (ses_old"),
        ("/sessions", "2. Taxes 2024 (ses_older"),
        ("/status", "Session ses_now (Now here), revision 0.3."),
        ("/status", "Turns: 3 before this one, idle."),
        ("/help stop", "/stop: cancel the running turn"),
        ("/help /reset", "/new [TITLE]: start a new session"),
        ("/help nothing", "There is no command /nothing in this version."),
        ("/stopp", "There is no command /stopp in this version. Did you mean /stop?"),
        ("/frobnicate", "There is no command /frobnicate in this version."),
        ("/model", "This session uses scripted/scripted. `/model NAME` changes it. Known: main, fast."),
        ("/reasoning", "Reasoning: low."),
        ("/reasoning lots", "'lots' is no effort. Say none, low, medium or high."),
        ("/undo x", "`/undo NUMBER`"),
        ("/undo 0", "`/undo NUMBER`"),
        ("/undo " + "9" * 5000, "`/undo NUMBER`"),
        ("/undo", "Undid the last exchange, from your “and then?” on."),
        ("/undo 5", "Undid the last 2 exchanges, from your “hello there” on."),
        ("/retry", "There is nothing to retry."),
        ("/branch", "Branched into ses_now."),
        ("/resume nothing", "No session of this chat matches 'nothing'."),
        ("/resume ses_now", "Back in Now here"),
        ("/resume", "Say which one"),
        ("/new", "`/resume 1` returns to it"),
        ("/reset", "New session ses_now."),
    ],
)
def test_replies(text: str, reply: str) -> None:
    assert reply in run(text).reply


def test_help_lists_every_command() -> None:
    reply = run("/help").reply
    assert all(f"/{name}" in reply for name in SLASH_COMMANDS)


def test_no_name_means_two_things() -> None:
    assert not set(ALIASES) & set(SLASH_COMMANDS)


def test_a_title_is_an_entry_of_one_line() -> None:
    assert run("/title A  longer\n title").entries == (TitleSet("A longer title"),)
    assert len(run("/title " + "x" * 500).entries[0].title) == 120  # type: ignore[union-attr]
    assert run("/title").entries == ()


def test_undo_and_reasoning_are_entries_and_a_model_is_a_wish() -> None:
    assert run("/undo").entries == (Hidden(6, 7),)
    assert run("/undo 2").entries == (Hidden(2, 7),)
    assert run("/reasoning HIGH").entries == (ReasoningSet("high"),)
    assert run("/reasoning x").entries == ()
    assert run("/model fast").spec_change == SpecChange("fast")
    assert run("/reload").spec_change == SpecChange()
    assert run("/tools todo, read_file").spec_change == SpecChange(tools=("todo", "read_file"))
    assert run("/tools files").spec_change == SpecChange(tools=("read_file", "write_file"))
    assert run("/tools all").spec_change == SpecChange(tools=("read_file", "todo", "write_file"))
    assert run("/tools none").spec_change == SpecChange(tools=())
    assert run("/model").spec_change is None


def test_a_new_session_may_be_given_its_title() -> None:
    assert run("/new Trip").entries == (TitleSet("Trip"),)


def test_stop_stops_only_what_runs() -> None:
    assert run("/stop") == CommandResult("Nothing is running.")
    assert run("/stop", running=1, waiting=2).stop
    assert "2 more waiting" in run("/stop", running=1, waiting=2).reply


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("1", OLD),
        ("2", OLDER),
        ("3", None),
        ("0", None),
        ("ses_older", OLDER),
        ("taxes 2024", OLDER),
        ("2025", OLD),
        ("taxes", None),
        ("", None),
        ("ses_now", NOW),
    ],
)
def test_what_resume_means(wanted: str, found: Session | None) -> None:
    assert find_session(view().summary, wanted) == found


def test_model_names_what_endpoints_list_its_own_first_and_not_all_of_it() -> None:
    listed = (*(f"other/m{n}" for n in range(30)), "scripted/a")
    seen = msgspec.structs.replace(view(), listed=listed, abilities="128,000 tokens of context")
    reply = run_command(Command("model", ""), seen).reply
    assert "uses scripted/scripted (128,000 tokens of context)." in reply
    assert "Its endpoints also list: scripted/a, other/m0, " in reply
    assert reply.endswith("and 11 more.")
    assert "also list" not in run("/model").reply


def test_the_tools_of_a_model_that_takes_none_are_said_and_come_with_another_model() -> None:
    pinned = msgspec.structs.replace(NOW, spec_id=SpecId("spec_1"))
    tiny = msgspec.structs.replace(
        view(),
        summary=ChatSummary(pinned, (pinned,), turns=1),
        model="local/tiny",
        tools=(),
        takes_tools=False,
    )
    told = run_command(Command("tools", ""), tiny).reply
    assert told == "This session has no tools.\nlocal/tiny takes none: it only talks. `/model` changes it."
    assert run_command(Command("model", "fast"), tiny).spec_change == SpecChange("fast", None)
    other = msgspec.structs.replace(tiny, takes_tools=True)
    assert run_command(Command("model", "fast"), other).spec_change == SpecChange("fast", ())
