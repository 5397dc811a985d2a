"""The providers that `talaria setup` can offer, and how a choice is written to config.toml."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
import msgspec

from talaria.cli.text import ask_hidden
from talaria.config.model_choice import (
    BUILT_IN_MODELS,
    Candidate,
    detected_candidate,
    is_like_address,
    read_address,
)
from talaria.core.errors import NoModel
from talaria.core.redaction import ApiAddress
from talaria.core.text import nearest
from talaria.models.discovery import detect_providers
from talaria.models.settings import LOCAL, PRESETS, SCRIPTED

# -- the providers that `talaria setup` can offer ---------------------------------------------------------


MAX_BYTES = 1 << 20  # of another tool's file
_LINE = re.compile(r"""^\s*(?:export\s+)?(\w+)\s*=\s*["']?([^"'\s#]+)""", re.MULTILINE)


async def find_candidates(environ: Mapping[str, str]) -> list[Candidate]:
    """Return candidates from keys in the environment, servers on this machine, and files of other tools."""
    candidates = [detected_candidate(found) for found in await detect_providers(environ)]
    return [*candidates, *find_foreign_keys(Path(environ.get("HOME") or "/"))]


# -- keys of other tools


def find_foreign_keys(home: Path) -> list[Candidate]:
    """Return keys from well-known files of other tools. The files are only read, and the person is told
    which. A file in another format is ignored. `home` is the person's home folder, not the gateway's."""
    found = []
    for tool, name, read in FILES:
        path = home / name
        try:
            if path.stat().st_size > MAX_BYTES:
                continue
            keys = read(path.read_bytes())
        except (OSError, ValueError, msgspec.DecodeError, AttributeError):
            continue
        where = f"key of {tool} in ~/{name}"
        found += [
            Candidate(provider, where, key_env=PRESETS[provider].api_key_env, key=key.strip())
            for provider, key in keys.items()
            if provider in PRESETS and isinstance(key, str) and key.strip().isprintable() and key.strip()
        ]
    return found


def _by_variable(values: Mapping[str, object]) -> dict[str, object]:
    providers = {preset.api_key_env: name for name, preset in PRESETS.items() if preset.api_key_env}
    return {providers[name]: value for name, value in values.items() if name in providers}


def _codex(data: bytes) -> dict[str, object]:
    return _by_variable(msgspec.json.decode(data, type=dict[str, object]))


def _llm(data: bytes) -> dict[str, object]:
    return msgspec.json.decode(data, type=dict[str, object])


def _opencode(data: bytes) -> dict[str, object]:
    """Return the plain keys. Credentials of its own login are left alone."""
    entries = msgspec.json.decode(data, type=dict[str, dict[str, object]])
    return {name: entry.get("key") for name, entry in entries.items() if entry.get("type") == "api"}


def _lines(data: bytes) -> dict[str, object]:
    return _by_variable(dict(_LINE.findall(data.decode("utf-8", "replace"))))


FILES: tuple[tuple[str, str, Callable[[bytes], dict[str, object]]], ...] = (
    ("Codex", ".codex/auth.json", _codex),
    ("llm", ".config/io.datasette.llm/keys.json", _llm),
    ("opencode", ".local/share/opencode/auth.json", _opencode),
    ("Hermes", ".hermes/.env", _lines),
)


# -- the questions of `talaria setup` ---------------------------------------------------------------------


MOST_SHOWN = 15
DAILY_CAP = 5.0  # USD
KNOWN = [name for name in PRESETS if name != SCRIPTED]
BUILT_IN = Candidate(LOCAL, "the built-in model: small, private, offline; no key", models=BUILT_IN_MODELS)


def ask_choice(found: Sequence[Candidate]) -> Candidate:
    offered = [*found, BUILT_IN, Candidate("other", "another provider, or an address of your own")]
    width = max(len(each.label) for each in offered)
    for number, each in enumerate(offered, 1):
        click.echo(f"  {number}  {each.label.ljust(width)}  {each.where}")
    # No default for a key of another program: the person must choose it.
    default = None if offered[0].is_foreign else 1
    number = click.prompt("Which one", default=default, value_proc=_number_up_to(len(offered)))
    return offered[number - 1] if number < len(offered) else _ask_provider()


def _number_up_to(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text) if str(text).strip().isdecimal() else 0
        if not 1 <= number <= most:
            raise click.UsageError(f"Type a number from 1 to {most}, or Ctrl-C.")
        return number

    return read


def _ask_provider() -> Candidate:
    click.echo(f"Known providers: {', '.join(KNOWN)}.")
    click.echo("Or an address of your own, such as http://127.0.0.1:8000/v1.")
    name = str(click.prompt("Provider")).strip()
    if is_like_address(name):
        return named_by_address(taken_address(name))
    near = None if name in PRESETS else nearest(name, KNOWN)
    return Candidate(near if near and click.confirm(f"Did you mean {near}?", default=True) else name)


def named_by_address(address: str) -> Candidate:
    candidate = Candidate.at(address)
    click.echo(f"It is called {candidate.provider} here.")
    return candidate


def complete(candidate: Candidate) -> Candidate:
    """Return the candidate with an address and a key, if it needs them. Raises `NoModel` without a key."""
    if candidate.is_built_in:
        return candidate
    if candidate.is_named_only:
        candidate = ask_address(candidate)
    if candidate.key:
        return candidate
    preset = PRESETS.get(candidate.provider)
    if candidate.key_env and os.environ.get(candidate.key_env) and not candidate.is_refused:
        return candidate
    if preset is not None and not preset.api_key_env and not candidate.is_refused:
        return candidate
    answers_without = candidate.models or candidate.is_keyless or (candidate.model and not candidate.key_env)
    return candidate if answers_without and not candidate.is_refused else _with_key(candidate)


def ask_address(candidate: Candidate) -> Candidate:
    """Ask for the address, until it is one. The present address is the default."""
    address = click.prompt(
        f"Address of {candidate.provider}, up to /v1",
        default=candidate.base_url or None,
        show_default=not ApiAddress(candidate.base_url).secrets,
        value_proc=taken_address,
    )
    return msgspec.structs.replace(candidate, base_url=address, models=())


def taken_address(text: str) -> str:
    """Return the complete address, and tell the person what was added."""
    address = read_address(text)
    if not address:
        raise click.UsageError(f"expected an address such as http://127.0.0.1:8000/v1, not {text}.")
    if "://" not in text:
        click.echo(f"Taken as {address}")
    return address


def ask_model(candidate: Candidate, listed: Sequence[str], default: str = "") -> str:
    if candidate.provider == SCRIPTED:
        return SCRIPTED
    if listed:
        shown = ", ".join(listed[:MOST_SHOWN])
        more = f" and {len(listed) - MOST_SHOWN} more" if len(listed) > MOST_SHOWN else ""
        click.echo(f"Models of {candidate.provider}: {shown}{more}")
    if len(listed) == 1 or candidate.is_built_in:
        default = listed[0]
    return str(click.prompt("Which model", default=default or None)).strip()


def _with_key(candidate: Candidate) -> Candidate:
    variable = candidate.key_env or (PRESETS[candidate.provider].api_key_env if candidate.is_known else "")
    none = "" if candidate.is_refused or variable else "; empty: none"
    question = f"Key of {candidate.provider} (not shown{none})"
    key = ask_hidden(question, may_be_empty=True)
    if not key:
        if candidate.is_refused or variable:
            raise NoModel(f"{candidate.provider} wants a key.", "Choose again, or press Ctrl-C to leave.")
        return msgspec.structs.replace(candidate, is_keyless=True)
    name = variable or f"{candidate.provider.upper().replace('-', '_').replace('.', '_')}_API_KEY"
    return msgspec.structs.replace(candidate, where="", key=key, key_env=name)


def ask_cap() -> float:
    """Ask how much all calls of a day may cost; 0 is no cap."""
    click.echo("This model costs money. With a cap, calls that would cost more than that are refused.")
    return float(
        click.prompt("Spend cap in USD a day (0: none)", default=DAILY_CAP, value_proc=_read_dollars)
    )


def _read_dollars(text: str | float) -> float:
    try:
        dollars = float(str(text).strip().removeprefix("$"))
    except ValueError:
        dollars = -1.0
    if not 0 <= dollars <= 1_000_000:
        raise click.UsageError("Type a number of dollars, such as 5, or 0 for no cap.")
    return dollars


def ask_kept(candidate: Candidate) -> Candidate:
    """Ask whether to write a key that works and that no variable holds to config.toml."""
    if not candidate.key or candidate.is_kept:
        return candidate
    if candidate.is_foreign:
        click.echo(f"That is the {candidate.where}. Talaria reads no file of another program when it runs.")
    question = f"Write the key into config.toml, readable for you only? (No: you set {candidate.key_env})"
    return msgspec.structs.replace(candidate, is_kept=click.confirm(question, default=False))
