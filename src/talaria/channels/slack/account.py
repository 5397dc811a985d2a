"""The app's account: what `talaria doctor` says of it, and how `talaria connect slack` tries it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from talaria.access.authorizer import Authorized, Authorizer, Ingress
from talaria.channels.incoming import ButtonPress, IncomingMessage
from talaria.channels.platform_api import PlatformError
from talaria.channels.slack.outlet import SlackOutlet
from talaria.channels.slack.parse import Rules, Said, parse
from talaria.channels.slack.part import SCOPES, SPLIT, UNCONFIRMED, SlackSettings, find_secrets
from talaria.channels.slack.slack_api import BotIdentity, SlackApi, SlackRefused, SlackSocketOff, explain
from talaria.core.clock import Clock, SystemClock
from talaria.core.errors import ConfigError, TalariaError
from talaria.core.problems import Problem, ok, problem, warn
from talaria.core.settings import Examination
from talaria.core.tasks import running, wait_first

_ANSWER_SECONDS = 10.0
_CONNECT = "talaria connect slack --wait 0"
_PLACES = "In the app's settings: App Home, Messages Tab; Event Subscriptions, message.im."
_NO_EVENT = f"Write to the bot. If it does not answer, no events are subscribed. {_PLACES}"


# -- talaria doctor


async def examine_app(examination: Examination[SlackSettings]) -> AsyncIterator[Problem]:
    settings = examination.settings
    if not settings.is_on:
        return
    running = str(((examination.status or {}).get("channels") or {}).get("slack", "")).rstrip(".")
    try:
        secrets = find_secrets(settings, examination.home, examination.environ)
        async with asyncio.timeout(_ANSWER_SECONDS):
            bot = await _try_bot(settings, secrets["bot_token"])
            if token := secrets.get("app_token"):
                async with SlackApi(settings.api_url, token) as app:
                    await app.call("apps.connections.open", msgspec.Raw)
    except SlackRefused as refusal:
        text, hint = explain(refusal)
        yield problem("slack", text, hint, _CONNECT if refusal.is_about_token else "")
    except PlatformError as error:
        yield problem("slack", error.user_text, "Check the network and api_url.")
    except TimeoutError:
        yield problem("slack", f"{settings.api_url} does not answer.", "Check the network.")
    except TalariaError as error:
        # The running gateway may have a variable that this shell does not have.
        if running.startswith(("ready", "starting", "elsewhere")):
            yield ok("slack", f"The gateway's channel is {running}.")
        else:
            yield error.problem("slack", _CONNECT)
    else:
        way = "Socket Mode" if settings.is_socket_mode else "the Events API"
        yield ok("slack", f"@{bot.user} in {bot.team} answers; events come by {way}.")
        if running.endswith(UNCONFIRMED):
            yield warn("slack", f"The gateway's channel is {running}.", _NO_EVENT)
        if running.endswith(SPLIT):
            fix = "Stop the other program, or give this gateway an app of its own: `talaria connect slack`."
            yield problem("slack", f"The gateway's channel is {running}.", fix)


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
                            if name := await self._admit(authorizer, said):
                                await socket.acknowledge(envelope)
                                return name
            except TimeoutError:
                continue
            except SlackRefused:
                raise
            except PlatformError:  # Slack has closed the socket
                await self._clock.sleep(1)
        if not has_received and seconds:
            text = f"The app is connected, but no event came in {seconds:.0f} seconds."
            raise ConfigError(text, f"If you wrote to the bot, it gets no events. {_PLACES}")
        return None

    async def _admit(self, authorizer: Authorizer, said: Said) -> str | None:
        """Return the name of the person whom this message lets in."""
        message = said.message("main", {})
        if not message.text.startswith("/start "):
            return None
        text = await authorizer.greet(message.actor, message.text)
        if text is not None:
            await self.api.call("chat.postMessage", msgspec.Raw, channel=said.place.channel, text=text)
        is_in = isinstance(await authorizer.check(message.actor, Ingress.MESSAGE), Authorized)
        return message.actor.name or message.actor.user_id if is_in else None


# -- the self-test


@asynccontextmanager
async def open_check(settings: SlackSettings, bot_token: str, app_token: str) -> AsyncIterator[CheckedSlack]:
    """Raises what `open_app` raises."""
    async with open_app(settings, bot_token, app_token) as account:
        chat = CheckedSlack(account)
        async with running(chat.listen(), name="slack self-test"):
            yield chat


class CheckedSlack:
    """A connection of the app. While a gateway is connected too, Slack splits the events over both."""

    def __init__(self, account: AppAccount) -> None:
        self._app = account.app
        self._rules = Rules(account.bot, "")
        self._inputs: asyncio.Queue[IncomingMessage | ButtonPress] = asyncio.Queue()
        self._leaving = asyncio.Event()
        self._opened = asyncio.Event()
        self.outlet = SlackOutlet(account.api, SystemClock(), "off")

    async def listen(self) -> None:
        while True:
            self._leaving.clear()
            await wait_first(self._read(), self._leaving.wait())
            if not self._leaving.is_set():  # Slack has closed the socket
                await asyncio.sleep(1)

    async def next_input(self) -> IncomingMessage | ButtonPress:
        return await self._inputs.get()

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
                if isinstance(parsed, Said):
                    self._inputs.put_nowait(parsed.message("", {}))
                elif isinstance(parsed, ButtonPress):
                    self._inputs.put_nowait(parsed)
