"""The questions of `talaria setup`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click
import msgspec

from talaria.cli.setup_plan import BUILT_IN_MODELS, Candidate
from talaria.config.rules import web_address
from talaria.core.errors import NoModel
from talaria.models.presets import LOCAL, PRESETS, SCRIPTED

MOST_SHOWN = 15
BUILT_IN = Candidate(LOCAL, "the built-in model: small, private, offline; no key", models=BUILT_IN_MODELS)


def choose(candidates: Sequence[Candidate]) -> Candidate:
    if not candidates:
        click.echo("Found no key and no model server.")
    offered = [*candidates, BUILT_IN, Candidate("other", "another provider, or an address of your own")]
    width = max(len(each.provider) for each in offered)
    for number, each in enumerate(offered, 1):
        click.echo(f"  {number}  {each.provider.ljust(width)}  {each.where}")
    number = click.prompt("Which one", type=click.IntRange(1, len(offered)), default=1)
    return offered[number - 1] if number < len(offered) else Candidate(_ask_provider())


def complete(candidate: Candidate) -> Candidate:
    """With an address and a key, if it needs them. A key of another tool is used with a yes only."""
    if candidate.is_built_in:
        return candidate
    if candidate.provider not in PRESETS and not candidate.base_url:
        address = click.prompt(f"Address of {candidate.provider}, up to /v1", value_proc=_address)
        candidate = msgspec.structs.replace(candidate, base_url=address)
    if candidate.key:
        return _kept(candidate) if candidate.where else candidate
    preset = PRESETS.get(candidate.provider)
    if candidate.key_env and os.environ.get(candidate.key_env) and not candidate.is_refused:
        return candidate
    if preset is not None and not preset.api_key_env:
        return candidate
    if candidate.models and not candidate.is_refused:
        return candidate  # a server that answered without one
    return _with_key(candidate)


def _address(text: str) -> str:
    """Asked again until it is one."""
    if expected := web_address(text.strip()):
        raise click.UsageError(f"expected {expected}.")
    return text.strip()


def ask_model(candidate: Candidate, listed: Sequence[str]) -> str:
    if candidate.provider == SCRIPTED:
        return SCRIPTED
    if listed:
        shown = ", ".join(listed[:MOST_SHOWN])
        more = f" and {len(listed) - MOST_SHOWN} more" if len(listed) > MOST_SHOWN else ""
        click.echo(f"Models of {candidate.provider}: {shown}{more}")
    default = listed[0] if len(listed) == 1 or candidate.is_built_in else None
    return str(click.prompt("Which model", default=default)).strip()


def _ask_provider() -> str:
    known = [name for name in PRESETS if name != SCRIPTED]
    click.echo(f"Known providers: {', '.join(known)}. Any other name is for an address of your own.")
    return str(click.prompt("Provider")).strip()


def _with_key(candidate: Candidate) -> Candidate:
    variable = candidate.key_env or (PRESETS[candidate.provider].api_key_env if candidate.is_known else "")
    is_hidden = sys.stdin.isatty()
    key = click.prompt(
        f"Key of {candidate.provider} (not shown; empty: none)",
        default="", show_default=False, hide_input=is_hidden,
    ).strip()  # fmt: skip
    if not key:
        if candidate.is_refused:
            raise NoModel(f"{candidate.provider} wants a key.", "Choose again, or press Ctrl-C to leave.")
        return candidate
    name = variable or f"{candidate.provider.upper().replace('-', '_').replace('.', '_')}_API_KEY"
    return _kept(msgspec.structs.replace(candidate, key=key, key_env=name))


def _kept(candidate: Candidate) -> Candidate:
    """A key that is in no variable of ours has to be put somewhere, and that is asked."""
    if candidate.where:
        click.echo(f"That is the {candidate.where}. Talaria reads no file of another program when it runs.")
    question = f"Write the key into config.toml, readable for you only? (No: you set {candidate.key_env})"
    is_kept = click.confirm(question, default=False)
    return msgspec.structs.replace(candidate, where="", is_kept=is_kept)  # asked once
