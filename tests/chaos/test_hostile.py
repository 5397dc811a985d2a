"""A twentieth of `./dev chaos --only hostile`: attacks of each kind on a real gateway while others chat."""

from __future__ import annotations

import asyncio

from chaos.attacks import all_attacks
from chaos.hostile import HostileRun
from soak.report import Progress

_CHOSEN = (
    "chat: event-of-values, 3 MB",
    "responses: event-of-members, 3 MB",
    "messages: call-arguments, 3 MB",
    "tools: 100 search_files",
    "tools: 500 calls in one answer",
    "client: 300 logins without a body",
    "client: a chat completion of 500,000 messages",
    "client: 400 messages to one chat at once",
    "telegram: a message of 4,000 brackets",
)


def test_attacks_end_with_a_clear_error_and_cost_the_others_nothing() -> None:
    attacks = [attack for attack in all_attacks() if attack.name in _CHOSEN]
    assert len(attacks) == len(_CHOSEN)
    run = HostileRun(attacks, Progress(is_quiet=True), rest=0.5)
    figures = asyncio.run(run.run())
    # Times are judged by the long run, on a machine that does nothing else.
    missed = [figure.name for figure in figures if not figure.is_reached and figure.unit != "ms"]
    assert [name for name in missed if "slower than allowed" not in name] == [], run.evidence


def test_there_are_at_least_sixty_attacks_of_all_kinds_on_all_wire_formats() -> None:
    names = [attack.name for attack in all_attacks()]
    assert len(names) == len(set(names)) >= 60
    kinds = {name.partition(":")[0] for name in names}
    assert kinds == {"chat", "responses", "messages", "tools", "client", "telegram"}
