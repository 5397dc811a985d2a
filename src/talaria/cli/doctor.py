"""`talaria doctor`: every check, in words or as JSON."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import click
import msgspec

from talaria.channels.console.clean import clean
from talaria.cli.checks import examine
from talaria.cli.loop import run_loop
from talaria.cli.options import Invocation, verb
from talaria.core.findings import Finding, Level

_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.PROBLEM: "red"}
_NAME_WIDTH = 8
_PROGRAM = re.compile(r"(^|&& |`)talaria (\w+)")


@verb(
    "doctor",
    "talaria doctor",
    "talaria doctor --call      ask the model for a word too",
    "talaria doctor --json",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--call", "calls", is_flag=True, help="Call the model too, once, with a few tokens.")
def command(invocation: Invocation, as_json: bool, calls: bool) -> int:
    """Check everything and say how to fix what is wrong.

    Changes nothing, and calls no model unless told to. A line that begins with $ can be pasted into a shell.
    Exits with 1 when there is a problem.
    """
    found = run_loop(examine(invocation.home(), os.environ, calls=calls))
    findings = [_typable(finding, invocation) for finding in found]
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    if as_json:
        report = {"ok": not problems, "findings": findings}
        click.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        _print(findings)
        warnings = sum(finding.level is Level.WARN for finding in findings)
        counts = f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}."
        click.echo(f"\n{counts if problems or warnings else 'Everything is fine.'}")
    return 1 if problems else 0


def _typable(finding: Finding, invocation: Invocation) -> Finding:
    """With commands as they are typed here: this program, on this home."""
    texts = (finding.text, finding.fix, finding.command)
    typed = (_PROGRAM.sub(lambda match: match[1] + invocation.command_line(match[2]), text) for text in texts)
    return Finding(finding.name, finding.level, *typed)


def _print(findings: Sequence[Finding]) -> None:
    margin = " " * (len(Level.PROBLEM) + _NAME_WIDTH + 4)
    for finding in findings:
        level = click.style(finding.level.ljust(len(Level.PROBLEM)), fg=_COLOURS[finding.level])
        text = clean(finding.text).replace("\n", "\n" + margin)
        click.echo(f"{level}  {finding.name.ljust(_NAME_WIDTH)}  {text}")
        if finding.fix:
            click.echo(f"{margin}→ {clean(finding.fix)}")
        if finding.command:
            click.echo(f"{margin}$ {clean(finding.command)}")


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
