"""`talaria backup` and `restore` of a home whose database is on PostgreSQL, to SQLite and to PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from cli.conftest import Serve, Talaria
from support.postgres_server import PostgresServer, postgres, postgres_database  # noqa: F401 - fixtures
from talaria.store.archive import MANIFEST, Manifest
from talaria.store.copying import copied_tables
from talaria.store.sqlite.faults import driver

PASSWORD = "sesame"
Answer = dict[str, Any]


@pytest.fixture
def url(postgres_database: str, home: Path) -> str:  # noqa: F811
    """The home's database. Its URL has a password, which the test server does not check."""
    address = postgres_database.replace("talaria@", f"talaria:{PASSWORD}@")
    with (home / "config.toml").open("a") as config:
        config.write(f'[store] # ours\nurl = "{address}"\nconnections = 4\n')
    (home / "config.toml").chmod(0o600)
    return address


@pytest.fixture
def target(postgres: PostgresServer) -> Any:  # noqa: F811
    """An empty database, without tables."""
    made = postgres.new_database("template0")
    yield made.replace("talaria@", f"talaria:{PASSWORD}@")
    postgres.drop(made)


def rows_of(execute: Callable[[str], Any]) -> dict[str, list[Any]]:
    return {
        table.name: sorted(
            map(tuple, execute(f"SELECT {', '.join(table.columns)} FROM {table.name}")), key=repr
        )
        for table in copied_tables()
    }


def server_rows(address: str) -> dict[str, list[Any]]:
    with psycopg.connect(address, autocommit=True) as db:
        return rows_of(lambda sql: db.execute(sql.encode()).fetchall())


def file_rows(path: Path) -> dict[str, list[Any]]:
    db = driver.connect(path)
    try:
        return rows_of(lambda sql: db.execute(sql).fetchall())
    finally:
        db.close()


def execute(address: str, sql: str, *values: object) -> None:
    with psycopg.connect(address, autocommit=True) as db:
        db.execute(sql.encode(), values)


def manifest_of(archive: Path) -> Manifest:
    with tarfile.open(archive) as tar:
        file = tar.extractfile(MANIFEST)
        assert file is not None
        return msgspec.json.decode(file.read(), type=Manifest)


def unpacked(archive: Path) -> bytes:
    with tarfile.open(archive) as tar:
        files = [tar.extractfile(info) for info in tar]
        return b"".join(file.read() for file in files if file is not None)


def check_secret(done: subprocess.CompletedProcess[str]) -> None:
    assert PASSWORD not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_backup_from_a_running_gateway_is_restored_to_both_engines(
    talaria: Talaria, serve: Serve, home: Path, tmp_path: Path, url: str, target: str
) -> None:
    gateway = serve()
    turn = msgspec.json.decode(talaria("ask", "Hello", "--session", "one", "--json").stdout)
    (home / "files").mkdir(exist_ok=True)
    (home / "files" / "notes").write_text("notes")
    archive = tmp_path / "a.tar.gz"
    done = talaria("backup", str(archive))
    assert done.returncode == 0, done.stderr
    check_secret(done)
    assert not list(home.glob(".snapshot*"))
    gateway.terminate()
    gateway.wait(30)
    assert PASSWORD.encode() not in unpacked(archive)
    assert "config.toml" not in done.stderr, "the only secret in it was the password"

    other = tmp_path / "other"
    restored = talaria("restore", str(archive), "--home", str(other))
    assert restored.returncode == 0, restored.stderr
    saved = server_rows(url)
    assert [row for row in saved["turns"] if turn["id"] in row]
    assert file_rows(other / "talaria.db").keys() == saved.keys()
    _same_but_shutdown(file_rows(other / "talaria.db"), saved)
    config = tomllib.loads((other / "config.toml").read_text())
    assert config["store"] == {"connections": 4}, "the restored home has its own database"
    assert (other / "files" / "notes").read_text() == "notes"
    told = talaria("why", turn["id"], "--home", str(other))
    assert told.returncode == 0 and "Done" in told.stdout

    third = tmp_path / "third"
    restored = talaria("restore", str(archive), "--to", target, "--home", str(third))
    assert restored.returncode == 0, restored.stderr
    check_secret(restored)
    assert server_rows(target) == file_rows(other / "talaria.db")
    assert tomllib.loads((third / "config.toml").read_text())["store"]["url"] == target
    assert (third / "config.toml").stat().st_mode & 0o777 == 0o600
    assert not (third / "talaria.db").exists() and not list(third.glob(".restoring*"))
    assert (third / "files" / "notes").read_text() == "notes"
    answer = talaria("ask", "Again", "--session", "one", "--json", "--home", str(third))
    assert answer.returncode == 0, answer.stderr
    assert msgspec.json.decode(answer.stdout)["session_id"] == turn["session_id"]


def _same_but_shutdown(restored: dict[str, list[Any]], saved: dict[str, list[Any]]) -> None:
    """The gateway stopped after the backup, and wrote that."""
    for name in restored.keys() - {"cursors"}:
        assert restored[name] == saved[name], name


def test_a_backup_without_a_gateway_is_made_again_with_force(
    talaria: Talaria, home: Path, tmp_path: Path, url: str
) -> None:
    assert talaria("ask", "Hello", "--session", "one").returncode == 0
    archive = tmp_path / "a.tar.gz"
    for words in ((), ("--force",)):
        done = talaria("backup", str(archive), *words)
        assert done.returncode == 0, done.stderr
        check_secret(done)
    assert talaria("restore", str(archive), "--home", str(tmp_path / "other")).returncode == 0
    assert file_rows(tmp_path / "other" / "talaria.db") == server_rows(url)
    assert not list(home.glob(".snapshot*"))


def test_chats_whose_files_are_on_another_machine_are_named(
    talaria: Talaria, serve: Serve, home: Path, tmp_path: Path, url: str
) -> None:
    serve()
    for name in ("here", "there", "free"):
        assert talaria("ask", "Hello", "--session", name).returncode == 0
    place = (home / "place").read_text().split()[0]
    for name, where in (("here", place), ("there", "plc_other")):
        execute(url, "UPDATE chats SET place = %s WHERE chat_key LIKE %s", where, f"%{name}")
    archive, other = tmp_path / "a.tar.gz", tmp_path / "other"
    done = talaria("backup", str(archive))
    assert done.returncode == 0, done.stderr
    (elsewhere,) = manifest_of(archive).elsewhere
    assert elsewhere.endswith("there")
    assert f"Not in it: the files of 1 chat, which other gateways keep: {elsewhere}." in done.stderr
    assert manifest_of(archive).place == place

    assert talaria("restore", str(archive), "--home", str(other)).returncode == 0
    places = _places(other / "talaria.db")
    new_place = (other / "place").read_text().split()[0]
    assert new_place != place
    assert sorted(places) == sorted(["", "plc_other", new_place]), "the files came with the chat"


def _places(path: Path) -> list[str]:
    db = driver.connect(path)
    try:
        return [place for (place,) in db.execute("SELECT place FROM chats").fetchall()]
    finally:
        db.close()


def test_a_shared_folder_is_saved_and_restored_into_the_home(
    talaria: Talaria, home: Path, tmp_path: Path, url: str
) -> None:
    shared = tmp_path / "shared"
    for folder in ("files/chat", "memory"):
        (shared / folder).mkdir(parents=True, mode=0o700)
        (shared / folder / "text").write_text(folder)
    shared.chmod(0o700)
    with (home / "config.toml").open("a") as config:
        config.write(f'files = "{shared}"\n')
    archive, other = tmp_path / "a.tar.gz", tmp_path / "other"
    done = talaria("backup", str(archive))
    assert done.returncode == 0, done.stderr
    assert {"files/chat/text", "memory/text"} < {member.name for member in manifest_of(archive).members}
    assert str(shared) not in done.stderr
    restored = talaria("restore", str(archive), "--home", str(other))
    assert restored.returncode == 0, restored.stderr
    assert (other / "files" / "chat" / "text").read_text() == "files/chat"
    assert f"mv {other}/files {other}/memory {shared}/" in restored.stdout
    assert (shared / "memory" / "text").read_text() == "memory", "the shared folder is not changed"


def test_a_backup_is_refused_if_the_shared_folder_cannot_be_found(
    talaria: Talaria, serve: Serve, home: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o700)
    gateway = serve(env={"TALARIA_STORE__FILES": str(shared)})
    gateway.terminate()
    gateway.wait(30)
    archive = tmp_path / "a.tar.gz"
    (shared / ".talaria-files").unlink()
    for is_there in (True, False):
        done = talaria("backup", str(archive), env={"TALARIA_STORE__FILES": str(shared)})
        assert done.returncode == 1
        assert f"{shared}" in done.stderr and "ount" in done.stderr
        if is_there:
            shared.rmdir()
    gateway = serve()
    (home / "config.toml").write_text("[http]\nport = 'x'")
    done = talaria("backup", str(archive))
    assert done.returncode == 1, "where the files are is not known"
    assert "http.port" in done.stderr
    assert not archive.exists() and not list(home.glob(".snapshot*"))


@pytest.mark.parametrize("words", [("--to", "sqlite:x.db"), ("--to", "postgresql://h"), ("--to", "nonsense")])
def test_a_target_that_is_not_a_database_on_a_server_is_refused(
    talaria: Talaria, tmp_path: Path, words: tuple[str, ...]
) -> None:
    archive = tmp_path / "a.tar.gz"
    assert talaria("ask", "hello").returncode == 0
    assert talaria("backup", str(archive)).returncode == 0
    other = tmp_path / "other"
    done = talaria("restore", str(archive), *words, "--home", str(other))
    assert done.returncode == 1
    assert "--to" in done.stderr and "postgresql://USER@HOST/DATABASE" in done.stderr
    assert not other.exists()


def test_a_target_with_rows_or_none_at_all_changes_nothing(
    talaria: Talaria, home: Path, tmp_path: Path, url: str, target: str
) -> None:
    assert talaria("ask", "Hello", "--session", "one").returncode == 0
    archive, other = tmp_path / "a.tar.gz", tmp_path / "other"
    assert talaria("backup", str(archive)).returncode == 0
    before = server_rows(url)
    for address, said in (
        (url, "has rows in"),
        (f"postgresql://talaria:{PASSWORD}@127.0.0.1:1/none", "cannot be reached"),
        (f"{target}_missing", "does not exist"),
    ):
        done = talaria("restore", str(archive), "--to", address, "--home", str(other))
        assert done.returncode == 1, done.stdout
        assert said in done.stderr
        check_secret(done)
        assert not (other / "config.toml").exists() and not list(other.glob(".restoring*"))
    assert server_rows(url) == before
    refused = talaria("restore", str(archive))
    assert refused.returncode == 1
    assert "store.url" in refused.stderr and "--to URL" in refused.stderr
    check_secret(refused)


def test_a_wrong_url_is_named_by_backup(talaria: Talaria, home: Path, tmp_path: Path, url: str) -> None:
    wrong = {"TALARIA_STORE__URL": f"postgresql://talaria:{PASSWORD}@127.0.0.1:1/none"}
    done = talaria("backup", str(tmp_path / "a.tar.gz"), env=wrong)
    assert done.returncode == 1
    assert "The database cannot be reached" in done.stderr
    check_secret(done)
    assert not (tmp_path / "a.tar.gz").exists()


def test_a_config_that_cannot_be_read_is_not_saved_with_its_password(
    talaria: Talaria, serve: Serve, home: Path, tmp_path: Path, url: str
) -> None:
    serve()
    with (home / "config.toml").open("a") as config:
        config.write("not TOML")
    done = talaria("backup", str(tmp_path / "a.tar.gz"))
    assert done.returncode == 1
    assert "config.toml" in done.stderr
    check_secret(done)
    assert not (tmp_path / "a.tar.gz").exists() and not list(home.glob(".snapshot*"))


def test_without_psycopg_the_command_to_install_it_is_shown(
    home: Path, environ: dict[str, str], tmp_path: Path, url: str, talaria: Talaria
) -> None:
    assert talaria("ask", "hello").returncode == 0
    archive = tmp_path / "a.tar.gz"
    assert talaria("backup", str(archive)).returncode == 0
    program = (
        "import runpy, sys; sys.modules['psycopg'] = None; runpy.run_module('talaria', run_name='__main__')"
    )
    for words in (
        ("backup", str(tmp_path / "b.tar.gz")),
        ("restore", str(archive), "--to", url, "--home", str(tmp_path / "other")),
    ):
        command = [sys.executable, "-c", program, *words]
        given = {"TALARIA_HOME": str(home), **environ}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=given)
        assert done.returncode == 1
        assert "needs the package psycopg" in done.stderr and "Install it" in done.stderr
        check_secret(done)
    assert not (tmp_path / "b.tar.gz").exists() and not (tmp_path / "other" / "config.toml").exists()


# -- killed in the middle ---------------------------------------------------------------------------------


def kill_at_lock(mode: str, address: str, words: list[str], environ: dict[str, str]) -> None:
    """Run a command, and kill it when it waits for the table of turns."""
    waiting = b"""
    SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database
    WHERE NOT l.granted AND d.datname = current_database()
    """
    with psycopg.connect(address) as holder, psycopg.connect(address, autocommit=True) as watcher:
        holder.execute(f"LOCK TABLE turns IN {mode} MODE".encode())
        process = subprocess.Popen(
            [sys.executable, "-m", "talaria", *words], env=environ, stderr=subprocess.PIPE, text=True
        )
        try:
            while watcher.execute(waiting).fetchone() is None:
                assert process.poll() is None, process.stderr and process.stderr.read()
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()


def test_a_killed_backup_leaves_no_archive_and_the_next_one_works(
    talaria: Talaria, serve: Serve, home: Path, environ: dict[str, str], tmp_path: Path, url: str
) -> None:
    assert talaria("ask", "Hello", "--session", "one").returncode == 0
    folder = tmp_path / "backups"
    kill_at_lock("ACCESS EXCLUSIVE", url, ["backup", str(folder)], {"TALARIA_HOME": str(home), **environ})
    assert not folder.exists() or not list(folder.iterdir())
    done = talaria("backup", str(folder))
    assert done.returncode == 0, done.stderr
    serve()
    assert not list(home.glob(".snapshot*")), "a start deletes what the killed one left"


def test_a_killed_restore_can_only_be_repeated(
    talaria: Talaria,
    home: Path,
    environ: dict[str, str],
    tmp_path: Path,
    url: str,
    postgres: PostgresServer,  # noqa: F811
) -> None:
    assert talaria("ask", "Hello", "--session", "one").returncode == 0
    archive, other = tmp_path / "a.tar.gz", tmp_path / "other"
    assert talaria("backup", str(archive)).returncode == 0
    address = postgres.new_database()
    words = ["restore", str(archive), "--to", address, "--home", str(other)]
    kill_at_lock("SHARE", address, words, environ)
    assert not (other / "config.toml").exists()
    refused = talaria("ask", "Hello", env={"TALARIA_STORE__URL": address})
    assert refused.returncode == 1
    assert "not finished" in refused.stderr and "repeat the interrupted" in refused.stderr
    done = talaria(*words)
    assert done.returncode == 0, done.stderr
    assert server_rows(address) == server_rows(url)
    assert not list(other.glob(".restoring*"))
    postgres.drop(address)


# -- a full disk ------------------------------------------------------------------------------------------

NAMESPACE = ["unshare", "--map-root-user", "--mount"]
FULL = """
import subprocess, sys
home, folder, *command = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k,mode=700", "tmpfs", folder], check=True)
done = subprocess.run(command, capture_output=True, text=True)
sys.stderr.write(done.stderr)
subprocess.run(["ls", "-A", folder])
sys.exit(done.returncode)
"""


def has_namespaces() -> bool:
    try:
        return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(os.geteuid() != 0 or not has_namespaces(), reason="needs root and mount namespaces")
@pytest.mark.parametrize("is_home", [True, False], ids=["home", "target"])
def test_a_full_disk_is_named_and_no_archive_is_left(
    talaria: Talaria, home: Path, environ: dict[str, str], tmp_path: Path, url: str, is_home: bool
) -> None:
    assert talaria("ask", "Hello", "--session", "one").returncode == 0
    (home / "files").mkdir(exist_ok=True)
    (home / "files" / "large").write_bytes(os.urandom(1 << 20))
    folder = tmp_path / "small"
    folder.mkdir(mode=0o700)
    archive = tmp_path / "a.tar.gz" if is_home else folder / "a.tar.gz"
    run_in = folder if is_home else home
    command = [sys.executable, "-m", "talaria", "backup", str(archive)]
    given = {**environ, "TALARIA_HOME": str(run_in), "TALARIA_STORE__URL": url}
    script = [*NAMESPACE, sys.executable, "-c", FULL, str(home), str(folder), *command]
    done = subprocess.run(script, capture_output=True, text=True, check=False, env=given)
    assert done.returncode == 1, done.stderr
    assert "could not be written" in done.stderr if is_home else "cannot be written" in done.stderr
    assert "full" in done.stderr or "No space left" in done.stderr
    check_secret(done)
    assert not archive.exists() and ".tar.gz" not in done.stdout and ".snapshot" not in done.stdout
