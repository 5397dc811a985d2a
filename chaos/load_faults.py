"""Planted faults of fairness under load, and of results that are stored once."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_FAIRNESS = "tests/turns/test_fairness.py"
_RESULTS = "tests/turns/test_results_once.py"

LOAD_FAULTS = (
    Mutant(
        "scheduled turn before a person's",
        "a person waits for a job that has not started",
        (
            Edit(
                "turns/lanes.py",
                "    return next(passed, len(lane))",
                "    return max(len(lane), next(passed, 0))",
            ),
        ),
        Tests(_FAIRNESS),
    ),
    Mutant(
        "calls of runs wait like any other",
        "a person's call waits for permits behind the calls of jobs",
        (Edit("agent/calling.py", "            gives_way=context.gives_way,\n", ""),),
        Tests(_FAIRNESS),
    ),
    Mutant(
        "permit to a run first",
        "a person's call waits although a permit came free",
        (
            Edit(
                "models/limiter.py",
                "        if self._waiting.wake():",
                "        if not self._behind.count and self._waiting.wake():",
            ),
        ),
        Tests("tests/models/test_limiter.py"),
    ),
    Mutant(
        "runs spend the whole cap",
        "jobs leave a person nothing of the day's budget",
        (Edit("access/budgets.py", "_SCHEDULED_TENTHS = 9", "_SCHEDULED_TENTHS = 10"),),
        Tests(_FAIRNESS),
    ),
    Mutant(
        "runs begin without memory",
        "jobs fill a process that is full already",
        (Edit("observe/loop_watch.py", "        if used > most:", "        if used > most << 30:"),),
        Tests(_FAIRNESS),
    ),
    Mutant(
        "results stored twice",
        "the database has each result twice",
        (
            Edit(
                "store/sql/orders.py",
                "    for n, result in order.shortened:\n"
                "        tx.execute(SHORTEN_STEP, (encode(result), turn_id, n))\n",
                "",
            ),
        ),
        Tests(_RESULTS),
    ),
    Mutant(
        "step without its files",
        "files that an earlier life sent are lost",
        (
            Edit(
                "agent/journal.py",
                "    files = tuple(part for part in result.parts if isinstance(part, File))",
                "    files: tuple[File, ...] = ()",
            ),
        ),
        Tests(_RESULTS),
    ),
)
