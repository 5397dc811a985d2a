"""`SlackChannel`: receives events over Socket Mode or the Events API, and reports its status.

An event is acknowledged only after its message is durable. Slack sends an unacknowledged event again, after
three seconds or over the next socket, and the intake recognizes it by its key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import ClassVar, NoReturn
from urllib.parse import parse_qsl

import msgspec

from talaria.access.approvals import NotEntitled
from talaria.access.authorizer import Authorizer
from talaria.channels.channel_loop import ChannelLoop, ChannelNotReady, ChannelPhase, NeedsOperator
from talaria.channels.incoming import ButtonPress, Withdrawal
from talaria.channels.lanes import EventLanes
from talaria.channels.platform_api import decode_or_none
from talaria.channels.running import hosts_of, run_channel
from talaria.channels.slack.events import EventHandler
from talaria.channels.slack.outlet import SlackOutlet
from talaria.channels.slack.parse import Ignored, Rules, Said, parse
from talaria.channels.slack.part import CHANNEL, SLACK, SPLIT, UNCONFIRMED, SlackSettings, find_secrets
from talaria.channels.slack.slack_api import (
    BotIdentity,
    Envelope,
    SlackApi,
    SlackRefused,
    SlackSocket,
    explain,
)
from talaria.channels.webhooks.signatures import NotGenuine, has_proof, prove
from talaria.core.clock import Clock
from talaria.core.failpoints import Failpoint, hit
from talaria.core.ids import ChatKey
from talaria.core.redaction import Secret
from talaria.core.tasks import running, stop, wait_first
from talaria.gateway import Admission, Gateway, Unproven
from talaria.turns.intake import Draining
from talaria.turns.slash import ALIASES, SLASH_COMMANDS

_log = logging.getLogger("talaria.slack")

WEBHOOK_PATH = "/hooks/slack"
_LEAVING_SECONDS = 30.0  # that a socket stays open beside its successor
_SPLIT_SECONDS = 120.0  # after which Slack has forgotten a broken socket
_DRAINS = "The gateway shuts down."


Input = Said | Withdrawal | ButtonPress


class SlackChannel(ChannelLoop):
    """`app` has the app-level token; without it events come to the request URL."""

    name = CHANNEL
    title = "Slack"

    def __init__(
        self,
        api: SlackApi,
        app: SlackApi | None,
        settings: SlackSettings,
        handler: EventHandler,
        gateway: Gateway,
    ) -> None:
        super().__init__(gateway.clock)
        self._api = api
        self._app = app
        self._settings = settings
        self._handler = handler
        self._agent = gateway.settings.agent.name
        self._rules: Rules | None = None
        self._lanes = EventLanes(self, self._note_connected, self._leave_for_good)
        self._drained = asyncio.Event()
        self._sockets = 0  # that are open here
        self._has_received = False
        self._suspected: float | None = None  # since when Slack has counted sockets of others
        self._is_split = False  # another program has a socket of this app

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await self._lanes.close()

    async def serve(self) -> NoReturn:
        try:
            self._rules = self._rules or await self._introduce()
            await (self._listen() if self._app is None else self._serve_sockets(self._app))
        except SlackRefused as refusal:
            if refusal.is_about_token:
                raise NeedsOperator(*explain(refusal)) from None
            raise

    async def take(self, kind: str, payload: bytes | bytearray) -> None:
        """Handle one event that Slack sent to the request URL. Raises `StoreError`, `Draining`, `Overloaded`
        or `ChannelNotReady` if Slack must send it again."""
        if self._rules is None or self.phase is ChannelPhase.STOPPED or self._lanes.is_full:
            raise ChannelNotReady("The Slack channel is not ready.", "Send it again in a moment.")
        self._note_received()
        parsed, rules = parse(kind, payload, self._rules), self._rules
        if not isinstance(parsed, Ignored):
            lane = _lane_of(parsed, self._agent)
            await self._lanes.do_once(lane, lambda: self._handler.handle(parsed, rules.bot))

    async def _introduce(self) -> Rules:
        bot = await self._api.call("auth.test", BotIdentity)
        _log.info("Slack knows the bot as %s in %s", bot.user, bot.team)
        commands = frozenset({*SLASH_COMMANDS, *ALIASES, "start"})
        return Rules(bot, self._agent, self._settings.mention, self._settings.mention_in, commands)

    async def _listen(self) -> NoReturn:
        self._note_connected()
        await self._drained.wait()
        raise Draining(_DRAINS)

    # -- Socket Mode ----------------------------------------------------------------------------------------

    async def _serve_sockets(self, app: SlackApi) -> NoReturn:
        """Keep a socket open. When Slack asks for another one, open that first, so that no event waits."""
        open_ones: set[asyncio.Task[None]] = set()

        def drop(task: asyncio.Task[None]) -> None:
            open_ones.discard(task)
            if not task.cancelled():
                task.exception()  # of a socket that has a successor

        try:
            while True:
                leaving = asyncio.Event()
                newest = asyncio.create_task(self._read_socket(app, leaving), name="slack socket")
                open_ones.add(newest)
                newest.add_done_callback(drop)
                await wait_first(leaving.wait(), asyncio.wait((newest,)), self._drained.wait())
                if self._drained.is_set():
                    raise Draining(_DRAINS)
                if newest.done():
                    newest.result()
                asyncio.get_running_loop().call_later(_LEAVING_SECONDS, newest.cancel)
        finally:
            await stop(*open_ones)

    async def _read_socket(self, app: SlackApi, leaving: asyncio.Event) -> NoReturn:
        """Read a socket until it closes. `leaving` is set when another one should be opened."""
        async with app.open_socket() as socket:
            self._sockets += 1
            checks = self._check_split(socket)
            try:
                self._note_connected()
                async with running(*([self._leave(leaving)] if checks else []), name="slack split check"):
                    while True:
                        envelope = await socket.receive()
                        if envelope.type == "disconnect":
                            leaving.set()
                        elif envelope.envelope_id:
                            await self._take_envelope(socket, envelope)
            finally:
                self._sockets -= 1

    def _check_split(self, socket: SlackSocket) -> bool:
        """Note whether another program has a socket of this app, and return whether to look again soon. Slack
        also counts sockets of this gateway that broke a moment ago."""
        now = self.clock.elapsed()
        if socket.connections <= self._sockets:
            self._suspected, self._is_split = None, False
            return False
        self._suspected = now if self._suspected is None else self._suspected
        self._is_split = now - self._suspected >= _SPLIT_SECONDS
        return not self._is_split

    async def _leave(self, leaving: asyncio.Event) -> None:
        await self.clock.sleep(_SPLIT_SECONDS)
        leaving.set()

    async def _take_envelope(self, socket: SlackSocket, envelope: Envelope) -> None:
        assert self._rules is not None, "a socket is opened after the introduction"
        self._note_received()
        parsed, bot = parse(envelope.type, envelope.payload, self._rules), self._rules.bot
        if isinstance(parsed, Ignored):
            _log.debug("an event is ignored: %s", parsed.reason)
            await socket.acknowledge(envelope)
        elif not self._lanes.is_full:
            lane = _lane_of(parsed, self._agent)
            self._lanes.put(lane, lambda: self._handle(parsed, bot, socket, envelope))

    async def _handle(self, parsed: Input, bot: BotIdentity, socket: SlackSocket, envelope: Envelope) -> None:
        """Store the message of an event, then acknowledge it."""
        await self._handler.handle(parsed, bot)
        await socket.acknowledge(envelope)
        hit(Failpoint.ACKNOWLEDGED)

    async def _leave_for_good(self) -> None:
        self._drained.set()

    # -- status ---------------------------------------------------------------------------------------------

    def _note_connected(self) -> None:
        """An open socket does not mean that events come: the app may have no event subscriptions."""
        if not self._has_received:
            self.enter(ChannelPhase.STARTING, UNCONFIRMED)
            return
        self.enter(ChannelPhase.READY, "events arrive")
        if self._is_split:
            self.reason = SPLIT

    def _note_received(self) -> None:
        if not self._has_received:
            self._has_received = True
            self._note_connected()


def _lane_of(parsed: Input, agent: str) -> ChatKey:
    return parsed.chat(agent) if isinstance(parsed, Said) else parsed.chat


@asynccontextmanager
async def open_slack(gateway: Gateway, settings: SlackSettings) -> AsyncIterator[SlackChannel]:
    """Run the channel until the context is left: then no more events are taken, and sends under way finish.

    Raises `ConfigError` without a token. Later errors are not raised; the channel's status tells of them.
    """
    secrets = find_secrets(settings, gateway.home.path, gateway.environ)
    gateway.secrets.add([Secret(f"channels.slack.{key}", value) for key, value in secrets.items()])
    authorizer = Authorizer(gateway.store.pairings, {CHANNEL: settings.allowed}, gateway.clock)

    async with AsyncExitStack() as scopes:
        api = await scopes.enter_async_context(SlackApi(settings.api_url, secrets["bot_token"]))
        app = None
        if token := secrets.get("app_token"):
            app = await scopes.enter_async_context(SlackApi(settings.api_url, token))
        outlet = SlackOutlet(api, gateway.clock, settings.progress, hosts_of(gateway))
        handler = EventHandler(api, outlet, authorizer, gateway, settings.unknown)
        channel = SlackChannel(api, app, settings, handler, gateway)
        way = {} if app else {WEBHOOK_PATH: SlackWebhook(channel, secrets["signing_secret"], gateway.clock)}
        await scopes.enter_async_context(
            run_channel(gateway, SLACK, channel, outlet, authorizer, is_only=app is not None, webhooks=way)
        )
        yield channel


class _Challenge(msgspec.Struct, frozen=True):
    type: str = ""
    challenge: str = ""


class SlackWebhook:
    """The `gateway.Webhook` of the channel: the request URL for events, buttons and slash commands. Slack
    proves itself with a signature."""

    max_body: ClassVar = 1 << 20

    def __init__(self, channel: SlackChannel, secret: str, clock: Clock) -> None:
        if not secret:
            raise ValueError("a webhook needs a secret")
        self._channel = channel
        self._key = secret.encode()
        self._clock = clock

    def admit(self, headers: Mapping[bytes, bytes], caller: str) -> Admission:
        if not has_proof("slack", self._key, headers):
            raise NotEntitled("This address is for Slack only.", "Slack signs its requests.")
        return Admission(self.max_body)

    async def receive(self, headers: Mapping[bytes, bytes], body: bytes, caller: str) -> tuple[int, bytes]:
        try:
            prove("slack", self._key, headers, body, self._clock.now())
        except NotGenuine as error:
            _log.warning("a request to %s is not signed by Slack: %s", WEBHOOK_PATH, error)
            hint = "Compare channels.slack.signing_secret with the Signing Secret of the app."
            raise Unproven("The request is not signed with the signing secret.", hint) from None
        if body.startswith(b"{"):
            tried = decode_or_none(body, _Challenge)  # Slack tries the request URL
            if tried is not None and tried.type == "url_verification":
                return 200, tried.challenge.encode()
            await self._channel.take("events_api", body)
        elif (fields := dict(parse_qsl(body.decode("utf-8", "replace")))).get("payload"):
            await self._channel.take("interactive", fields["payload"].encode())
        else:
            await self._channel.take("slash_commands", msgspec.json.encode(fields))
        return 200, b""
