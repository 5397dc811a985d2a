"""Many broken updates for the Telegram channel."""

from __future__ import annotations

import logging

from support.telegram_fuzz import fuzz
from talaria.observe.health import read_rss
from trial.report import Figure, Progress

_ROUND = 500


async def flood(count: int, progress: Progress) -> list[Figure]:
    """Run rounds of updates with a seed each, so that a failure can be repeated."""
    uncaught = wrong = turns = 0
    rss: list[int] = []
    logging.getLogger("talaria.telegram").setLevel(logging.ERROR)
    rounds = max(2, count // _ROUND)
    for seed in range(rounds):
        result = await fuzz(_ROUND, seed)
        uncaught += len(result.uncaught)
        wrong += len(result.wrong)
        turns += result.turns
        rss.append(read_rss())
        progress.tell("fuzzed updates", (seed + 1) * _ROUND, rounds * _ROUND, f", {uncaught + wrong} broken")
    total = f"{rounds * _ROUND:,}"
    grown = (rss[-1] - rss[rounds // 2]) / (1 << 20)
    return [
        Figure(f"Telegram: uncaught errors in {total} fuzzed updates", uncaught, limit=0),
        Figure("… turns for those who may have none", wrong, limit=0),
        Figure("… turns for the one who may", turns),
        Figure("… RSS grown in the second half", max(0.0, grown), "MB", limit=4),
    ]
