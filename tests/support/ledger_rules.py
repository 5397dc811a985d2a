"""Rules that hold for the database of every gateway, whatever a test did with it.

Each rule is a query for the rows that break it. `ALWAYS` holds between any two transactions, so also after
`kill -9`; `AT_REST` holds in addition when all gateways have stopped in order.
"""

from __future__ import annotations

import re
from pathlib import Path

import psycopg

from talaria.store.sql.executor import Connection
from talaria.store.sqlite.database import checked_reader
from talaria.store.sqlite.schema import latest_version
from talaria.store.store import Store

_FINAL = "('done', 'failed', 'cancelled')"
ALWAYS = {
    "a turn has ended if and only if its state is final": f"""
        SELECT id, state, ended_at FROM turns WHERE (state IN {_FINAL}) <> (ended_at IS NOT NULL)""",
    "a turn that has not ended belongs to a session": f"""
        SELECT t.id FROM turns t LEFT JOIN sessions s ON s.id = t.session_id
        WHERE s.id IS NULL AND t.state NOT IN {_FINAL}""",
    "a merged turn is settled with the turn it was merged into": f"""
        SELECT t.id, t.state, h.state FROM turns t JOIN turns h ON h.id = t.merged_into
        WHERE t.state NOT IN {_FINAL} AND (h.state IN {_FINAL} OR h.session_id <> t.session_id)""",
    "a session waits if and only if its turn does": """
        SELECT s.id, s.waiting_turn, t.state FROM sessions s LEFT JOIN turns t ON t.id = s.waiting_turn
        WHERE s.waiting_turn <> '' AND (t.state IS NULL OR t.state <> 'waiting')
        UNION ALL
        SELECT s.id, t.id, t.state FROM turns t JOIN sessions s ON s.id = t.session_id
        WHERE t.state = 'waiting' AND s.waiting_turn <> t.id""",
    "a question belongs to a turn": """
        SELECT q.id FROM questions q LEFT JOIN turns t ON t.id = q.turn_id WHERE t.id IS NULL""",
    "the log of a session has no gap and ends at its head": """
        SELECT s.id, s.seq, count(e.seq), min(e.seq), max(e.seq)
        FROM sessions s LEFT JOIN entries e ON e.session_id = s.id GROUP BY s.id, s.seq
        HAVING count(e.seq) > 0 AND (max(e.seq) <> s.seq OR max(e.seq) - min(e.seq) + 1 <> count(e.seq))""",
    "an entry belongs to a session": """
        SELECT e.session_id FROM entries e LEFT JOIN sessions s ON s.id = e.session_id
        WHERE s.id IS NULL AND e.session_id NOT IN
            (SELECT session_id FROM deletions UNION ALL SELECT parent_id FROM branches)""",
    "a reservation belongs to a turn that has not ended": f"""
        SELECT r.turn_id, r.n, t.state FROM reservations r JOIN turns t ON t.id = r.turn_id
        WHERE t.state IN {_FINAL}""",
    "what a session has spent is the sum of its calls, with those of its delegates": """
        SELECT s.id, s.spent, sum(u.cost) FROM sessions s
        JOIN turns t ON coalesce(json_extract(t.inbound, '$.run.descent.account'), t.session_id) = s.id
        JOIN usage u ON u.turn_id = t.id GROUP BY s.id, s.spent HAVING s.spent < sum(u.cost)""",
    "a delegate belongs to a turn, and has ended if its turn has": f"""
        SELECT d.id, t.state, c.state FROM delegates d LEFT JOIN turns t ON t.id = d.turn_id
        LEFT JOIN turns c ON json_extract(c.inbound, '$.run.descent.delegate') = d.id
        WHERE t.id IS NULL OR (c.state IN {_FINAL} AND d.ended_at IS NULL)""",
    "a message of the outbox belongs to a turn": """
        SELECT o.id FROM outbox o LEFT JOIN turns t ON t.id = o.turn_id WHERE t.id IS NULL""",
    "a slot has ended if and only if its state is final": """
        SELECT job_id, instant, state FROM slots
        WHERE (state IN ('done', 'failed', 'skipped')) <> (ended_at IS NOT NULL)""",
    "a job that is done has no next time": """
        SELECT id, state, next_at FROM jobs
        WHERE (state = 'done') <> (ended_at IS NOT NULL) OR (state = 'done' AND next_at IS NOT NULL)""",
    "the counted numbers are true": """
        SELECT c.name, c.n, a.n FROM (SELECT name, sum(n) AS n FROM counts GROUP BY name) c
        JOIN (SELECT 'sessions' AS name, count(*) AS n FROM sessions WHERE ephemeral = 0
              UNION ALL SELECT x.state, count(t.id) FROM
                  (SELECT 'done' AS state UNION ALL SELECT 'failed' UNION ALL SELECT 'cancelled') x
                  LEFT JOIN turns t ON t.state = x.state GROUP BY x.state) a ON a.name = c.name
        WHERE c.n <> a.n""",
}
AT_REST = {
    "nothing is reserved": "SELECT turn_id, n, amount FROM reservations WHERE owner = coalesce(?, owner)",
    "no session is leased": """
        SELECT id, lease_expires FROM sessions
        WHERE lease_expires > 0 AND lease_owner = coalesce(?, lease_owner)""",
}


_MEMBER = re.compile(r"json_extract\((\S+), '\$\.([\w.]+)'\)")


def _for_engine(sql: str, db: Connection | psycopg.Connection) -> str:
    """Return the query as the engine takes it: both have JSON, each with its own words."""
    if not isinstance(db, psycopg.Connection):
        return sql
    return _MEMBER.sub(lambda found: f"({found[1]}::json #>> '{{{found[2].replace('.', ',')}}}')", sql)


def broken_rules(
    db: Connection | psycopg.Connection, *, is_at_rest: bool = False, owner: str | None = None
) -> list[str]:
    """Return the rules that do not hold, each with some of the rows that break it. With `is_at_rest`, all
    gateways have stopped in order, or only the `owner`."""
    found = [(rule, db.execute(_for_engine(sql, db), ()).fetchall()) for rule, sql in ALWAYS.items()]
    if is_at_rest:
        found += [(rule, db.execute(sql, (owner,)).fetchall()) for rule, sql in AT_REST.items()]
    return [f"{rule}: {rows[:5]}" for rule, rows in found if rows]


async def check_store(store: Store, owner: str) -> None:
    """Check the store of a gateway that has stopped in order."""
    if isinstance(store, Store):
        broken = await store._executor.read(lambda db: broken_rules(db, is_at_rest=True, owner=owner))
        assert not broken, broken


def check_databases(folder: Path, *, is_at_rest: bool = False) -> None:
    """Check the databases of homes in this folder, which no gateway uses any more.

    Databases of an earlier version lack tables that the rules need, and are skipped.
    """
    for path in (*folder.glob("talaria.db"), *folder.glob("*/talaria.db")):
        with checked_reader(path) as (db, version):
            broken = broken_rules(db, is_at_rest=is_at_rest) if version == latest_version() else []
        assert not broken, (path, broken)
