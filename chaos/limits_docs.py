"""Writes docs/limits.md and its picture from the runs `hostile`, `http` and `disk`."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from chaos.hostile import Outcome
from soak.report import Curve, Figure, render_markdown, render_svg

_DOCS = Path(__file__).parent.parent / "docs"


def write_limits_docs(figures: Sequence[Figure], outcomes: Sequence[Outcome]) -> None:
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    (_DOCS / "limits.svg").write_text(_picture(outcomes))
    (_DOCS / "limits.md").write_text(
        f"""# What holds when the world is hostile

Written by `./dev chaos --only hostile --only http --only schema --only disk --docs` ({machine}).
The limits themselves are in [configuration.md](configuration.md), the reasons in
[ADR 19](adr/0019-limits.md).

- *Attacks*: a real gateway serves two bystanders, whose model has a server of its own. Meanwhile a hostile
  model sends every answer of `testing/hostile_answers.py` in all three wire formats, at 70 MB and at 3 MB;
  answers call tools by the hundred; clients are silent, slow, garbled or never read; a reply has three
  million characters. Each attack must end with a clear error. The *p99* is of the bystanders' turns that
  overlap with an attack, measured in their own process.
- *Fuzzed requests*: the calls of `/openapi.json` with hostile values, odd heads, chunks and gzip bombs,
  damaged bytes, and connections that send nothing, while 16 chats run. A third comes from callers who may
  start no turn: without a token, with a wrong or malformed one, and with the role `read`. Their words must be
  in no turn.
- *Schema*: schemathesis (the extra `fuzz`) draws requests from `/openapi.json` and follows its links. No
  answer may be a 5xx or other than the description says: status, media type, body.
- *Disks*: the home is on a real ext4 file system that becomes full, read-only, frozen or slow, or loses the
  database file, while 16 chats run.

`./dev test` runs a twentieth of all this. Attacks that people tried by hand are in [attacks.md](attacks.md).

![turns of bystanders and memory over the attacks](limits.svg)

{render_markdown(figures)}

## The slowest attacks for others

{render_table(sorted(outcomes, key=lambda one: -one.p99)[:12])}

## All attacks

{render_table(outcomes)}
"""
    )


def render_table(outcomes: Sequence[Outcome]) -> str:
    lines = ["| attack | ended with | seconds | p99 of the others | memory |", "|---|---|---|---|---|"]
    lines += [
        f"| {one.name} | {one.ending[:160].replace('|', '/')} | {one.seconds:.1f} | {one.p99 * 1000:.0f} ms "
        f"| {one.rss / 1e6:.0f} MB |"
        for one in outcomes
    ]
    return "\n".join(lines)


def _picture(outcomes: Sequence[Outcome]) -> str:
    p99 = [(n, one.p99 * 1000) for n, one in enumerate(outcomes, 1)]
    memory = [(n, one.rss / 1e6) for n, one in enumerate(outcomes, 1)]
    curves = (
        Curve("p99 of a bystander's turn during the attack", "ms", "#c0392b", p99),
        Curve("memory of the gateway", "MB", "#2c6fbb", memory),
    )
    return render_svg(f"{len(outcomes)} attacks on a gateway while others chat", curves, "attacks")
