"""`talaria connect CHANNEL`: connects a chat platform and lets the first person in."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from talaria.access.authorizer import Authorized, Authorizer, Ingress
from talaria.access.pairing import Invitation, PairingAdmin
from talaria.channels.console.client import GatewayClient
from talaria.channels.console.plain import StatusLine
from talaria.channels.telegram.client import WANTED_UPDATES, BotApi, BotApiRefused, Update, User
from talaria.channels.telegram.parse import IncomingMessage, decode, parse
from talaria.channels.telegram.part import TELEGRAM
from talaria.channels.telegram.settings import API_URL
from talaria.cli.connect import gateway_or_store, running_gateway
from talaria.cli.loop import run_loop
from talaria.cli.options import Invocation, group
from talaria.config.edit import set_keys, write_secret
from talaria.config.home import Home
from talaria.config.load import load
from talaria.core.access import Person
from talaria.core.clock import SystemClock
from talaria.core.errors import ConfigError, TalariaError
from talaria.core.ports import Pairings
from talaria.parts import PARTS

TOKEN_FILE = "telegram.token"  # noqa: S105 - a file's name
_TRY_SECONDS = 20.0
_FOR_GATEWAY, _FOR_START = "waiting for the gateway's restart", "waiting for /start"
_MOST = 100  # updates that can be looked at without confirming any


@group("connect", "talaria connect telegram", later=("discord", "slack", "matrix", "email"))
def command() -> None:
    """Connect a chat platform and let the first person in."""


@command.verb(
    "telegram", "talaria connect telegram", "talaria connect telegram --token-env TELEGRAM_BOT_TOKEN"
)
@click.option("--token-env", metavar="NAME", help="The variable that holds the token; else it is asked for.")
@click.option("--api-url", metavar="URL", help="Another Bot API server than Telegram's.")
@click.option("--wait", metavar="SECONDS", type=click.IntRange(0), default=300, help="0: wait for nobody.")
def _telegram(invocation: Invocation, token_env: str | None, api_url: str | None, wait: int) -> None:
    """Connect a bot of yours. @BotFather on Telegram makes one and tells its token.

    The token goes to telegram.token in the home, for this user only, unless --token-env names a variable. It
    is tried first, and nothing is written when Telegram refuses it.
    """
    run_loop(_connect(invocation, token_env, api_url, wait))


async def _connect(invocation: Invocation, token_env: str | None, api_url: str | None, wait: int) -> None:
    home = invocation.home()
    serve = invocation.command_line("serve")
    loaded = load(home.path, os.environ, PARTS)  # a broken file is told before anything is asked
    url = api_url or loaded.settings.of(TELEGRAM).api_url or API_URL
    async with BotApi(url, _token(token_env)) as api:
        try:
            async with StatusLine(sys.stdout, "Trying the token", _TRY_SECONDS):
                bot = await api.call("getMe", User)
        except BotApiRefused as refusal:
            if not refusal.is_about_token:
                raise
            raise ConfigError(
                "Telegram does not know this token.", "Copy it whole from @BotFather, such as 123456:ABC…."
            ) from None
        before = _files(home)
        _write(home, token_env, api.token, url)
        click.echo(f"Connected @{bot.username}: {home.config} names it.")
        async with gateway_or_store(home, make=True) as found:
            assert not isinstance(found, Path)
            is_running = isinstance(found, GatewayClient)
            if isinstance(found, GatewayClient):
                if _files(home) != before or not (await found.status())["channels"].get("telegram"):
                    click.echo("Restart the running gateway now: it takes up a channel when it starts.")
                    click.echo(f"  Stop it, then: {serve}")
                known = {each.person for each in (await found.listing()).paired}
                _tell(bot, await found.invite("telegram"), wait)
                name = await _await_gateway(home, known, wait)
            else:
                _tell(bot, await PairingAdmin(found.pairings).invite("telegram"), wait)
                name = await _await_first(found.pairings, api, bot, wait)
    click.echo(f"{name} is paired." if name else "Nobody came yet; the code stays good for an hour.")
    if not is_running:
        click.echo(f"Next: {serve}")


def _token(token_env: str | None) -> str:
    if token_env:
        token = os.environ.get(token_env, "")
        hint = f"Set it: export {token_env}=123456:ABC…"
    else:
        asked = sys.stdin.isatty()
        token = click.prompt("Token from @BotFather", hide_input=True) if asked else sys.stdin.readline()
        hint = "Send /newbot to @BotFather on Telegram; it answers with one."
    if not token.strip():
        raise ConfigError(f"There is no token{f' in {token_env}' if token_env else ''}.", hint)
    return str(token).strip()


def _write(home: Home, token_env: str | None, token: str, url: str) -> None:
    home.prepare()
    if not token_env:
        write_secret(home.path / TOKEN_FILE, token + "\n")
    keys = {
        "token_env": token_env,
        "token_file": None if token_env else TOKEN_FILE,
        "token": None,
        "api_url": url if url != API_URL else None,
    }
    set_keys(home.config, ("channels", "telegram"), keys)


def _files(home: Home) -> list[str]:
    """What a gateway was started with, as far as it is written here."""
    paths = (home.config, home.path / TOKEN_FILE)
    return [path.read_text() if path.exists() else "" for path in paths]


def _tell(bot: User, invitation: Invitation, wait: int) -> None:
    click.echo(f"\nOpen  https://t.me/{bot.username}?start={invitation.code}")
    click.echo(f"or send the bot  /start {invitation.code}")
    click.echo("Whoever does so first may talk to your agent.")
    if wait:
        click.echo(f"Waiting for that, {wait} seconds at most (Ctrl-C: do not wait; the code stays good).")
    click.echo("")
    sys.stdout.flush()


async def _await_gateway(home: Home, known: Collection[Person], wait: int) -> str | None:
    """Whom the gateway lets in, before or after its restart."""
    clock = SystemClock()
    deadline = clock.elapsed() + wait
    async with StatusLine(sys.stdout, _FOR_GATEWAY, wait) as line:
        while clock.elapsed() < deadline:
            with suppress(TalariaError):  # it goes, or comes
                async with running_gateway(home, os.environ) as client:
                    is_on = client is not None and (await client.status())["channels"].get("telegram")
                    line.say(_FOR_START if is_on else _FOR_GATEWAY)
                    for each in (await client.listing()).paired if client is not None else ():
                        if each.person.channel == "telegram" and each.person not in known:
                            return each.person.name or each.person.user_id
            await clock.sleep(1)
    return None


async def _await_first(pairings: Pairings, api: BotApi, bot: User, wait: int) -> str | None:
    """Who presented the code. Updates are only looked at: the gateway gets them all, this one too."""
    clock = SystemClock()
    authorizer = Authorizer(pairings, {}, clock)
    deadline = clock.elapsed() + wait
    seen: set[int] = set()
    async with StatusLine(sys.stdout, _FOR_START, wait):
        while clock.elapsed() < deadline:
            updates = await _peek(api)
            for update in updates:
                if update is not None and update.update_id not in seen:
                    seen.add(update.update_id)
                    name = await _let_in(authorizer, api, bot, update)
                    if name is not None:
                        return name
            if len(updates) >= _MOST:
                return None
            if updates:
                await clock.sleep(1)
    return None


async def _peek(api: BotApi) -> list[Update | None]:
    try:
        raw = await api.call(
            "getUpdates", list[msgspec.Raw], 1.0, timeout=1, limit=_MOST, allowed_updates=WANTED_UPDATES
        )
    except BotApiRefused as refusal:
        if refusal.code != 409:
            raise
        raise ConfigError(
            "The bot is connected, but another program uses its token, so nobody can be waited for.",
            "End that program, then start the gateway with `talaria serve` and send the code.",
        ) from None
    return [decode(each) for each in raw]


async def _let_in(authorizer: Authorizer, api: BotApi, bot: User, update: Update) -> str | None:
    """The name of whoever this lets in."""
    heard = parse(update, bot)
    if not isinstance(heard, IncomingMessage) or not heard.text.startswith("/start "):
        return None
    text = await authorizer.greet(heard.actor, heard.text)
    if text is not None:
        await api.call("sendMessage", msgspec.Raw, chat_id=heard.target.chat, text=text)
    is_in = isinstance(await authorizer.check(heard.actor, Ingress.MESSAGE), Authorized)
    return heard.actor.name or heard.actor.user_id if is_in else None
