"""Planted faults of the runs of jobs: their caps, failures, grants, checks and sessions."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_RUNS = "tests/scheduler/test_runs.py"
_CONTRACT = "tests/store/test_contract.py::TestJobContract"

RUN_FAULTS = (
    Mutant(
        "earlier tries cost nothing",
        "a job that fails again and again spends its cap with each try",
        (
            Edit(
                "store/sql/spending.py",
                "CapUsage(order.run_spent + by_turn, planned)",
                "CapUsage(by_turn, planned)",
            ),
        ),
        Tests("tests/store/test_contract.py::TestSpendContract"),
    ),
    Mutant(
        "run tried again at its cap",
        "tries that can only be refused fill the history",
        (Edit("store/sql/slots.py", "is_last = error.type == OverBudget.type", "is_last = False"),),
        Tests(_CONTRACT),
    ),
    Mutant(
        "answers of runs as long as they like",
        "one call of a dear model can cost more than the cap, so every run is refused",
        (
            Edit(
                "access/budgets.py",
                "return call.max_output if is_enough else max(room, _SHORTEST_ANSWER)",
                "return call.max_output",
            ),
        ),
        Tests("tests/access/test_budgets.py"),
    ),
    Mutant(
        "every failure told",
        "a job that fails all night fills the chat",
        (
            Edit(
                "core/run_texts.py",
                "    return failures & (failures - 1) == 0 or failures >= MAX_FAILURES",
                "    return failures > 0",
            ),
        ),
        Tests(f"{_RUNS}::test_failures_are_told_once_then_with_backoff_and_ten_pause_the_job"),
    ),
    Mutant(
        "failure without a turn untold",
        "a job whose check is broken is silent for good",
        (
            Edit(
                "store/sql/sending.py",
                "    if order.state is SlotState.FAILED and job",
                "    if not job and job",
            ),
        ),
        Tests(_CONTRACT),
    ),
    Mutant(
        "result also in the log that has it",
        "the model reads the answer of a run in its chat twice",
        (
            Edit(
                "store/sql/announcements.py",
                "if text and place.chat_key != turn.chat_key:",
                "if text:",
            ),
        ),
        Tests(_CONTRACT),
    ),
    Mutant(
        "reminder sent beside its slot",
        "a kill between sending a reminder and settling its slot sends it again",
        (Edit("store/sql/sending.py", "        claim=order.claim,\n", ""),),
        Tests(_CONTRACT),
    ),
    Mutant(
        "grants of a session",
        "each run of a job asks again for what was approved",
        (
            Edit(
                "tools/approvals.py",
                "self.order.job_id if self.order is not None and self.order.job_id else self.session_id",
                "self.session_id",
            ),
        ),
        Tests(f"{_RUNS}::test_the_first_run_asks_its_owner_and_what_is_granted_stays_until_an_edit"),
    ),
    Mutant(
        "grants outlast an edit",
        "what was approved for one text runs for another",
        (
            Edit(
                "scheduler/runs.py",
                "hashlib.sha256(msgspec.json.encode(plan))",
                "hashlib.sha256(plan.name.encode())",
            ),
        ),
        Tests(f"{_RUNS}::test_the_first_run_asks_its_owner_and_what_is_granted_stays_until_an_edit"),
    ),
    Mutant(
        "every run asks",
        "a person is woken each night by the same question",
        (
            Edit(
                "scheduler/runs.py",
                "may_ask = slot.is_manual or not await self._store.has_job_asked(job.id, digest)",
                "may_ask = True",
            ),
        ),
        Tests(f"{_RUNS}::test_a_later_run_may_not_ask_again"),
    ),
    Mutant(
        "check without output runs the model",
        "watching costs a call each time",
        (Edit("scheduler/runs.py", "            if not found:\n", "            if found is None:\n"),),
        Tests(f"{_RUNS}::test_a_check_without_output_costs_no_model_call"),
    ),
    Mutant(
        "output of a check is trusted",
        "a page that a check fetched gives orders without a question",
        (Edit("scheduler/runs.py", "            untrusted=bool(found),\n", ""),),
        Tests(f"{_RUNS}::test_a_check_without_output_costs_no_model_call"),
    ),
    Mutant(
        "last session of a job forgotten",
        "a job with a session of its own loses its memory after a month",
        (
            Edit(
                "store/sql/retention.py",
                "WHERE c.chat_key = s.chat_key AND c.session_id = s.id)",
                "WHERE c.chat_key = s.chat_key AND c.session_id <> s.id)",
            ),
        ),
        Tests(_CONTRACT),
    ),
    Mutant(
        "sessions of jobs in the list",
        "the chats of people drown in runs",
        (
            Edit(
                "store/sql/queries.py",
                "WHERE ephemeral = 0 AND job_id IS NULL AND (updated_at, id)",
                "WHERE ephemeral = 0 AND (updated_at, id)",
            ),
        ),
        Tests(_CONTRACT),
    ),
)
