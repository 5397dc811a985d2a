"""`talaria doctor`: every check, in words or as JSON."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence

import click
import msgspec

from talaria.cli.gateway_checks import (
    check_cluster,
    check_gateway,
    check_idle,
    check_jobs,
    check_plugins,
    find_jobs,
)
from talaria.cli.home_checks import (
    check_broken_config,
    check_config,
    check_home,
    check_machine,
    check_secret_files,
    check_trust,
)
from talaria.cli.home_gateway import running_gateway
from talaria.cli.model_checks import check_agent
from talaria.cli.options import Invocation, run_loop, verb
from talaria.config.home import Home, home_environ
from talaria.config.load import Loaded, load
from talaria.config.settings import Settings, settings_type
from talaria.config.shared_files import examine_shared_files
from talaria.core.errors import ConfigError, TalariaError
from talaria.core.problems import Problem, Severity, problem, run
from talaria.core.settings import Examination, Parts, Status
from talaria.core.text import clean, visible_json
from talaria.jobs.desk import JobView
from talaria.parts import PARTS
from talaria.store.part import find_rescue

_COLOURS = {Severity.OK: "green", Severity.WARN: "yellow", Severity.PROBLEM: "red"}
_NAME_WIDTH = 8
_ANSWER_SECONDS = 10.0
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
    found = run_loop(examine(invocation.find_home(), os.environ, calls=calls))
    findings = [_typable(finding, invocation) for finding in found]
    problems = sum(finding.severity is Severity.PROBLEM for finding in findings)
    if as_json:
        report = {"ok": not problems, "findings": [*map(_as_json, findings)]}
        click.echo(visible_json(msgspec.json.format(msgspec.json.encode(report))))
    else:
        _print(findings)
        warnings = sum(finding.severity is Severity.WARN for finding in findings)
        counts = f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}."
        click.echo(f"\n{counts if problems or warnings else 'Everything is fine.'}")
        if not problems and not calls and any(each.subject == "endpoint" for each in findings):
            click.echo(invocation.spoken("The model was not called; `talaria doctor --call` calls it once."))
    return 1 if problems else 0


def _typable(found: Problem, invocation: Invocation) -> Problem:
    """Return the problem with each `talaria` command as the user has to type it (program, `--home`)."""
    texts = (found.text, found.hint, found.command)
    text, hint, command = (
        _PROGRAM.sub(lambda match: match[1] + invocation.command_line(match[2]), text) for text in texts
    )
    return msgspec.structs.replace(found, text=text, hint=hint, action=run(command))


def _as_json(found: Problem) -> dict[str, str]:
    return {
        "name": found.subject,
        "level": found.severity,
        "text": found.text,
        "fix": found.hint,
        "command": found.command,
    }


def _print(problems: Sequence[Problem]) -> None:
    margin = " " * (len(Severity.PROBLEM) + _NAME_WIDTH + 4)
    for found in problems:
        level = click.style(found.severity.ljust(len(Severity.PROBLEM)), fg=_COLOURS[found.severity])
        text = clean(found.text).replace("\n", "\n" + margin)
        click.echo(f"{level}  {found.subject.ljust(_NAME_WIDTH)}  {text}")
        if found.hint:
            click.echo(f"{margin}→ {clean(found.hint)}")
        if found.command:
            click.echo(f"{margin}$ {clean(found.command)}")


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


# -- the checks


async def examine(
    home: Home, environ: Mapping[str, str], *, calls: bool = False, parts: Parts = PARTS
) -> list[Problem]:
    """Return the findings of all checks. With `calls`, the model is called once."""
    findings = [*check_machine(home)]
    if untrusted := [*check_trust(home)]:  # another user may have written it, so nothing of it is read
        return findings + untrusted
    findings += check_home(home, environ)
    loaded: Loaded | None = None
    try:
        loaded = load(home.path, environ, parts)
    except ConfigError as error:
        findings += check_broken_config(home, error, parts)
    settings = loaded.settings if loaded is not None else settings_type(parts)()
    status, gateway, jobs = await _look_at_gateway(home, settings, environ)
    if loaded is not None:
        findings += check_config(home, loaded, parts, is_running=status is not None)
        findings += examine_shared_files(home, settings.store)
    findings += [*check_secret_files(home, settings), *gateway]
    if loaded is not None:
        agent = check_agent(home, settings, environ, calls=calls, running=status)
        findings += [finding async for finding in agent]
        findings += await asyncio.to_thread(check_plugins, home, settings, environ, status)
    for part in parts:
        if part.findings is not None and (loaded is not None or part.is_required):
            known = home_environ(home.path, environ)
            examination = Examination(home.path, settings.of(part), known, status, settings.store.shared)
            found = [finding async for finding in part.findings(examination)]
            broken = {each.subject for each in found if each.severity is Severity.PROBLEM}
            findings = [each for each in findings if each.subject not in broken]  # one fault, reported once
            findings += found
    if loaded is not None:
        known = home_environ(home.path, environ)
        findings += [finding async for finding in check_cluster(settings, known, status)]
        is_running = status is not None
        found_jobs = check_jobs(jobs, home, settings, parts, is_running=is_running)
        findings += [finding async for finding in found_jobs]
    return findings


async def _look_at_gateway(
    home: Home, settings: Settings, environ: Mapping[str, str]
) -> tuple[Status | None, list[Problem], Sequence[JobView]]:
    """Return the status of the running gateway, if one runs and answers, what there is to say of it, and the
    jobs that can be read."""
    try:
        async with running_gateway(home, environ) as client:
            if client is None:
                findings = [*check_idle(home, settings)]
                return None, findings, await find_jobs(home, settings, None)
            async with asyncio.timeout(_ANSWER_SECONDS):
                status, jobs = await client.status(), await find_jobs(home, settings, client)
            rescue = find_rescue(home.find_database(settings.store.url))
            return status, [*check_gateway(client.url, status, rescue)], jobs
    except TimeoutError:
        info = home.read_gateway()
        where = f"The gateway at {info.url}" if info else "The gateway"
        text = f"{where} runs, but does not answer within {_ANSWER_SECONDS:g} seconds."
        return None, [problem("gateway", text, "Restart it; what it has accepted is not lost.")], ()
    except ConfigError as error:  # its token cannot be read
        return None, [error.problem("token")], ()
    except TalariaError as error:
        return None, [error.problem("gateway")], ()
