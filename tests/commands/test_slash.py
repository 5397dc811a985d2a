"""Slash commands: how they are parsed, what they answer, and what they write into the session's log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.rig import Rig, start
from support.waiting import until
from talaria.commands.command import Command, parse_command
from talaria.commands.replies import NamedTools, describe_usage, find_session, list_models
from talaria.core.clock import SystemClock
from talaria.core.entries import EntryBody, Hidden, ReasoningSet, Revision, SpecSet, TitleSet
from talaria.core.ids import ChatKey, SessionId
from talaria.core.ledger import ChatSummary
from talaria.core.messages import TokenUsage
from talaria.core.sessions import Session
from talaria.core.spending import Account, Cap, Scope, Spending, Spent
from talaria.core.turns import TurnState
from talaria.models.known import Abilities
from talaria.store.in_memory import MemoryStore
from talaria.turns.slash import ALIASES, SLASH_COMMANDS, asks_model, canonical, is_control

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

TOOLS = NamedTools(
    used=("read_file", "todo"),
    known=("read_file", "todo", "write_file"),
    origin=lambda name: "mcp:lists" if name == "todo" else "files",
    searched=frozenset({"todo"}),
)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """A chat with three sessions. The current one has two exchanges and a reasoning effort."""
    async with start(MemoryStore(SystemClock()), tmp_path) as rig:
        for title in ("Taxes 2024", "Taxes 2025", "Now here"):
            await rig.say(f"/new {title}")
        await rig.say("/reasoning low")
        await rig.say("hello\n there")
        await rig.say("and then?")
        yield rig


async def reply_to(rig: Rig, text: str) -> str:
    turn = await rig.say(text)
    assert turn.state is TurnState.DONE, turn.error
    return turn.reply or ""


async def written_by(rig: Rig, text: str) -> list[EntryBody]:
    """Return what the command appends to the log of the session that is current then."""
    turn = await rig.say(text)
    log = await rig.store.log(turn.session_id, 0)
    return [entry.body for entry in log if entry.turn_id == turn.id]


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
        ("/usage", "This session: 2 model calls, "),
        ("/tools", "Tools of this session, by where they come from:\n- built-in: "),
        ("/tools", "`/tools [NAME…|all|none]` changes them."),
        ("/tools read_fil", "There is no tool 'read_fil'. There are: built-in, "),
        ("/whoami", "You are tester, in chat agent:main:test:dm:one."),
        ("/title", "The title is: Now here."),
        ("/sessions", "1. Taxes 2025 (ses_"),
        ("/sessions", "2. Taxes 2024 (ses_"),
        ("/status", " (Now here), revision 0."),
        ("/status", "Turns: 4 before this one, idle."),
        ("/help stop", "/stop: cancel the running turn"),
        ("/help /reset", "/new [TITLE]: start a new session"),
        ("/help nothing", "There is no command /nothing in this version."),
        ("/stopp", "There is no command /stopp in this version. Did you mean /stop?"),
        ("/frobnicate", "There is no command /frobnicate in this version."),
        (
            "/model",
            "(tools, images, reasoning). `/model NAME` changes it. Known: main, scripted",
        ),
        ("/reasoning", "Reasoning: low."),
        ("/reasoning lots", "'lots' is not an effort. Say none, low, medium or high."),
        ("/stop", "Nothing is running."),
        ("/approve", "Nothing waits for a decision in this chat."),
        ("/approve a b", "Say `/approve`, `/approve ID`, `/approve ID session` or"),
        ("/deny a b", "There is no open question a b."),
        ("/queue", "`/queue TEXT`"),
        ("/steer", "`/steer TEXT`"),
        ("/why", "The last messages of this session, newest first:\n- turn_"),
        ("/diff", "Files stay as they are: this gateway keeps no copies of them."),
        ("/trust", "The chat folder is trusted: no untrusted content has entered it."),
        ("/jobs", "There are no jobs here."),
        ("/memory", "There is no memory here: the family `memory` is not in `tools.enabled`."),
        ("/undo x", "`/undo NUMBER`"),
        ("/undo 0", "`/undo NUMBER`"),
        ("/undo " + "9" * 5000, "`/undo NUMBER`"),
        ("/undo", "Undid the last exchange, from your “and then?” on."),
        ("/undo 5", "Undid the last 2 exchanges, from your “hello there” on."),
        ("/branch", "Branched into ses_"),
        ("/resume nothing", "No session of this chat matches 'nothing'."),
        ("/resume now here", "Back in Now here"),
        ("/resume taxes 2024", "Back in Taxes 2024"),
        ("/resume", "Say which one: `/resume NUMBER`.\nNow: Now here"),
        ("/new", "The one before is Now here (ses_"),
        ("/reset", "`/resume 1` returns to it"),
    ],
)
async def test_replies(rig: Rig, text: str, reply: str) -> None:
    assert reply in await reply_to(rig, text)


@pytest.mark.parametrize("text", ["/retry", "/undo", "/why"])
async def test_a_session_without_messages_has_nothing_to_repeat_or_undo(rig: Rig, text: str) -> None:
    await rig.say("/new")
    there_is_nothing = ("There is nothing to", "There is no message in this session yet.")
    assert (await reply_to(rig, text)).startswith(there_is_nothing)


async def test_help_lists_every_command(rig: Rig) -> None:
    reply = await reply_to(rig, "/help")
    assert all(f"{spec.usage}: {spec.help}" in reply for spec in SLASH_COMMANDS.values())


def test_no_name_means_two_things() -> None:
    assert not set(ALIASES) & set(SLASH_COMMANDS)


def test_the_table_says_which_commands_pass_the_lane_and_which_ask_a_model() -> None:
    passing = {
        "agents",
        "approve",
        "deny",
        "help",
        "jobs",
        "link",
        "memory",
        "queue",
        "status",
        "steer",
        "stop",
        "whoami",
        "why",
    }
    assert {name for name in SLASH_COMMANDS if is_control(name)} == passing | {"whoami", "why"}
    assert is_control("nothing") and not is_control("reset") and not is_control("")
    assert {name for name in ("", *SLASH_COMMANDS) if asks_model(name)} == {"", "retry"}
    assert (canonical("reset"), canonical("stop"), canonical("nothing")) == ("new", "stop", "nothing")


async def test_a_title_is_an_entry_of_one_line(rig: Rig) -> None:
    assert await written_by(rig, "/title A  longer\n title") == [TitleSet("A longer title")]
    assert await written_by(rig, "/title " + "x" * 500) == [TitleSet("x" * 120)]
    assert await written_by(rig, "/title") == []
    assert await written_by(rig, "/new Trip") == [TitleSet("Trip")]


async def test_undo_and_reasoning_are_entries(rig: Rig) -> None:
    turns = await rig.store.recent_of_session((await rig.say("/whoami")).session_id, 3)
    log = await rig.store.log(turns[0].session_id, 0)
    first, second = ([entry.seq for entry in log if entry.turn_id == turns[n].id] for n in (2, 1))
    assert await written_by(rig, "/undo") == [Hidden(second[0], second[-1])]
    assert await written_by(rig, "/undo 2") == [Hidden(first[0], first[-1])]
    assert await written_by(rig, "/reasoning HIGH") == [ReasoningSet("high")]
    assert await written_by(rig, "/reasoning x") == []


async def test_another_model_and_other_tools_are_entries_with_their_spec(rig: Rig) -> None:
    reply = await reply_to(rig, "/tools none")
    assert reply == "From the next message on this session uses scripted/scripted with no tools."
    assert await reply_to(rig, "/tools none") == "Nothing has changed: this session uses scripted/scripted."
    reply = await reply_to(rig, "/model fast")
    assert reply == "From the next message on this session uses scripted/fast with no tools."
    (body,) = await written_by(rig, "/reload")
    assert isinstance(body, SpecSet)
    spec = await rig.store.spec(body.spec_id)
    assert spec is not None and spec.spec.model == "fast" and spec.spec.tools
    assert await written_by(rig, "/tools all") == []
    assert await written_by(rig, "/model") == []


async def test_stop_cancels_the_running_turn_and_tells_how_many_wait(rig: Rig) -> None:
    running = await rig.submit("[[hang]]")
    await until(lambda: rig.model.busy == 1)
    waiting = [await rig.submit("next"), await rig.submit("and next")]
    assert "running turn_" in await reply_to(rig, "/status")
    assert await reply_to(rig, "/stop") == "Stopped. 2 more waiting; the next begins now."
    assert (await rig.turns.wait(running)).state is TurnState.CANCELLED
    assert [(await rig.turns.wait(each)).state for each in waiting] == [TurnState.DONE] * 2


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
    assert find_session(ChatSummary(NOW, (NOW, OLD, OLDER), turns=4), wanted) == found


def test_usage_tells_tokens_money_and_caps() -> None:
    told = describe_usage(ACCOUNT, "scripted/scripted")
    for text in (
        "This session: 3 model calls, 100 tokens in (75 % from the provider's cache), 20 out, 5 of them "
        "reasoning; $0.0125.\nYou today: 4 model calls,",
        "25 out, 5 of them reasoning; $0.0125, and 1 of the calls have no known price.\n",
        "Everyone today: 1 model call, 9 tokens in (0 % from the provider's cache), 1 out; ",
        "; the price is not known.\nOn the gateway's machine `",
        """ config set 'prices."scripted/scripted"' '{input = 1.00, output = 2.00}'` sets a price, in """,
        "\nCaps: $5.00 a day, $0.50 a day for each user, $10.00 for a ",
        "The day ends at 2026-11-16 00:00 CET. $2.00 is set aside for calls under way.",
    ):
        assert text in told


def test_tools_are_listed_by_where_they_come_from() -> None:
    told = "\n".join(TOOLS.lines([("hub", 1), ("lists", 2)]))
    for text in (
        "come from:\n- files: read_file\n- mcp:lists, found with tool_search: todo\n",
        "\n- mcp:hub: 1 change waits for approval. `",
        "\n- mcp:lists: 2 changes wait for approval. `",
        "mcp approve lists` on the gateway's machine shows what changed.\n",
        "- off, files: write_file",
    ):
        assert text in told


def test_tools_are_chosen_by_name_or_by_where_they_come_from() -> None:
    assert TOOLS.choose(("todo", "read_file")) == ("todo", "read_file")
    assert TOOLS.choose(("files",)) == ("read_file", "write_file")
    unknown = TOOLS.choose(("todo", "read_fil"))
    assert unknown == (
        "There is no tool 'read_fil'. There are: files, mcp:lists, read_file, todo, write_file."
    )


def test_model_names_what_endpoints_list_its_own_first_and_not_all_of_it() -> None:
    listed = (*(f"other/m{n}" for n in range(30)), "scripted/a")
    reply = list_models("scripted/scripted", " (128,000 tokens of context)", ("main", "fast"), listed).reply
    assert "uses scripted/scripted (128,000 tokens of context)." in reply
    assert "Known: main, fast." in reply
    assert "Its endpoints also list: scripted/a, other/m0, " in reply
    assert reply.endswith("and 11 more.")
    assert "also list" not in list_models("scripted/scripted", "", ("main",), ()).reply


async def test_the_tools_of_a_model_that_takes_none_are_said_and_come_with_another_model(
    tmp_path: Path,
) -> None:
    abilities = {"scripted/scripted": Abilities(tools=False)}
    async with start(MemoryStore(SystemClock()), tmp_path, abilities=abilities) as rig:
        await rig.say("hello")
        told = await reply_to(rig, "/tools")
        none = "scripted/scripted takes none: it only talks. `/model` changes it."
        assert told == f"This session has no tools.\n{none}"
        assert "no tools" not in await reply_to(rig, "/model fast")
