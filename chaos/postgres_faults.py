"""Planted faults of the store on PostgreSQL."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_LINK = "store/postgres/link.py"
_FAULTS = "tests/store/test_postgres_faults.py"
_ONCE = Tests(f"{_FAULTS}::test_a_commit_that_is_cut_off_is_carried_out_once")

_DROP_MARK = "        await self._target.write(partial(_run, sql=_DROP_MARK), is_durable=True)\n"

POSTGRES_FAULTS = (
    Mutant(
        "orders without locks",
        "orders side by side read what another one is about to change",
        (
            Edit(
                _LINK,
                "        self.execute(sql, parameters)\n        return True\n",
                "        return False\n",
            ),
        ),
        Tests("tests/store/test_postgres_races.py"),
    ),
    Mutant(
        "outcome assumed",
        "a commit whose answer was lost counts as one that was not carried out",
        (
            Edit(
                _LINK,
                "            if not self._was_committed(until):\n                raise error from None\n",
                "            raise error from None\n",
            ),
        ),
        _ONCE,
    ),
    Mutant(
        "commit that comes late",
        "a session that was given up carries out its order after it was run again",
        (
            Edit(
                _LINK, "WHEN order_marks.n = ? THEN 1 ELSE 0 END", "WHEN order_marks.n = ? THEN 1 ELSE 1 END"
            ),
        ),
        _ONCE,
    ),
    Mutant(
        "word of a pooler",
        "a commit counts as rolled back because a pooler reports that it has lost the server",
        (
            Edit(
                _LINK,
                "            if not ends_session(error):\n",
                "            if isinstance(error, psycopg.Error):\n",
            ),
        ),
        _ONCE,
    ),
    Mutant(
        "number that is gone",
        "a connection whose last commit a fail-over has lost refuses every order from then on",
        (Edit(_LINK, "                    self._begin_to_count()\n", "                    pass\n"),),
        Tests(f"{_FAULTS}::test_a_fail_over_that_loses_commits_stops_no_connection"),
    ),
    Mutant(
        "locks of a stopped gateway",
        "the server takes a gateway that is stopped in the middle of an order for a busy one",
        (Edit("store/postgres/pipeline.py", "        if self._is_order:\n", "        if False:\n"),),
        Tests(f"{_FAULTS}::test_a_gateway_that_is_stopped_in_an_order_keeps_no_locks"),
    ),
    Mutant(
        "start on half a copy",
        "a gateway starts on a copy that is not finished, and the next run of the copy deletes what it wrote",
        (
            Edit(
                "store/part.py",
                "    if await store.cursor(UNFINISHED_COPY) is not None:\n",
                "    if await store.cursor(UNFINISHED_COPY) is store:\n",
            ),
        ),
        Tests("tests/store/test_copying.py::test_no_gateway_starts_on_a_copy_that_is_not_finished"),
    ),
    Mutant(
        "time of the machine",
        "leases and expiry follow the wall clock of each machine",
        (
            Edit(
                "store/postgres/store.py",
                "ServerClock() if isinstance(clock, SystemClock) else clock\n",
                "clock\n",
            ),
        ),
        Tests(f"{_FAULTS}::test_times_are_the_databases_whatever_the_machines_clock_says"),
    ),
    Mutant(
        "backup of several moments",
        "a backup reads each page of rows as of another moment, so its tables do not fit together",
        (
            Edit(
                "store/postgres/connections.py",
                "(_READER if is_reader or is_snapshot else _WRITER)",
                "(_READER if is_reader else _WRITER)",
            ),
        ),
        Tests("tests/store/test_postgres_snapshots.py::test_writes_during_a_snapshot_are_not_in_it"),
    ),
    Mutant(
        "password in backups",
        "a backup contains config.toml with the password of the database",
        (Edit("cli/backup.py", "        config=_config(home),\n", ""),),
        Tests(
            "tests/cli/test_backup_postgres.py"
            "::test_a_backup_from_a_running_gateway_is_restored_to_both_engines"
        ),
    ),
    Mutant(
        "restore without its files",
        "a database can be used before the files of the backup are in the home, and a kill loses them",
        (
            Edit(
                "store/copying.py",
                "        on_compared()\n" + _DROP_MARK,
                _DROP_MARK + "        on_compared()\n",
            ),
        ),
        Tests("tests/store/test_copying.py::test_a_copy_whose_files_could_not_be_placed_cannot_be_used"),
    ),
)
