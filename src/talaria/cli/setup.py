"""`talaria setup`: finds a model, asks, tries it live, and writes config.toml."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click
import msgspec

from talaria.cli.loop import run_loop
from talaria.cli.options import Invocation, spoken, verb
from talaria.cli.setup_plan import BUILT_IN_MODELS, Candidate, find_candidates, list_models, write
from talaria.cli.trial import try_model
from talaria.config.load import load
from talaria.config.report import BadConfig
from talaria.config.rules import web_address
from talaria.config.settings import Settings
from talaria.core.errors import ModelRefused, ModelUnavailable, NoModel, TalariaError
from talaria.models.catalog import Choice
from talaria.models.local.manifest import find_weights
from talaria.models.presets import LOCAL, PRESETS, SCRIPTED
from talaria.models.prices import Prices

MOST_SHOWN = 15
BUILT_IN = Candidate(LOCAL, "the built-in model: small, private, offline; no key", models=BUILT_IN_MODELS)


@verb(
    "setup",
    "talaria setup                                        asks",
    "talaria setup --provider openai --model gpt-5-mini --yes",
    "talaria setup --provider mine --base-url http://127.0.0.1:8000/v1 --model qwen3 --yes",
)
@click.option("--provider", metavar="NAME", help="A known provider, or a name of yours with --base-url.")
@click.option("--model", metavar="NAME", help="The model, as the provider calls it.")
@click.option("--base-url", metavar="URL", help="Where the provider is, up to /v1.")
@click.option("--key-env", metavar="NAME", help="The variable that holds its key.")
@click.option("--yes", is_flag=True, help="Ask nothing; make the one call that tries the model.")
def command(  # noqa: PLR0917 - click passes them by name
    invocation: Invocation,
    provider: str | None,
    model: str | None,
    base_url: str | None,
    key_env: str | None,
    yes: bool,
) -> None:
    """Choose a model, try it, and write config.toml.

    Looks for keys in the environment and in files of other tools, and for model servers on this machine. The
    choice is tried with one tiny call. Comments in config.toml stay. A key stays where it is, unless you say
    otherwise.
    """
    settings = _settings(invocation)
    given = Candidate.given(provider, base_url, key_env, settings) if provider else None
    if yes:
        if given is None or not model:
            raise click.UsageError("With --yes, name --provider and --model.")
        chosen = run_loop(_tried(given, model))
    else:
        try:
            chosen = _asked(given, model)
        except click.Abort:
            click.echo("")
            if sys.stdin.isatty():
                raise
            raise click.UsageError("Nobody answers here: name --provider and --model, and --yes.") from None
    _write(invocation, *chosen)


def _settings(invocation: Invocation) -> Settings:
    """Those of now; where single keys are wrong, perhaps the very ones to be set up, the defaults. A file
    that cannot be edited at all is told before anything is asked."""
    try:
        return load(invocation.home().path, os.environ).settings
    except BadConfig as error:
        return error.settings or Settings()


def _asked(candidate: Candidate | None, model: str | None) -> tuple[Candidate, str]:
    """Asks until something works. What does not is told in one sentence, and only that is asked again."""
    while True:
        try:
            candidate = _complete(candidate or _choose())
            name = model or _ask_model(candidate, run_loop(list_models(candidate, os.environ)))
            return run_loop(_tried(candidate, name))
        except ModelRefused as error:
            assert candidate is not None
            if error.status in (401, 403):
                candidate = candidate.without_key()
                _say(error, "Type another key; an empty one leads back to the choice.")
            else:
                _say(error, "Name another model, or press Ctrl-C to leave.")
        except TalariaError as error:
            is_silent = isinstance(error, ModelUnavailable)
            _say(error, "Start its server, or choose another." if is_silent else error.hint)
            candidate = None
        model = None


def _say(error: TalariaError, action: str) -> None:
    click.echo(click.style(spoken(error.user_text), fg="red"))
    click.echo(f"  {spoken(action)}\n")


async def _tried(candidate: Candidate, model: str) -> tuple[Candidate, str]:
    if candidate.is_built_in:
        find_weights(model)
        click.echo(
            spoken(f"Nothing to try: `talaria model pull {model}` fetches it, or the gateway's start.")
        )
        return candidate, model
    click.echo(f"Trying {candidate.provider}/{model} with one tiny call …")
    async with candidate.providers(os.environ) as providers:
        answer = await try_model(providers, Choice(candidate.provider, model), Prices())
    click.echo(click.style(answer, fg="green"))
    return candidate, model


def _write(invocation: Invocation, candidate: Candidate, model: str) -> None:
    home = invocation.home()
    lines = write(home, candidate, model, os.environ)
    click.echo(f"\nWritten to {home.config}:")
    for line in lines:
        click.echo(f"  {line}")
    click.echo("")
    chat, serve = invocation.command_line("chat"), invocation.command_line("serve")
    variable = "" if candidate.is_kept else candidate.key_env
    if variable:
        click.echo(f"The key was not written: it stays in {variable}.")
    if variable and variable not in os.environ:
        click.echo(f"Next: export {variable}=…, then start the gateway in that shell: {serve}")
    elif variable and home.is_locked():
        click.echo(f"Next: restart the gateway from a shell that has {variable}: {serve}")
    elif home.is_locked():
        click.echo("The running gateway takes it up within seconds, for new sessions: /new in a chat.")
        click.echo(f"Next: {chat}")
    else:
        click.echo(f"Next: {serve}, and in another terminal {chat}")


# -- the questions


def _choose() -> Candidate:
    click.echo("Looking for keys and model servers on this machine …")
    candidates = run_loop(find_candidates(os.environ))
    if not candidates:
        click.echo("Found no key and no model server.")
    offered = [*candidates, BUILT_IN, Candidate("other", "another provider, or an address of your own")]
    width = max(len(each.provider) for each in offered)
    for number, each in enumerate(offered, 1):
        click.echo(f"  {number}  {each.provider.ljust(width)}  {each.where}")
    number = click.prompt("Which one", type=click.IntRange(1, len(offered)), default=1)
    return offered[number - 1] if number < len(offered) else Candidate(_ask_provider())


def _complete(candidate: Candidate) -> Candidate:
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


def _ask_model(candidate: Candidate, listed: Sequence[str]) -> str:
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
    question = f"Key of {candidate.provider} (not shown; empty: none)"
    is_hidden = sys.stdin.isatty()
    key = click.prompt(question, default="", show_default=False, hide_input=is_hidden).strip()
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
