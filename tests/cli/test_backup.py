"""`talaria backup`, `restore` and `why` as people run them, with a gateway and without."""

from __future__ import annotations

from pathlib import Path

import msgspec

from cli.conftest import Caller, Serve, Talaria


def test_a_backup_of_a_running_gateway_is_restored_when_it_has_stopped(
    talaria: Talaria, serve: Serve, home: Path, tmp_path: Path
) -> None:
    (home / ".snapshot-left-by-a-kill.db").touch()
    gateway = serve()
    turn = msgspec.json.decode(talaria("ask", "Hello", "--session", "one", "--json").stdout)
    archive = tmp_path / "a.tar.gz"
    done = talaria("backup", str(archive))
    assert done.returncode == 0, done.stderr
    assert f"talaria restore {archive}" in done.stdout
    assert not list(home.glob(".snapshot*"))

    refused = talaria("restore", str(archive))
    assert refused.returncode == 1
    assert "Stop it first" in refused.stderr and "Traceback" not in refused.stderr

    gateway.terminate()
    gateway.wait(30)
    (home / "talaria.db").unlink()
    restored = talaria("restore", str(archive))
    assert restored.returncode == 0, restored.stderr
    assert "replaced-" in restored.stdout
    told = talaria("why", turn["id"])
    assert told.returncode == 0, told.stderr
    assert "Done" in told.stdout and "Accepted" in told.stdout


def test_why_tells_the_same_with_a_gateway_and_without(talaria: Talaria, serve: Serve) -> None:
    gateway = serve()
    turn = msgspec.json.decode(talaria("ask", "Hello", "--json").stdout)
    assert talaria("ask", "--session", "named", "/why").stdout == "There is no message in this session yet.\n"
    assert talaria("ask", "--session", "named", "[[status 400]] please").returncode == 1
    in_chat = talaria("ask", "--session", "named", "/why").stdout
    listed = talaria("why").stdout.splitlines()
    assert listed[0].split() == ["TIME", "CHAT", "STATE", "MESSAGE", "ID"]
    assert [line.split()[3] for line in listed[1:]] == ["done", "failed", "done", "done"]
    assert f"- {listed[2].split()[-1]}, failed, " in in_chat and "“[[status 400]] please”: " in in_chat
    assert listed[-1].endswith(f"Hello     {turn['id']}".partition("     ")[2])
    running = talaria("why", turn["id"], "--json")
    gateway.terminate()
    gateway.wait(30)
    assert running.returncode == 0, running.stderr
    assert talaria("why", turn["id"], "--json").stdout == running.stdout
    assert talaria("why").stdout.splitlines() == listed
    missing = talaria("why", "turn_nothing")
    assert missing.returncode == 1
    assert missing.stderr.startswith("talaria: There is no turn turn_nothing.")


def test_there_is_nothing_to_save_in_an_empty_home(talaria: Talaria, tmp_path: Path) -> None:
    done = talaria("backup", str(tmp_path / "a.tar.gz"))
    assert done.returncode == 1
    assert "nothing to save" in done.stderr
    bad = tmp_path / "notes.txt"
    bad.write_text("notes")
    done = talaria("restore", str(bad))
    assert done.returncode == 1
    assert "not a complete backup" in done.stderr and "Traceback" not in done.stderr


def test_a_folder_that_is_missing_is_made(talaria: Talaria, tmp_path: Path, home: Path) -> None:
    assert talaria("ask", "hello").returncode == 0
    folder = tmp_path / "my" / "backups"
    done = talaria("backup", str(folder))
    assert done.returncode == 0, done.stderr
    assert [path.name.startswith("talaria-") for path in folder.iterdir()] == [True]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert talaria("backup", str(tmp_path / "new.d" / "a.tar.gz")).returncode == 0
    assert (tmp_path / "new.d" / "a.tar.gz").is_file()
    assert talaria("backup", f"{tmp_path}/2026.11/").returncode == 0
    assert (tmp_path / "2026.11").is_dir()
    done = talaria("backup", str(home / "config.toml" / "below"))
    assert done.returncode == 1
    assert "cannot be made: Not a directory" in done.stderr


def test_a_bot_s_token_comes_back_and_the_rest_is_named(
    talaria: Talaria, serve: Serve, home: Path, tmp_path: Path
) -> None:
    gateway = serve()
    gateway.terminate()
    gateway.wait(30)
    (home / "telegram.token").write_text("1:secret")
    (home / "mcp" / "servers").mkdir(parents=True)
    (home / "mcp" / "pins.json").write_text("{}")
    (home / "mcp" / "servers" / "cache").write_text("fetched")
    with (home / "config.toml").open("a") as config:
        config.write('\n[channels.telegram]\ntoken_file = "telegram.token"\n')
    (home / "service.env").write_text("KEY='k'\n")
    archive, other = tmp_path / "a.tar.gz", tmp_path / "other"
    done = talaria("backup", str(archive))
    assert done.returncode == 0, done.stderr
    assert "It holds secrets, those in telegram.token: keep it as safe" in done.stderr, "not in config.toml"
    there = [name for name in ("http.token", "service.env", "logs") if (home / name).exists()]
    makers = ("a start or " if there != ["service.env"] else "") + "`talaria service install`"
    them = "them" if there[1:] else "it"
    assert f"Not in it: {', '.join(there)}; {makers} makes {them} anew." in done.stdout
    (home / "service.env").unlink()
    (home / "http.token").write_text("x" * 40)
    for path in (home / "logs").glob("*"):
        path.unlink()
    if (home / "logs").exists():
        (home / "logs").rmdir()
    again = talaria("backup", str(archive), "--force").stdout
    assert "Not in it: http.token; a start makes it anew." in again
    restored = talaria("restore", str(archive), "--home", str(other))
    assert restored.returncode == 0, restored.stderr
    assert (other / "telegram.token").read_text() == "1:secret"
    assert [path.name for path in (other / "mcp").iterdir()] == ["pins.json"]
    assert (other / "telegram.token").stat().st_mode & 0o777 == 0o600
    assert not (other / "service.env").exists()
    assert "Secrets came with it, those in telegram.token, so" in restored.stdout
    assert "If that gateway still runs, on this machine or another, stop it" in restored.stdout
    assert restored.stdout.rstrip().endswith(f"serve --home {other}")


def test_why_says_what_a_call_of_v1_was(talaria: Talaria, serve: Serve, home: Path) -> None:
    serve()
    told = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is Lima?"}]
    with Caller(home).open("/v1/chat/completions", msgspec.json.encode({"messages": told})) as answer:
        assert answer.status == 200
    line = talaria("why").stdout.splitlines()[1]
    *_, chat, path, state, where, is_, lima, turn = line.split()
    assert (chat, path, state) == ("main:http", "/v1", "done")
    assert (where, is_, lima) == ("Where", "is", "Lima?")
    assert "Accepted a call of /v1 of " in talaria("why", turn).stdout
