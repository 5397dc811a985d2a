"""`talaria setup`: finds a model, tries it live, and writes config.toml."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from talaria.cli.loop import run_loop
from talaria.cli.options import Invocation, common, spoken

if TYPE_CHECKING:
    from talaria.cli.setup_plan import Candidate, Plan
    from talaria.config.settings import Settings
    from talaria.core.errors import TalariaError

EXAMPLES = """\b
Examples:
  talaria setup                                        asks
  talaria setup --provider openai --model gpt-5-mini --yes
  talaria setup --provider mine --base-url http://127.0.0.1:8000/v1 --model qwen3 --yes
"""


@click.command("setup", epilog=EXAMPLES)
@common
@click.option("--provider", metavar="NAME", help="A known provider, or a name of yours with --base-url.")
@click.option("--model", metavar="NAME", help="The model, as the provider calls it.")
@click.option("--base-url", metavar="URL", help="Where the provider is, up to /v1.")
@click.option("--key-env", metavar="NAME", help="The variable that holds its key.")
@click.option("--yes", is_flag=True, help="Ask nothing; make the one call that tries the model.")
@click.pass_obj
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
    from talaria.cli.setup_plan import Candidate

    settings = _settings(invocation)
    given = Candidate.given(provider, base_url, key_env, settings) if provider else None
    if yes:
        if given is None or not model:
            raise click.UsageError("With --yes, name --provider and --model.")
        plan = run_loop(_tried(given, model))
    else:
        plan = _asked(_Dialogue(), given, model)
    _write(invocation, plan)


def _settings(invocation: Invocation) -> Settings:
    """Those of now; where single keys are wrong, perhaps the very ones to be set up, the defaults. A file
    that cannot be edited at all is told before anything is asked."""
    from talaria.config.load import load
    from talaria.config.report import BadConfig
    from talaria.config.settings import Settings

    try:
        return load(invocation.home().path, os.environ).settings
    except BadConfig as error:
        return error.settings or Settings()


def _asked(dialogue: _Dialogue, given: Candidate | None, wished: str | None) -> Plan:
    """Asks until something works. What does not is told in one sentence, and only that is asked again."""
    from talaria.cli.setup_dialogue import ask_model, choose, complete
    from talaria.core.errors import ModelRefused, ModelUnavailable, TalariaError

    candidate, model = given, wished
    with dialogue:
        while True:
            try:
                candidate = complete(candidate or choose(run_loop(_found())))
                name = model or ask_model(candidate, run_loop(_listed(candidate)))
                return run_loop(_tried(candidate, name))
            except ModelRefused as error:
                assert candidate is not None
                if error.status in (401, 403):
                    candidate = candidate.without_key()
                    _say(error, "Type another key; an empty one leads back to the choice.")
                else:
                    _say(error, "Name another model, or press Ctrl-C to leave.")
                model = None
            except ModelUnavailable as error:
                _say(error, "Start its server, or choose another.")
                candidate, model = None, None
            except TalariaError as error:
                _say(error, error.hint)
                candidate, model = None, None


def _say(error: TalariaError, action: str) -> None:
    click.echo(click.style(spoken(error.user_text), fg="red"))
    click.echo(f"  {spoken(action)}\n")


class _Dialogue:
    """Without anybody to answer, says what to write instead."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None or not issubclass(kind, click.Abort):
            return
        click.echo("")
        if not sys.stdin.isatty():
            raise click.UsageError("Nobody answers here: name --provider and --model, and --yes.")


async def _found() -> list[Candidate]:
    from talaria.cli.setup_plan import find_candidates

    click.echo("Looking for keys and model servers on this machine …")
    return await find_candidates(os.environ)


async def _listed(candidate: Candidate) -> list[str]:
    """What the provider says it has; empty when it does not say."""
    from talaria.cli.setup_plan import list_models

    return await list_models(candidate, os.environ)


async def _tried(candidate: Candidate, model: str) -> Plan:
    from talaria.cli.setup_plan import Plan
    from talaria.cli.trial import try_model
    from talaria.models.catalog import Choice
    from talaria.models.local.manifest import find_weights
    from talaria.models.prices import Prices

    if candidate.is_built_in:
        find_weights(model)
        click.echo(
            spoken(f"Nothing to try: `talaria model pull {model}` fetches it, or the gateway's start.")
        )
        return Plan(candidate, model)
    click.echo(f"Trying {candidate.provider}/{model} with one tiny call …")
    async with candidate.providers(os.environ) as providers:
        trial = await try_model(providers, Choice(candidate.provider, model), Prices())
    click.echo(click.style(str(trial), fg="green"))
    return Plan(candidate, model)


def _write(invocation: Invocation, plan: Plan) -> None:
    from talaria.cli.connect import is_locked
    from talaria.cli.setup_plan import write

    home = invocation.home()
    lines = write(home, plan, os.environ)
    click.echo(f"\nWritten to {home.config}:")
    for line in lines:
        click.echo(f"  {line}")
    click.echo("")
    chat, serve = invocation.command_line("chat"), invocation.command_line("serve")
    variable = "" if plan.candidate.is_kept else plan.candidate.key_env
    if variable:
        click.echo(f"The key was not written: it stays in {variable}.")
    if variable and variable not in os.environ:
        click.echo(f"Next: export {variable}=…, then start the gateway in that shell: {serve}")
    elif variable and is_locked(home):
        click.echo(f"Next: restart the gateway from a shell that has {variable}: {serve}")
    elif is_locked(home):
        click.echo("The running gateway takes it up within seconds, for new sessions: /new in a chat.")
        click.echo(f"Next: {chat}")
    else:
        click.echo(f"Next: {serve}, and in another terminal {chat}")
