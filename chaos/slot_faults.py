"""Planted faults of G13: each slot of a job runs once."""

from __future__ import annotations

from chaos.planted import Edit, Mutant, Tests

_SLOTS = "store/sql/slots.py"
_RUN = Tests("tests/soak/test_slots.py::test_each_slot_runs_once_over_processes_kills_and_jumps")
_CHECKED = "    if found is None or found.fence != held.fence or found.state is not SlotState.RUNNING:\n"

SLOT_FAULTS = (
    Mutant(
        "claim after dispatch",
        "a slot is handed out while it is still due, and its turn is accepted without a claim",
        (
            Edit(_SLOTS, "SET state = 'running', turn_id = NULL, attempts", "SET turn_id = NULL, attempts"),
            Edit(_SLOTS, _CHECKED, "    if found is None:\n"),
        ),
        _RUN,
    ),
    Mutant(
        "claim without a fence",
        "a process whose claim is void still gets its turn",
        (
            Edit(_SLOTS, _CHECKED, "    if found is None:\n"),
            Edit(_SLOTS, "    return _check(tx, held).turn_id\n", "    _check(tx, held)\n    return None\n"),
        ),
        _RUN,
    ),
    Mutant(
        "local time arithmetic",
        "the next instant is computed with the offset of the last one",
        (
            Edit(
                "jobs/schedules.py",
                "        for moment in CronSim(expression, datetime.fromtimestamp(after, zone)):\n",
                "        fixed = timezone(datetime.fromtimestamp(after, zone).utcoffset() or timedelta())\n"
                "        for moment in CronSim(expression, datetime.fromtimestamp(after, fixed)):\n",
            ),
            Edit(
                "jobs/schedules.py",
                "from datetime import UTC, datetime, timedelta, tzinfo\n",
                "from datetime import UTC, datetime, timedelta, timezone, tzinfo\n",
            ),
        ),
        _RUN,
    ),
    Mutant(
        "slot without uniqueness",
        "an instant that is met again runs again",
        (
            Edit(
                _SLOTS,
                "WHERE slots.state = 'skipped' AND excluded.state = 'due' AND slots.turn_id IS NULL\n",
                "WHERE excluded.state = 'due'\n",
            ),
        ),
        _RUN,
    ),
    Mutant(
        "skip without a row",
        "missed slots are left out",
        (
            Edit(
                "jobs/planning.py",
                "    return AdvanceJob(job.id, job.version, first, then_at, tuple(slots))\n\n\ndef _missed",
                "    kept = tuple(slot for slot in slots if not slot.skipped)\n"
                "    return AdvanceJob(job.id, job.version, first, then_at, kept)\n\n\ndef _missed",
            ),
        ),
        _RUN,
    ),
    Mutant(
        "clock set back unnoticed",
        "a job that ran ahead of the clock stays there",
        (Edit("scheduler/scheduler.py", "        await self._rewind()\n", ""),),
        Tests("tests/scheduler/test_scheduler.py::test_slots_that_a_wrong_clock_skipped_run_when_they_come"),
    ),
    Mutant(
        "turn settled apart from its slot",
        "the end of a turn leaves its slot running",
        (
            Edit(
                "store/sql/orders.py",
                "    ended = slots.end_turn(tx, job_id, turn.id, end) if job_id is not None else None\n",
                "    ended = None\n",
            ),
        ),
        Tests("tests/store/test_contract.py::TestJobContract::test_the_end_of_the_turn_settles_the_slot"),
    ),
)
