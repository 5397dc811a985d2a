"""Writes docs/hostile-commands.md from the run `sandbox`."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from chaos.sandbox import Holes
from soak.report import Figure, render_markdown

_DOCS = Path(__file__).parent.parent / "docs"


def write_commands_docs(figures: Sequence[Figure], outcomes: Sequence[Holes]) -> None:
    machine = f"{platform.machine()}, Linux {platform.release()}, Python {platform.python_version()}"
    (_DOCS / "hostile-commands.md").write_text(
        f"""# Hostile commands that are run in each sandbox

Written by `./dev chaos --only sandbox --docs` ({machine}). `./dev test` runs one command of each
family. What the sandboxes hold and what they do not is in [sandbox.md](sandbox.md).

A scripted model calls the `terminal` and the file tools of a real gateway, which runs as root or as an
ordinary user. The commands come from the families below, by a seed (`--seed`), many of them in another dress:
in a subshell, encoded, in a trap, by `env -i`, from a script. After each command the judge looks from the
outside:

- Files with random secrets lie in folders that everybody may write: a person's, another chat's, its home and
  its session's, the gateway's, a neighbour's. No secret may be in a result or in a file of the chat, and no
  file may have changed, in content, mode, owner, date or attributes. Nothing with the marker of the run may
  be in the usual places of the machine.
- Listeners for TCP, UDP, IPv6, Unix and abstract sockets hear nothing.
- A process outside, under the user of the commands, gets no signal, and its limits, priority and tracer stay.
- No process is left, and no folder of an ended session. While a command runs, its processes are counted.
- The gateway answers every call, and its log has no control characters. Its memory is read at the end of each
  session; the figure is its growth over the second half of the run.
- A few commands find out themselves that they got through, such as a call of the kernel that was let in, and
  print a word that stands in no command.

{render_markdown(figures)}

## Commands by family

{_families(outcomes)}
"""
    )


def _families(outcomes: Sequence[Holes]) -> str:
    names = dict.fromkeys(name for each in outcomes for name in sorted(each.families))
    lines = [
        "| family | " + " | ".join(each.setting.name for each in outcomes) + " |",
        "|---|" + "---|" * len(outcomes),
    ]
    lines += [
        f"| {name} | " + " | ".join(str(each.families[name]) for each in outcomes) + " |" for name in names
    ]
    return "\n".join(lines)
