"""`talaria doctor`: every check, in words or as JSON."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click
import msgspec

from talaria.channels.console.clean import clean
from talaria.cli.checks import Finding, Level, examine
from talaria.cli.loop import run_loop
from talaria.cli.options import Invocation, common, spoken

_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.PROBLEM: "red"}
_NAME_WIDTH = 8


@click.command("doctor", epilog="\b\nExamples:\n  talaria doctor\n  talaria doctor --json")
@common
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_obj
def command(invocation: Invocation, as_json: bool) -> int:
    """Check everything and say how to fix what is wrong.

    Changes nothing and calls no model. Exits with 1 when there is a problem.
    """
    findings = [
        Finding(found.name, found.level, spoken(found.text), spoken(found.fix))
        for found in run_loop(examine(invocation.home(), os.environ))
    ]
    has_problem = any(finding.level is Level.PROBLEM for finding in findings)
    if as_json:
        report = {"ok": not has_problem, "findings": findings}
        click.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        _print(findings)
    return 1 if has_problem else 0


def _print(findings: Sequence[Finding]) -> None:
    margin = " " * (len(Level.PROBLEM) + _NAME_WIDTH + 4)
    for finding in findings:
        level = click.style(finding.level.ljust(len(Level.PROBLEM)), fg=_COLOURS[finding.level])
        text = clean(finding.text).replace("\n", "\n" + margin)
        click.echo(f"{level}  {finding.name.ljust(_NAME_WIDTH)}  {text}")
        if finding.fix:
            click.echo(f"{margin}→ {clean(finding.fix)}")
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    warnings = sum(finding.level is Level.WARN for finding in findings)
    if problems or warnings:
        click.echo(f"\n{_count(problems, 'problem')}, {_count(warnings, 'warning')}.")
    else:
        click.echo("\nEverything is fine.")


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
