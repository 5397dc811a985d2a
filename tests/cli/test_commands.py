"""What commands print about a home without a gateway, word for word."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from io import StringIO
from pathlib import Path

import pytest

from contracts.store_orders import accepting, answered, begun
from talaria.access.callers import HOME_CALLER
from talaria.cli.main import main
from talaria.core.clock import SystemClock
from talaria.core.ids import ChatAddress, ChatKey
from talaria.store.sqlite.store import SqliteStore
from talaria.workspace.folder import chat_folder

Run = Callable[..., tuple[int, str, str]]
OTHER = ChatAddress("main", "telegram", "dm", "7").key()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process. Gives its status and what it wrote to stdout and stderr."""
    for name in [name for name in os.environ if name.upper().startswith("TALARIA_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TALARIA_CACHE", str(home / "cache"))
    monkeypatch.setenv("PATH", f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}")  # hints name `talaria`

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main([*arguments, "--home", str(home)])
        said = capsys.readouterr()
        return status, said.out, said.err.replace(f" --home {home}", "")

    return run


def with_store(home: Path, use: Callable[[SqliteStore], Awaitable[object]]) -> None:
    async def open_it() -> None:
        async with await SqliteStore.open(home / "talaria.db", SystemClock()) as store:
            await use(store)

    asyncio.run(open_it())


def talk(home: Path, *chats: ChatKey) -> list[str]:
    """Have a turn in each chat. Gives the ids of the sessions."""
    ids: list[str] = []

    async def use(store: SqliteStore) -> None:
        for chat in chats:
            ids.append((await answered(store, accepting("hello\nyou", chat=chat))).turn.session_id)

    with_store(home, use)
    return ids


def named(name: str) -> ChatKey:
    return HOME_CALLER.chat_key("main", name)


# -- sessions -----------------------------------------------------------------------------------------------


def test_a_home_without_sessions_says_so(run: Run, home: Path) -> None:
    assert run("sessions", "list") == (0, "There are no sessions yet.\n", "")
    status, out, err = run("sessions", "show", "work")
    assert (status, out) == (1, "")
    assert (
        err.splitlines()[0]
        == f"talaria: There is no session work. There is no database {home / 'talaria.db'}."
    )
    assert "sessions list` lists them." in err


def test_sessions_are_listed_and_a_limit_says_that_there_are_more(run: Run, home: Path) -> None:
    ids = talk(home, named("work"), OTHER)
    status, out, err = run("sessions", "list")
    assert (status, err) == (0, "")
    assert sorted(line.split()[-1] for line in out.splitlines()[1:]) == sorted(ids)
    status, out, err = run("sessions", "list", "--limit", "1")
    assert (status, len(out.splitlines())) == (0, 2)
    assert err == "… and more; --limit 5 shows more of them.\n"


def test_a_session_is_shown_with_all_that_was_said(run: Run, home: Path) -> None:
    (session,) = talk(home, named("work"))
    status, out, _ = run("sessions", "show", "work")
    head, _, said, text, _, by, reply = out.splitlines()
    assert status == 0
    assert head.startswith(f"{session} “hello”: chat work, begun 20")
    assert (said.partition(", ")[0], text, by.partition(", ")[0], reply) == (
        "you",
        "hello",
        "assistant",
        "hi",
    )
    assert run("sessions", "show", session)[1] == out


def test_what_was_said_is_found_without_a_gateway(run: Run, home: Path) -> None:
    (session,) = talk(home, named("work"))
    status, out, err = run("sessions", "search", "hello", "you")
    head, excerpt = out.splitlines()
    assert (status, err) == (0, "")
    assert head.endswith(f"hello  ({session}, entry 1)")
    assert excerpt == "    user: hello"
    assert run("sessions", "search", "zebra") == (0, "Nothing was found. Try other words, or fewer.\n", "")
    status, _, err = run("sessions", "search", "?!")
    assert status == 1
    assert "The query has no words to search for." in err


def test_a_session_ends_once_and_its_workspace_with_it(run: Run, home: Path) -> None:
    (session,) = talk(home, named("work"))
    left = home / "sessions" / session / "tmp"
    left.mkdir(parents=True)
    assert run("sessions", "end", "work") == (0, f"Ended {session}.\n", "")
    assert not left.exists()
    status, out, err = run("sessions", "end", session)
    assert (status, err) == (0, "")
    assert out.startswith(f"{session} had ended already, 20")


def test_a_session_whose_turn_runs_is_neither_ended_nor_deleted(run: Run, home: Path) -> None:
    ids: list[str] = []

    async def use(store: SqliteStore) -> None:
        ids.append((await begun(store, accepting(chat=named("work"))))[0].turn.session_id)

    with_store(home, use)
    status, _, err = run("sessions", "end", "work")
    assert (status, err.splitlines()[0]) == (
        1,
        f"talaria: {ids[0]} has an unfinished turn.",
    )
    assert "No gateway is running. Start" in err
    status, _, err = run("sessions", "delete", "work", "--yes")
    assert status == 1
    assert "No gateway is running. Start" in err


def test_a_deleted_session_is_gone_and_its_files_are_told(run: Run, home: Path) -> None:
    first, second = talk(home, named("work"), named("play"))
    status, _, err = run("sessions", "delete", "work")
    assert (status, "add --yes" in err) == (2, True)
    folder = chat_folder(home, named("work"))
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    status, out, err = run("sessions", "delete", "work", "--yes")
    assert (status, out) == (0, f"Deleted {first}.\n")
    assert err.splitlines()[0].startswith(f"{first} “hello”: chat work, begun ")
    assert err.splitlines()[1] == f"The files of its chat are still in {folder}."
    status, out, err = run("sessions", "delete", second, "--yes")
    assert (status, out, len(err.splitlines())) == (0, f"Deleted {second}.\n", 1)
    assert run("sessions", "list")[1] == "There are no sessions yet.\n"


# -- why ----------------------------------------------------------------------------------------------------


def test_the_last_messages_are_listed_with_their_ids(run: Run, home: Path) -> None:
    assert run("why") == (0, "There are no messages yet.\n", "")
    assert json.loads(run("why", "--json")[1]) == {"items": []}
    status, _, err = run("why", "turn_1")
    assert (status, err.splitlines()[0]) == (
        1,
        f"talaria: There is no turn turn_1. There is no database {home / 'talaria.db'}.",
    )
    talk(home, named("work"), OTHER)
    status, out, err = run("why")
    head, newest, oldest = (line.split() for line in out.splitlines())
    assert (status, head) == (0, ["TIME", "CHAT", "STATE", "MESSAGE", "ID"])
    assert newest[2:5] == ["main:telegram:dm:7", "done", "hello"]
    assert oldest[2] == named("work").removeprefix("agent:")
    assert err == "`talaria why ID` shows the history of one.\n"
    assert len(run("why", "-n", "1")[1].splitlines()) == 2
    told = json.loads(run("why", "--json")[1])["items"]
    assert [turn["id"] for turn in told] == [newest[-1], oldest[-1]]


def test_the_story_of_a_message_is_told_line_by_line(run: Run, home: Path) -> None:
    (session,) = talk(home, named("work"))
    turn = run("why")[1].splitlines()[1].split()[-1]
    status, out, err = run("why", turn)
    head, *story = out.splitlines()
    assert (status, err, head) == (0, "", f"{turn}  done, session {session}")
    assert [line[27:].split(" ")[0].rstrip(".") for line in story] == ["Accepted", "Begun", "Done:"]
    assert all(line.startswith("  20") and line[25:27] == "  " for line in story), story
    assert json.loads(run("why", turn, "--json")[1])["session_id"] == session
    status, _, err = run("why", "turn_none")
    assert status == 1
    assert "turn_none" in err


# -- config -------------------------------------------------------------------------------------------------


def test_each_change_of_a_key_says_when_it_counts(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = home / "config.toml"
    assert run("config", "path") == (0, f"{config}\n", "")
    live = "A running gateway takes it up within seconds."
    assert run("config", "set", "pool.max_agents", "7") == (
        0,
        f"pool.max_agents is set in {config}. {live}\n",
        "",
    )
    assert run("config", "set", "http.port", "9000") == (
        0,
        f"http.port is set in {config}. It counts from the next start on.\n",
        "",
    )
    assert config.read_text() == "[pool]\nmax_agents = 7\n\n[http]\nport = 9000\n"
    monkeypatch.setenv("TALARIA_POOL__MAX_AGENTS", "4")
    assert run("config", "set", "pool.max_agents", "8")[2] == (
        "But TALARIA_POOL__MAX_AGENTS is set in this shell, and counts more.\n"
    )
    monkeypatch.delenv("TALARIA_POOL__MAX_AGENTS")
    assert run("config", "unset", "pool.max_agents") == (
        0,
        f"pool.max_agents is no longer set in {config}. {live}\n",
        "",
    )
    status, _, err = run("config", "unset", "pool.max_agents")
    assert (status, err.splitlines()[0]) == (1, f"talaria: pool.max_agents is not set in {config}.")
    status, _, err = run("config", "unset", "pool.nothing")
    assert (status, "pool.nothing" in err, "is not set in" in err) == (1, True, False)


def test_a_table_is_shown_and_an_unknown_one_is_refused(run: Run, home: Path) -> None:
    (home / "config.toml").write_text('[pool]\nmax_agents = 7\n[providers.mine]\nbase_url = "http://x/v1"\n')
    status, out, err = run("config", "get", "pool")
    assert (status, err) == (0, "")
    assert "pool.max_agents = 7  # config.toml line 2" in out.splitlines()
    assert all(line.removeprefix("# ").startswith("pool.") for line in out.splitlines())
    assert run("config", "get", "pool.max_agents") == (0, "7\n", "(config.toml line 2)\n")
    assert run("config", "get", "prices") == (0, "", "(not set: prices has no value, and no default)\n")
    for key in ("pools", "pool.max_agent", "providers.mine.nothing"):
        status, out, err = run("config", "get", key)
        assert (status, out) == (1, ""), key
        assert key.rpartition(".")[2] in err


def test_a_file_that_is_broken_elsewhere_is_told(run: Run, home: Path) -> None:
    config = home / "config.toml"
    config.write_text("[pool]\nmax_agents = 'many'\n[http]\nport = 1\n")
    status, _, err = run("config", "set", "http.port", "9000")
    assert status == 0
    assert "The file still cannot be used:\n" in err
    assert "config.toml line 2" in err
    config.write_text("[pool\n")
    status, _, err = run("config", "unset", "pool.max_agents")
    assert status == 1
    assert "is not valid TOML" in err


def test_an_editor_is_needed_and_what_it_leaves_is_checked(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = home / "config.toml"
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "true")
    assert run("config", "edit") == (0, f"{config} is as it was.\n", "")
    assert not config.exists()
    config.write_text("[pool]\nmax_agents = 7\n")
    monkeypatch.setenv("EDITOR", "sed -i s/7/8/")
    assert run("config", "edit") == (
        0,
        f"{config} is written. A running gateway takes up what it can within seconds.\n",
        "",
    )
    monkeypatch.setenv("EDITOR", "sed -i s/8/many/")
    status, out, err = run("config", "edit")
    assert (status, out) == (1, "")
    assert err.splitlines()[-1] == f"Nothing was written; {config} is as it was."
    monkeypatch.setenv("EDITOR", "false")
    status, _, err = run("config", "edit")
    assert (status, "ended with status 1; nothing was written" in err) == (1, True)
    monkeypatch.delenv("EDITOR")
    monkeypatch.setenv("PATH", str(home))
    status, _, err = run("config", "edit")
    assert (status, err.splitlines()[0]) == (1, "talaria: There is no editor.")
    assert config.read_text() == "[pool]\nmax_agents = 8\n"


# -- pairing, tokens, models and logs -----------------------------------------------------------------------


def test_an_invitation_and_a_token_are_made_listed_and_taken_back(run: Run, home: Path) -> None:
    talk(home, named("work"))
    status, out, err = run("pair", "invite", "telegram")
    assert (status, out.startswith("/start ")) == (0, True)
    assert err.startswith(
        "The first person who sends this to the bot on telegram is paired. It works once, until "
    )
    status, out, _ = run("pair", "revoke", "99")
    assert (status, out) == (1, "")
    status, out, err = run("token", "list")
    assert (status, err) == (0, "")
    status, made, err = run("token", "add", "ci", "--role", "read")
    assert status == 0
    (secret,) = made.split()
    assert secret not in err
    status, out, _ = run("token", "list")
    assert [line.split()[0] for line in out.splitlines()][-1] == "ci"
    assert "read" in out
    assert secret not in out
    status, out, err = run("token", "revoke", "ci")
    assert (status, "ci" in out + err) == (0, True)
    assert run("token", "revoke", "ci")[0] == 1


def test_an_invitation_makes_a_database_and_a_listing_does_not(run: Run, home: Path) -> None:
    assert run("pair", "list")[0] == 0
    assert not (home / "talaria.db").exists()
    assert run("pair", "invite", "telegram")[0] == 0
    assert (home / "talaria.db").exists()
    status, _, err = run("pair", "invite", "nowhere")
    assert (status, "nowhere" in err) == (1, True)


def test_nothing_is_not_sent(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["  "], ["-"]):
        with Path(os.devnull).open() as nothing:
            monkeypatch.setattr("sys.stdin", nothing)
            status, out, err = run("ask", *words)
        assert (status, out) == (2, "")
        assert "There is nothing to send: the message is empty." in err
    status, _, err = run("ask", "hi", "--session", "a b")
    assert status == 2
    assert "'a b' is not a session name" in err


def test_setup_without_a_person_or_options_says_what_to_name(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO(""))
    for name in [name for name in os.environ if name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)
    status, _, err = run("setup")
    assert status == 2
    assert "Nobody answers here: name --provider and --model, and --yes." in err
    for options in (["--provider", "openai"], ["--model", "m"], []):
        status, _, err = run("setup", "--yes", *options)
        assert status == 2, options
        assert "With --yes, name --provider and --model." in err
    status, _, err = run("setup", "--yes", "--provider", "openai", "--model", "m")
    assert status == 1
    assert "openai needs a key, and OPENAI_API_KEY is not set." in err
    status, out, _ = run("setup", "--yes", "--provider", "local")
    assert status == 0
    assert f"Written to {home / 'config.toml'}:" in out
    assert '  model.provider = "local"' in out
    assert "stays as it was" in run("setup", "--yes", "--provider", "local")[1]


def test_built_in_models_are_listed_and_removed(run: Run, home: Path) -> None:
    status, out, err = run("model", "list")
    assert (status, err) == (0, "")
    assert out.splitlines()[0].split() == ["MODEL", "SIZE", "LICENCE", "HERE"]
    assert f"Kept in {home / 'cache'} (TALARIA_CACHE names another folder)." in out
    name = (
        out.splitlines()[1].split()[-0 or 1]
        if out.splitlines()[1].startswith("*")
        else out.split("\n")[1].split()[0]
    )
    assert run("model", "remove", name) == (0, f"{name} was not on this machine.\n", "")
    status, out, err = run("model", "pull", name)
    assert status == 2
    assert out.startswith(f"{name}: ")
    assert "add --yes" in err
    assert run("model", "remove", "nothing")[0] == 1


def test_logs_are_shown_from_the_end(run: Run, home: Path) -> None:
    status, _, err = run("logs")
    assert status == 1
    assert err.startswith(
        f"talaria: There is no log in {home / 'logs'}. No gateway without a terminal has run"
    )
    (home / "logs").mkdir()
    (home / "logs" / "console.log").write_text("one\ntwo\nthree\n")
    assert run("logs", "-n", "2") == (0, "two\nthree\n", "")
    (home / "logs" / "gateway.log").write_text('{"message": "four", "level": "info", "time": "x"}\n')
    assert run("logs", "--json")[1] == '{"message": "four", "level": "info", "time": "x"}\n'
