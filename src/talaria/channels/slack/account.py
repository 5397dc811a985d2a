"""The app's account: what `talaria doctor` says of it, and how `talaria connect slack` tries it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import msgspec

from talaria.access.authorizer import Authorizer
from talaria.channels.platform_api import PlatformError, PlatformUnanswered
from talaria.channels.reception import admit
from talaria.channels.running import examine_account, state_of
from talaria.channels.self_test import InputQueue
from talaria.channels.slack.events import find_name
from talaria.channels.slack.outlet import SlackOutlet
from talaria.channels.slack.parse import Rules, Said, parse
from talaria.channels.slack.part import SCOPES, SLACK, SPLIT, UNCONFIRMED, SlackSettings, find_secrets
from talaria.channels.slack.slack_api import (
    BotIdentity,
    SlackApi,
    SlackRefused,
    SlackSocketClosed,
    SlackSocketOff,
    explain,
)
from talaria.core.clock import Clock, SystemClock
from talaria.core.errors import ConfigError
from talaria.core.problems import Problem, Severity, ok, problem, warn
from talaria.core.settings import Examination
from talaria.core.tasks import running, wait_first

_PLACES = "In the app's settings: App Home, Messages Tab; Event Subscriptions, message.im."
_NO_EVENT = f"Write to the bot. If it does not answer, no events are subscribed. {_PLACES}"


# -- talaria doctor


async def examine_app(examination: Examination[SlackSettings]) -> AsyncIterator[Problem]:
    settings = examination.settings
    if not settings.is_on:
        return

    async def try_app() -> list[Problem]:
        secrets = find_secrets(settings, examination.home, examination.environ)
        bot = await _try_bot(settings, secrets["bot_token"])
        if token := secrets.get("app_token"):
            async with SlackApi(settings.api_url, token) as app:
                await app.call("apps.connections.open", msgspec.Raw)
        way = "Socket Mode" if settings.is_socket_mode else "the Events API"
        return [ok("slack", f"@{bot.user} in {bot.team} answers; events come by {way}.")]

    found = [*await examine_account(SLACK, examination, try_app, explain)]
    state = state_of(examination, "slack")
    if all(each.severity is Severity.OK for each in found):
        if state.endswith(UNCONFIRMED):
            found.append(warn("slack", f"The gateway's channel is {state}.", _NO_EVENT))
        if state.endswith(SPLIT):
            fix = "Stop the other program, or give this gateway an app of its own: `talaria connect slack`."
            found.append(problem("slack", f"The gateway's channel is {state}.", fix))
    for each in found:
        yield each


# -- talaria connect


@asynccontextmanager
async def open_app(settings: SlackSettings, bot_token: str, app_token: str) -> AsyncIterator[AppAccount]:
    """Raises `ConfigError` if Slack refuses a token, a scope is missing, or Socket Mode is off."""
    if bot_token.startswith("xapp-") and app_token.startswith("xoxb-"):
        raise ConfigError(
            "The two tokens are swapped.", "The bot token begins with xoxb-, the other with xapp-."
        )
    if not bot_token.startswith("xoxb-"):
        hint = "Copy the Bot User OAuth Token, which begins with xoxb-, from the page OAuth & Permissions."
        raise ConfigError("The first token is not a bot token.", hint)
    if not app_token.startswith("xapp-"):
        hint = "Create one under Basic Information, App-Level Tokens. It begins with xapp-."
        raise ConfigError("The second token is not an app-level token.", hint)
    async with AsyncExitStack() as scopes:
        api = await scopes.enter_async_context(SlackApi(settings.api_url, bot_token))
        app = await scopes.enter_async_context(SlackApi(settings.api_url, app_token))
        try:
            bot = await _try_bot(settings, bot_token)
            async with app.open_socket():
                pass  # Slack said hello
        except SlackRefused as refusal:
            raise ConfigError(*explain(refusal)) from None
        except SlackSocketOff as error:
            raise ConfigError(error.user_text, error.hint) from None
        yield AppAccount(api, app, bot)


async def _try_bot(settings: SlackSettings, token: str) -> BotIdentity:
    """Return the bot. Raises `SlackRefused` also for a scope that the app needs and has not."""
    async with SlackApi(settings.api_url, token) as api:
        bot = await api.call("auth.test", BotIdentity)
        if api.scopes and (missing := [scope for scope in SCOPES if scope not in api.scopes]):
            raise SlackRefused("auth.test", "missing_scope", needed=", ".join(missing))
    return bot


class AppAccount:
    """An app whose tokens work."""

    def __init__(self, api: SlackApi, app: SlackApi, bot: BotIdentity, clock: Clock | None = None) -> None:
        self.api = api
        self.app = app
        self.bot = bot
        self._clock = clock or SystemClock()

    @property
    def name(self) -> str:
        return f"@{self.bot.user} in {self.bot.team}"

    def invite(self, code: str) -> Sequence[str]:
        return (
            f"In Slack, open a direct message with {self.bot.user} (Apps, in the side bar), and send it",
            f"  !start {code}",
        )

    async def admit_first(self, authorizer: Authorizer, seconds: float) -> str | None:
        """See `PlatformAccount`. Raises `ConfigError` if no event came at all: none may be subscribed."""
        rules = Rules(self.bot, "main", commands=("start",))
        outlet = SlackOutlet(self.api, self._clock, "off")
        deadline = self._clock.elapsed() + seconds
        has_received, seen = False, set[str]()
        while (left := deadline - self._clock.elapsed()) > 0:
            try:
                async with asyncio.timeout(left), self.app.open_socket() as socket:
                    while True:
                        envelope = await socket.receive()
                        if envelope.type == "disconnect":
                            break
                        has_received = has_received or bool(envelope.envelope_id)
                        said = parse(envelope.type, envelope.payload, rules)
                        if isinstance(said, Said) and said.ts not in seen:
                            seen.add(said.ts)
                            names = await self._names_of(said)
                            message = said.message("main", names)
                            if name := await admit(authorizer, message, outlet.say):
                                await socket.acknowledge(envelope)
                                return name
            except (TimeoutError, PlatformUnanswered, SlackSocketClosed):
                await self._clock.sleep(min(1.0, left))
        if not has_received and seconds:
            text = f"The app is connected, but no event came in {seconds:.0f} seconds."
            raise ConfigError(text, f"If you wrote to the bot, it gets no events. {_PLACES}")
        return None

    async def _names_of(self, said: Said) -> dict[str, str]:
        """Return the name of a person who may present a code, by the id."""
        with suppress(PlatformError):  # then the person is known by the id
            return {said.user: await find_name(self.api, said.user)} if said.is_command else {}
        return {}


# -- the self-test


@asynccontextmanager
async def open_check(settings: SlackSettings, bot_token: str, app_token: str) -> AsyncIterator[CheckedSlack]:
    """Raises what `open_app` raises."""
    async with open_app(settings, bot_token, app_token) as account:
        chat = CheckedSlack(account)
        async with running(chat.listen(), name="slack self-test"):
            yield chat


class CheckedSlack(InputQueue):
    """A connection of the app. While a gateway is connected too, Slack splits the events over both."""

    def __init__(self, account: AppAccount) -> None:
        super().__init__()
        self._app = account.app
        self._rules = Rules(account.bot, "")
        self._leaving = asyncio.Event()
        self._opened = asyncio.Event()
        self.outlet = SlackOutlet(account.api, SystemClock(), "off")

    async def listen(self) -> None:
        while True:
            self._leaving.clear()
            await wait_first(self._read(), self._leaving.wait())
            if not self._leaving.is_set():  # Slack has closed the socket
                await asyncio.sleep(1)

    async def reconnect(self) -> None:
        self._opened.clear()
        self._leaving.set()
        await self._opened.wait()

    async def _read(self) -> None:
        async with self._app.open_socket() as socket:
            self._opened.set()
            while True:
                envelope = await socket.receive()
                parsed = parse(envelope.type, envelope.payload, self._rules)
                if envelope.envelope_id:
                    await socket.acknowledge(envelope)
                self.put(parsed.message("", {}) if isinstance(parsed, Said) else parsed)
