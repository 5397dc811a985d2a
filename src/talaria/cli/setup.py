"""`talaria setup`: finds a model, asks, tries it live, and writes config.toml."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable
from difflib import get_close_matches
from enum import Enum, auto
from typing import TypeVar

import click
import msgspec

from talaria.cli.options import Invocation, run_loop, verb
from talaria.cli.setup_plan import (
    DAILY_CAP,
    KNOWN,
    ask_address,
    ask_cap,
    ask_choice,
    ask_kept,
    ask_model,
    complete,
    find_candidates,
    named_by_address,
    taken_address,
)
from talaria.cli.text import hidden_input
from talaria.config.issues import BadConfig
from talaria.config.load import load
from talaria.config.model_choice import (
    Candidate,
    is_like_address,
    list_models,
    read_address,
    try_model,
    write,
)
from talaria.config.settings import Settings
from talaria.console.plain import await_with_status
from talaria.core.errors import ModelError, ModelRefused, ModelUnavailable, NoModel, TalariaError
from talaria.core.program import spoken
from talaria.core.redaction import ApiAddress
from talaria.core.spending import FREE, Price
from talaria.core.text import nearest
from talaria.models.catalog import ModelChoice
from talaria.models.failures import StatusKind, status_kind
from talaria.models.known import Prices
from talaria.models.local.weights import DEFAULT_MODEL, find_weights
from talaria.parts import PARTS

T = TypeVar("T")
LIST_SECONDS, TRY_SECONDS = 12.0, 30.0
MOST_NEAR = 8


class UnknownModel(ModelRefused):
    """The provider lists its models, and this model is not among them."""


class Trouble(Enum):
    """The thing that the person has to change before another try."""

    KEY = auto()
    MODEL = auto()
    ADDRESS = auto()
    SERVER = auto()
    CALL = auto()


IN_DIALOGUE = {
    Trouble.KEY: "Type the right key; an empty one leads back to the choice.",
    Trouble.MODEL: "Name another model, or press Ctrl-C to leave.",
    Trouble.ADDRESS: "Start its server, or correct the address; Enter tries the same again.",
    Trouble.SERVER: "Start its server or look at the network, or choose another.",
    Trouble.CALL: "Enter tries it again; or name another model, or press Ctrl-C to leave.",
}
IN_OPTIONS = {
    Trouble.KEY: "Put the right key into its variable; --key-env NAME names another.",
    Trouble.MODEL: "Name another with --model.",
    Trouble.ADDRESS: "Start its server, or correct --base-url; most addresses end with /v1.",
    Trouble.SERVER: "Start its server or look at the network, or name another with --provider.",
    Trouble.CALL: "Try again in a moment, or name another with --model.",
}


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
@click.option(
    "--daily-cap",
    metavar="USD",
    type=click.FloatRange(0, 1_000_000),
    help="What all calls of a day may cost; 0: no cap. Default: setup asks; with --yes 5, if no cap is set.",
)
@click.option("--yes", is_flag=True, help="Ask nothing; make the one call that tries the model.")
def command(  # noqa: PLR0917 - click passes them by name
    invocation: Invocation,
    provider: str | None,
    model: str | None,
    base_url: str | None,
    key_env: str | None,
    daily_cap: float | None,
    yes: bool,
) -> None:
    """Choose a model, try it, and write config.toml.

    Looks for keys in the environment and in files of other tools, and for model servers on this machine. The
    choice is tried with one tiny call. Comments in config.toml stay. A key stays where it is, unless you say
    otherwise.
    """
    settings = _settings(invocation)
    given = _given(provider, base_url, key_env, settings, asks=not yes) if provider else None
    if yes:
        name = model or (DEFAULT_MODEL if given is not None and given.is_built_in else "")
        if given is None or not name:
            raise click.UsageError("With --yes, name --provider and --model.")
        chosen = _choose_by_options(given, name, settings)
        cap = _choose_cap(chosen, daily_cap, settings, asks=False)
    else:
        try:
            chosen = _choose_in_dialogue(given, model or "", settings)
            cap = _choose_cap(chosen, daily_cap, settings, asks=True)
        except click.Abort:
            click.echo("")
            if sys.stdin.isatty():
                raise
            raise click.UsageError("Nobody answers here: name --provider and --model, and --yes.") from None
    _write(invocation, *chosen, cap)


def _settings(invocation: Invocation) -> Settings:
    """Return the current settings. Wrong keys have their defaults, since they may be the keys to be set up.
    Raises `ConfigError` for a file that cannot be edited, before any question is asked."""
    try:
        return load(invocation.home().path, os.environ, PARTS).settings
    except BadConfig as error:
        return error.settings or Settings()


def _given(
    provider: str, base_url: str | None, key_env: str | None, settings: Settings, *, asks: bool
) -> Candidate:
    """Return the candidate of the options. Raises `NoModel` for an unknown provider."""
    if is_like_address(provider) and provider not in settings.providers:
        address = read_address(provider)
        if asks and sys.stdin.isatty() and address and not base_url:
            return named_by_address(address)
        raise NoModel(
            f"--provider takes a name, and {provider} is an address.",
            f"Write: --provider NAME --base-url {address or 'URL'}",
        )
    given = Candidate.given(provider, taken_address(base_url) if base_url else "", key_env, settings)
    near = nearest(provider, KNOWN)
    if given.is_named_only and (near or not asks):
        meant = f" Did you mean {near}?" if near else f" Known are: {', '.join(KNOWN)}."
        raise NoModel(
            f"There is no provider named {provider}.{meant}", "For a server of your own, add --base-url URL."
        )
    return given


# -- the two ways to a choice that works


def _choose_by_options(candidate: Candidate, model: str, settings: Settings) -> tuple[Candidate, str]:
    """Try the choice of the options. Raises `ModelError` with a hint that names the option to change."""
    variable = candidate.key_env
    if variable and not candidate.key and not os.environ.get(variable):
        raise NoModel(
            f"{candidate.provider} needs a key, and {variable} is not set.",
            f"Set it (export {variable}=…), or name the variable that holds the key: --key-env NAME.",
        )
    try:
        if candidate.lacks_version:
            candidate, _ = _list_models(candidate)
        run_loop(_try(candidate, model, settings))
    except ModelError as error:
        error.hint = IN_OPTIONS[_trouble(error, candidate)]
        raise
    return candidate, model


def _choose_in_dialogue(candidate: Candidate | None, model: str, settings: Settings) -> tuple[Candidate, str]:
    """Ask until a choice works. After a failure, only the cause of it is asked for again."""
    tried = ""
    while True:
        try:
            candidate = complete(candidate or _choose(settings))
            model = model or candidate.model
            is_open = not model or candidate.lacks_version
            candidate, listed = _list_models(candidate) if is_open else (candidate, [])
            model = tried = model or ask_model(candidate, listed, tried)
            run_loop(_try(candidate, model, settings))
            return ask_kept(candidate), model
        except ModelError as error:
            assert candidate is not None
            trouble = _trouble(error, candidate)
            if trouble is Trouble.KEY and not (candidate.key_env or candidate.key):
                error.user_text = f"{candidate.provider} wants a key (HTTP {error.status})."
            _say(error, IN_DIALOGUE[trouble])
            if trouble is not Trouble.KEY and (trouble is not Trouble.ADDRESS or error.status is not None):
                candidate, model = msgspec.structs.replace(candidate, model=""), ""
            if trouble in (Trouble.MODEL, Trouble.SERVER):
                tried = ""
            candidate = _corrected(candidate, trouble)
        except TalariaError as error:
            _say(error, error.hint)
            candidate, model = None, ""


def _corrected(candidate: Candidate, trouble: Trouble) -> Candidate | None:
    match trouble:
        case Trouble.KEY:
            return candidate.without_key()
        case Trouble.ADDRESS:
            return ask_address(candidate)
        case Trouble.SERVER:
            return None
        case _:
            return candidate


def _trouble(error: ModelError, candidate: Candidate) -> Trouble:
    kind = status_kind(error.status)
    if kind is StatusKind.BAD_KEY:
        return Trouble.KEY
    if isinstance(error, UnknownModel) or (kind is StatusKind.NOT_FOUND and not candidate.base_url):
        return Trouble.MODEL
    if kind is StatusKind.NOT_FOUND or error.status is None:
        return Trouble.ADDRESS if candidate.base_url else Trouble.SERVER
    return Trouble.CALL


def _say(error: TalariaError, action: str) -> None:
    click.echo(click.style(spoken(error.user_text), fg="red"))
    click.echo(f"  {spoken(action)}\n")


# -- calls


def _choose(settings: Settings) -> Candidate:
    click.echo("Looking for keys and model servers on this machine …")
    with hidden_input():  # a key may be pasted before it is asked for
        found = run_loop(find_candidates(os.environ))
    if not found:
        click.echo("Found no key and no model server.")
    now = Candidate.now_used(settings)
    return ask_choice([now, *found] if now is not None else found)


def _list_models(candidate: Candidate) -> tuple[Candidate, list[str]]:
    """Return the candidate with the address that works, and the models that it lists."""
    found, listed = run_loop(
        _with_timeout(
            LIST_SECONDS, f"Asking {candidate.provider} for its models", list_models(candidate, os.environ)
        )
    )
    if found.base_url != candidate.base_url:
        click.echo(f"It lists its models at {ApiAddress(found.base_url)}: that address is used.")
    return found, listed


async def _try(candidate: Candidate, model: str, settings: Settings) -> None:
    if candidate.is_built_in:
        find_weights(model)
        click.echo(
            spoken(f"Nothing to try: `talaria model pull {model}` fetches it, or the gateway's start.")
        )
        return
    choice = ModelChoice(candidate.provider, model)
    async with candidate.providers(os.environ) as providers:
        try:
            call = try_model(providers, choice, Prices(settings.prices))
            answer = await _with_timeout(TRY_SECONDS, f"Trying {choice}", call, late=408)
        except ModelRefused as error:
            if status_kind(error.status) is not StatusKind.NOT_FOUND:
                raise
            raise await _unknown(candidate, model) or error from None
        loaded = await providers.loaded(candidate.provider, model)
    click.echo(click.style(answer, fg="green"))
    if loaded is not None and (shortage := loaded.shortage(model)) is not None:
        text, command = shortage
        click.echo(click.style(text, fg="yellow"))
        if command:
            click.echo(f"  {command}")


async def _unknown(candidate: Candidate, model: str) -> UnknownModel | None:
    """Return an error that names near models, if the provider lists models without this one."""
    try:
        _, listed = await list_models(msgspec.structs.replace(candidate, models=()), os.environ)
    except ModelError:
        return None
    if not listed or model in listed:
        return None
    near = get_close_matches(model, listed, MOST_NEAR, 0.3) or listed[:MOST_NEAR]
    more = ", …" if len(near) < len(listed) else ""
    text = f"{candidate.provider} has no model named {model} (HTTP 404). It has: {', '.join(near)}{more}."
    return UnknownModel(text, status=404)


async def _with_timeout(seconds: float, text: str, work: Awaitable[T], late: int | None = None) -> T:
    try:
        with hidden_input():
            return await await_with_status(seconds, text, work, sys.stdout)
    except TimeoutError:
        raise ModelUnavailable(f"{text}: no answer within {seconds:.0f} seconds.", status=late) from None


def _choose_cap(
    chosen: tuple[Candidate, str], given: float | None, settings: Settings, *, asks: bool
) -> float | None:
    """Return the daily spend cap to write, 0 for none; None if the caps stay as they are. A cap is proposed
    for a model with a price, unless there is one already."""
    price = _price(settings, *chosen)
    if given is not None or price in (None, FREE) or settings.budgets.caps:
        return given
    return ask_cap() if asks else DAILY_CAP


def _price(settings: Settings, candidate: Candidate, model: str) -> Price | None:
    return Prices(settings.prices).find(candidate.provider, model)


# -- the end


def _tell_cap(settings: Settings, price: Price | None, change: str) -> None:
    caps = settings.budgets.caps
    if price is None and not caps:
        click.echo("Spend cap: none, because the price of this model is not known.")
        click.echo("  A cap needs a price: see [prices] in docs/configuration.md.")
        return
    if price != FREE:
        click.echo(f"Spend cap: {caps or 'none'}. To change it: {change}")


def _write(invocation: Invocation, candidate: Candidate, model: str, cap: float | None) -> None:
    home = invocation.home()
    lines = write(home, candidate, model, os.environ, PARTS, cap=cap)
    click.echo(f"\nWritten to {home.config}:" if lines else f"\n{home.config} stays as it was.")
    for line in lines:
        click.echo(f"  {line}")
    settings, change = _settings(invocation), invocation.command_line("config set budgets.per_day_usd 10")
    click.echo("")
    _tell_cap(settings, _price(settings, candidate, model), change)
    chat, serve = invocation.command_line("chat"), invocation.command_line("serve")
    variable = "" if candidate.is_kept else candidate.key_env
    if variable and variable not in os.environ:
        click.echo(f"The key was only tried, and is written nowhere. To keep it, set {variable} yourself:")
        click.echo(f"Next: export {variable}=…, then start the gateway in that shell: {serve}")
        click.echo(f"  (or {invocation.command_line('setup')} once more, and answer y)")
    elif variable and home.is_locked():
        click.echo(f"The key stays in {variable}.")
        click.echo(f"Next: restart the gateway from a shell that has {variable}: {serve}")
    elif home.is_locked():
        is_new = any(line.startswith("model.") for line in lines)
        whose = "for new sessions: /new in a chat" if is_new else "for all sessions, from the next message on"
        click.echo(f"The running gateway takes it up within seconds, {whose}.")
        click.echo(f"Next: {chat}")
    else:
        if variable:
            click.echo(f"The key stays in {variable}.")
        click.echo(f"Next: {serve}, and in another terminal {chat}")
