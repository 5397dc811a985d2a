"""`talaria connect CHANNEL`: connects a chat platform and pairs the first person."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any

import click
import msgspec

from talaria.access.authorizer import Authorizer
from talaria.access.settings import PersonSettings
from talaria.channels.descriptor import Channel, Connector, PlatformAccount, SecretQuestion, find_secret
from talaria.channels.self_test import SelfTest
from talaria.cli.home_gateway import running_gateway
from talaria.cli.operations import open_carrier
from talaria.cli.options import Group, Invocation, group, run_loop, verb
from talaria.cli.text import ask_hidden, hidden_input
from talaria.config.edit import set_keys, write_secret
from talaria.config.home import Home
from talaria.config.load import load
from talaria.console.plain import StatusLine
from talaria.core.access import OWNER, Paired, PairingList, Person
from talaria.core.clock import SystemClock
from talaria.core.errors import ConfigError, TalariaError
from talaria.core.program import spoken
from talaria.gateway import Records
from talaria.operations.access import InviteBody, invite_person, list_pairings
from talaria.operations.operation import Nothing
from talaria.operations.status import show_status
from talaria.parts import PARTS

_TRY_SECONDS = 20.0
_CHECK_SECONDS = 60.0  # for each step
_TRIES = 3  # of a secret that is typed
_RELOAD_SECONDS = 8.0  # in which a running gateway has read config.toml again, and tried the channel
_FOR_GATEWAY, _FOR_START = "waiting for the gateway", "waiting for /start"


def _commands(parts: Collection[object]) -> Group:
    channels = [part for part in parts if isinstance(part, Channel) and part.connector is not None]

    @group("connect", *(f"talaria connect {channel.name}" for channel in channels))
    def connect() -> None:
        """Connect a chat platform and pair the first person."""

    for channel in channels:
        assert channel.connector is not None
        connect.add_command(_command(channel, channel.connector))
    return connect


def _command(channel: Channel[Any], connector: Connector[Any]) -> click.Command:
    """Return the command of a channel, with an option for the variable of each secret and for each key."""

    def run(invocation: Invocation, wait: int, *, check: bool = False, **given: str | None) -> None:
        if check:
            run_loop(_check(invocation, channel, connector, wait))
        else:
            run_loop(_connect(invocation, channel, connector, given, wait))

    run.__doc__ = (
        f"{connector.help}\n\n"
        "A secret goes to a file in the home, for this user only, unless a variable is named. It is tried "
        "first, and nothing is written if the platform refuses it."
    )
    seconds, example = click.IntRange(0), f"talaria connect {channel.name}"
    command = verb(channel.name, example)(run)
    for secret in connector.secrets:
        text = f"The variable that holds the {secret.key.replace('_', ' ')}; else it is asked for."
        option = f"--{secret.key.replace('_', '-')}-env"
        command.params.append(click.Option([option], metavar="NAME", help=text))
    for key, text in connector.options.items():
        command.params.append(click.Option([f"--{key.replace('_', '-')}"], metavar="VALUE", help=text))
    wait = click.Option(["--wait"], metavar="SECONDS", type=seconds, default=300, help="0: do not wait.")
    command.params.append(wait)
    if connector.check is not None:
        text = "Try the configured account on the real platform: send, edit, file, button, reconnect."
        command.params.append(click.Option(["--check"], is_flag=True, help=text))
    return command


async def _check(invocation: Invocation, channel: Channel[Any], connector: Connector[Any], wait: int) -> None:
    """Run the live self-test with the configured account."""
    assert connector.check is not None
    home = invocation.home()
    settings = load(home.path, os.environ, PARTS).settings.of(channel)
    secrets = {
        each.key: find_secret(settings, channel, each.key, home.path, os.environ)
        for each in connector.secrets
    }
    async with connector.check(settings, secrets) as chat:
        results = await SelfTest(chat, click.echo, wait or _CHECK_SECONDS).run()
    differences = [each for each in results if each.difference]
    if differences:
        names = ", ".join(each.name for each in differences)
        raise ConfigError(f"{channel.title} differs from what is expected: {names}.", "See the lines above.")
    click.echo(f"{channel.title} does what is expected.")


async def _connect(
    invocation: Invocation,
    channel: Channel[Any],
    connector: Connector[Any],
    given: Mapping[str, str | None],
    wait: int,
) -> None:
    home, serve = invocation.home(), invocation.command_line("serve")
    loaded = load(home.path, os.environ, PARTS)  # a broken file is reported before any question
    options = {key: value for key in connector.options if (value := given[key])}
    settings = msgspec.structs.replace(loaded.settings.of(channel), **options)
    is_asked = sys.stdin.isatty() and not all(given[f"{each.key}_env"] for each in connector.secrets)
    if is_asked and connector.guide:
        click.echo(connector.guide())
    async with AsyncExitStack() as scopes:
        with hidden_input():  # a token that is pasted too early, or once more, is not shown either
            for left in reversed(range(_TRIES if is_asked else 1)):
                secrets = {each.key: _ask(each, given[f"{each.key}_env"]) for each in connector.secrets}
                try:
                    async with StatusLine(sys.stdout, f"Trying {channel.name}", _TRY_SECONDS):
                        account = await scopes.enter_async_context(connector.open(settings, secrets))
                    break
                except ConfigError as refusal:  # the platform does not know the secret
                    if not left:
                        raise
                    click.echo(f"{refusal.user_text}\n  {refusal.hint}", err=True)
        _write(home, channel, {key: given[f"{key}_env"] for key in secrets}, secrets, options)
        click.echo(f"Connected {account.name}: {home.config} names it.")
        carry_out = await scopes.enter_async_context(open_carrier(home, make=True))
        records = carry_out.at if isinstance(carry_out.at, Records) else None
        if records is None:
            click.echo("The running gateway opens the channel within seconds.")
        known = (await carry_out(list_pairings, Nothing())).paired
        _tell(account, (await carry_out(invite_person, InviteBody(channel.name))).code, wait)
        if records is None:
            person = await _await_gateway(home, channel.name, known, wait, serve)
        else:
            async with StatusLine(sys.stdout, _FOR_START, wait):
                authorizer = Authorizer(records.store.pairings, {}, records.clock)
                await account.admit_first(authorizer, wait)
            listed = await carry_out(list_pairings, Nothing())
            person = next(_newly_paired(listed, channel.name, known), None)
    name = person and (person.name or person.user_id)
    click.echo(f"{name} is paired." if name else "Nobody came yet; the code stays good for an hour.")
    if records is not None:
        click.echo(f"Next: {serve}")
    if person is not None:
        owner = loaded.settings.people.get(OWNER, PersonSettings())
        ids = ",".join(dict.fromkeys((*owner.ids, f"{channel.name}:{person.user_id}")))
        click.echo(spoken(f"If {name} is you, your agent should know you as one person everywhere:"))
        click.echo(spoken(f"  `talaria config set people.owner.ids {ids}`"))


def _ask(secret: SecretQuestion, variable: str | None) -> str:
    if variable:
        value, hint = os.environ.get(variable, ""), f"Set it: export {variable}=…"
    else:
        is_asked = sys.stdin.isatty()
        value = ask_hidden(secret.question) if is_asked else sys.stdin.readline()
        hint = secret.hint
    if not value.strip():
        raise ConfigError(f"There is no {secret.key}{f' in {variable}' if variable else ''}.", hint)
    return str(value).strip()


def _write(
    home: Home,
    channel: Channel[Any],
    variables: Mapping[str, str | None],
    secrets: Mapping[str, str],
    options: Mapping[str, str],
) -> None:
    """Write the secrets that stand in no variable to files, and name everything in config.toml."""
    home.prepare()
    defaults = channel.settings()
    keys: dict[str, object | None] = {
        key: value if value != getattr(defaults, key) else None for key, value in options.items()
    }
    for key, secret in secrets.items():
        file = None if variables[key] else f"{channel.name}.{key}"
        if file:
            write_secret(home.path / file, secret + "\n")
        keys |= {f"{key}_env": variables[key], f"{key}_file": file, key: None}
    set_keys(home.config, channel.table, keys)


def _tell(account: PlatformAccount, code: str, wait: int) -> None:
    lines = ["", *account.invite(code), "The first person who does so may talk to your agent."]
    if wait:
        lines.append(f"Waiting for that, {wait} seconds at most (Ctrl-C: do not wait; the code stays good).")
    click.echo("\n".join([*lines, ""]))
    sys.stdout.flush()


async def _await_gateway(
    home: Home, channel: str, known: Collection[Paired], wait: int, serve: str
) -> Person | None:
    """Return the person whom the gateway lets in. It opens the channel by itself within seconds,
    unless it needs a variable that only this shell has."""
    clock, is_told = SystemClock(), False
    began = clock.elapsed()
    async with StatusLine(sys.stdout, _FOR_GATEWAY, wait) as line:
        while (passed := clock.elapsed() - began) < wait:
            with suppress(TalariaError):  # it may be restarted meanwhile
                async with running_gateway(home, os.environ) as client:
                    state, listed = "", PairingList((), ())
                    if client is not None:
                        state = (await client.carry_out(show_status, Nothing())).channels.get(channel, "")
                        listed = await client.carry_out(list_pairings, Nothing())
                    line.say(_FOR_START if state.startswith(("ready", "starting: ")) else _FOR_GATEWAY)
                    if state.startswith("stopped") and passed > _RELOAD_SECONDS and not is_told:
                        line.hide()
                        click.echo(f"The gateway's channel is {state}")
                        click.echo(f"  Stop it, then start it here: {serve}")
                        is_told = True
                    for person in _newly_paired(listed, channel, known):
                        return person
            await clock.sleep(1)
    return None


def _newly_paired(listed: PairingList, channel: str, known: Collection[Paired]) -> Iterator[Person]:
    """Return the people who came since, also those who were paired before."""
    new = (each.person for each in listed.paired if each not in known)
    return (person for person in new if person.channel == channel)


command = _commands(PARTS)
