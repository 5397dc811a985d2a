"""The statements are written in the SQL that SQLite and PostgreSQL share."""

from __future__ import annotations

import ast
import inspect
import re
from types import ModuleType

import pytest

from store.sql_statements import MODULES, STATEMENTS, VERBS

NOT_SHARED = {
    "INSERT OR IGNORE": r"\bOR\s+(IGNORE|REPLACE|ABORT|FAIL|ROLLBACK)\b",
    "ON CONFLICT without a target": r"\bON\s+CONFLICT\b(?!\s*\()",
    "an ambiguous column in DO UPDATE": r"\b(\w+)\s*=\s*\1\s*[-+*]\s*excluded\b",
    "min or max of several values": r"\b(min|max)\s*\(([^(),]|\([^()]*\))*,",
    "a sum that is a decimal in PostgreSQL": r"(?<!CAST\(coalesce\()\bsum\s*\(",
    "a negative LIMIT": r"\bLIMIT\s+-",
    "a negative start of substr": r"\bsubstr\s*\([^,]*,\s*-",
    "user, which is a function in PostgreSQL": r"(?<!')\buser\b",
    "numbered placeholders": r"\?\d",
    "a percent sign, which psycopg reads as a placeholder": r"%",
    "LIKE, which ignores case in SQLite only": r"\b(LIKE|ILIKE|GLOB)\b",
    "row ids and other words of SQLite": r"\b(rowid|last_insert_rowid|PRAGMA|sqlite_\w+|ifnull|iif|total)\b",
    "functions of time, which differ": r"\b(datetime|strftime|julianday|unixepoch|now)\s*\(",
}
SAMPLES = {
    "INSERT OR IGNORE": "INSERT OR IGNORE INTO t (a) VALUES (?)",
    "ON CONFLICT without a target": "INSERT INTO t (a) VALUES (?) ON CONFLICT DO NOTHING",
    "an ambiguous column in DO UPDATE": "ON CONFLICT (a) DO UPDATE SET n = n + excluded.n",
    "min or max of several values": "UPDATE t SET a = min(a, coalesce(b, 1) + 1)",
    "a sum that is a decimal in PostgreSQL": "SELECT coalesce(sum(a), 0) FROM t",
    "a negative LIMIT": "SELECT a FROM t LIMIT -1 OFFSET ?",
    "a negative start of substr": "SELECT substr(key, -length(?))",
    "user, which is a function in PostgreSQL": "SELECT a FROM t WHERE user = ?",
    "numbered placeholders": "SELECT a FROM t WHERE a = ?1 OR b = ?1",
    "a percent sign, which psycopg reads as a placeholder": "SELECT a % 2 FROM t",
    "LIKE, which ignores case in SQLite only": "SELECT a FROM t WHERE a LIKE ?",
    "row ids and other words of SQLite": "SELECT rowid FROM t",
    "functions of time, which differ": "SELECT datetime('now')",
}
SHARED = """
INSERT INTO t (a) VALUES (nullif(?, '')) ON CONFLICT (a) DO UPDATE SET n = t.n + excluded.n, user_id = ?;
SELECT min(a), CAST(coalesce(sum(a), 0) AS BIGINT), substr(a, length(a) - ?) FROM t WHERE k = 'user' LIMIT 9
"""


def faults(sql: str) -> list[str]:
    return [what for what, pattern in NOT_SHARED.items() if re.search(pattern, sql, re.IGNORECASE)]


def test_every_statement_is_shared() -> None:
    found = {name: faults(sql) for name, sql in STATEMENTS.items()}
    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.parametrize("what", NOT_SHARED)
def test_what_is_not_shared_is_found(what: str) -> None:
    assert faults(SAMPLES[what]) == [what]
    assert faults(SHARED) == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_statements_are_constants_of_their_module(module: ModuleType) -> None:
    """A statement inside a function would be seen by no test, and the driver's row id is of SQLite alone."""
    tree = ast.parse(inspect.getsource(module))
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                assert not (isinstance(node, ast.Attribute) and node.attr == "lastrowid")
                text = node.value if isinstance(node, ast.Constant) else ""
                assert not (isinstance(text, str) and text.lstrip().startswith((*VERBS, "PRAGMA")))
