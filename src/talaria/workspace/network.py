"""The networks of sessions: one namespace for each, a proxy as the only way out, and their ends."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from talaria.core.errors import TalariaError
from talaria.core.ids import SessionId
from talaria.core.slots import FairThreads
from talaria.core.tasks import stop
from talaria.net.host_rules import AskHost, NetworkSettings
from talaria.observe.metrics import NetworkReading
from talaria.workspace.places import NETWORK_FOLDER, SessionPlaces, make_private, session_folder
from talaria.workspace.sandbox.command import NetworkAccess, Sandbox, SandboxError, command_user

if TYPE_CHECKING:
    from talaria.net.host_rules import NetworkGate
    from talaria.net.proxy import CommandProxy, ProxyListener
    from talaria.workspace.network_holder import NetworkHolder
    from talaria.workspace.sandbox.choice import Proof

_log = logging.getLogger("talaria.workspace.network")
_IDLE_SECONDS = 120.0  # after the last command, until the namespace of a session is given up
_LOOK_SECONDS = 30.0
_MOST_KEPT = 32  # networks, of which those that no command uses are given up early: each has a process
_STARTING_SECONDS = 5.0  # in which a command that has asked for the network joins it
_LOCKS = 64  # shared by sessions, so that their number is bounded
_MOST_TOLD = 4  # refusals in one note
_LOCAL = "localhost,127.0.0.1,::1"


@dataclass(slots=True)
class _Network:
    holder: NetworkHolder
    listener: ProxyListener
    used_at: float


class SessionNetworks:
    """The networks that commands of sessions share, as `Belongings`. Nothing is opened before a command runs.

    A network is given up after a while without commands, or when many are kept, and made again when a command
    needs it. Background processes keep theirs over a restart of the gateway.
    """

    def __init__(
        self,
        home: Path,
        settings: Callable[[], NetworkSettings],
        *,
        threads: FairThreads | None = None,
        ask: AskHost | None = None,
        count: Callable[[str, int, int], None] = lambda outcome, sent, received: None,
        on_reach: Callable[[SessionId], Awaitable[None]] | None = None,
        folder: str = NETWORK_FOLDER,
        idle_seconds: float = _IDLE_SECONDS,
        most_kept: int = _MOST_KEPT,
    ) -> None:
        """`home` is the gateway's. `ask` asks about unlisted hosts; without it they are refused. `count` is
        called with the outcome and the bytes of every connection that has ended. `on_reach` is awaited before
        a host can send anything to a session. `folder` is the folder of a network in its session's folder."""
        self._home = Path(os.path.realpath(home))
        self._settings = settings
        self._threads = threads or FairThreads("talaria-network", lambda: 4)
        self._count = count
        self._on_reach = on_reach
        self._folder = folder
        self._idle_seconds = idle_seconds
        self._most_kept = most_kept
        self._ask = ask
        self._gate: NetworkGate | None = None
        self._proxy: CommandProxy | None = None
        self._networks: dict[SessionId, _Network] = {}
        self._locks = tuple(asyncio.Lock() for _ in range(_LOCKS))
        self._sweeping: asyncio.Task[None] | None = None
        self._proving: asyncio.Task[Proof] | None = None
        self._trouble = ""

    async def access(
        self, places: SessionPlaces, sandbox: Sandbox, *, is_background: bool = False
    ) -> NetworkAccess | None:
        """Return the session's network for one command, which is started right after.

        None if commands have no network, if this sandbox cannot join one, or if it cannot be made: `reading`
        says why then. The first network of the process is used only after the canary has tried to get out
        of a sandbox that has it.
        """
        if self._settings().commands == "off" or sandbox.name != "bubblewrap":
            return None
        try:
            if places.session_id not in self._networks:
                await self._make_room()
            async with self._lock(places.session_id):
                network = await self._get(places)
            access = NetworkAccess(network.holder.namespaces, network.holder.users, _environ(is_background))
            await self._prove(sandbox, access)
            network.used_at = asyncio.get_running_loop().time()
        except (TalariaError, OSError) as error:
            if (why := str(error)) != self._trouble:
                _log.warning("commands run without a network: %s", why)
            self._trouble = why
            return None
        self._trouble = ""
        return access

    async def resume(self) -> None:
        """Listen again for sessions whose processes have outlived the last gateway."""
        for record in await self._threads.run(self, _find_records, self._home, self._folder):
            session_id = SessionId(unquote(record.parent.parent.name))
            async with self._lock(session_id):
                await self._find(session_id, record.parent)

    async def sweep(self) -> None:
        """Give up the networks that no command has used for a while."""
        now = asyncio.get_running_loop().time()
        for session_id, network in tuple(self._networks.items()):
            if now - network.used_at >= self._idle_seconds:
                async with self._lock(session_id):
                    await self._give_up(session_id)

    async def _make_room(self) -> None:
        """Give up the networks that were unused for longest, until there is room for one more. A command that
        is about to start keeps its network: nothing is given up within the first seconds after its use."""
        now = asyncio.get_running_loop().time()
        oldest = sorted(self._networks.items(), key=lambda item: item[1].used_at)
        for session_id, network in oldest[: max(0, len(oldest) - self._most_kept + 1)]:
            if now - network.used_at >= min(_STARTING_SECONDS, self._idle_seconds):
                async with self._lock(session_id):
                    await self._give_up(session_id)

    def note(self, session_id: SessionId) -> str:
        """Return in a few sentences what the proxy refused the session's commands since the last call, and
        why they have no network, if they have none."""
        if session_id not in self._networks:
            return f"There is no network: {self._trouble}" if self._trouble else ""
        refusals = self.take_refusals(session_id)
        more = f" {len(refusals) - _MOST_TOLD} more hosts were refused." if len(refusals) > _MOST_TOLD else ""
        return " ".join(f"Network: {each}" for each in refusals[:_MOST_TOLD]) + more

    def take_refusals(self, session_id: SessionId) -> tuple[str, ...]:
        """Return what the proxy refused since the last call, each a sentence."""
        network = self._networks.get(session_id)
        return () if network is None else network.listener.take_refusals()

    def reading(self) -> NetworkReading:
        connections = self._proxy.open_connections.total() if self._proxy is not None else 0
        return NetworkReading(len(self._networks), connections, self._trouble)

    async def end(self, session_id: SessionId) -> None:
        """End the session's namespace, and every connection out of it."""
        folder = session_folder(self._home, session_id) / self._folder
        if session_id not in self._networks and not folder.exists():
            return
        from talaria.workspace.network_holder import find_holder  # noqa: PLC0415 - heavy

        async with self._lock(session_id):
            network = self._networks.pop(session_id, None)
            if network is not None:
                await network.listener.close()
                await self._threads.run(session_id, network.holder.end)
            elif (holder := await self._threads.run(session_id, find_holder, folder)) is not None:
                await self._threads.run(session_id, holder.end)

    async def close(self) -> None:
        """Let go of all networks. Those that no command uses end; the others end by themselves later."""
        waiting = [task for task in (self._sweeping, self._proving) if task is not None]
        await stop(*waiting)
        for session_id in tuple(self._networks):
            async with self._lock(session_id):
                await self._give_up(session_id, is_closing=True)
        if self._proxy is not None:
            self._proxy.dialer.close()
            self._proxy = None
        if self._gate is not None:
            self._gate.close()

    async def _prove(self, sandbox: Sandbox, access: NetworkAccess) -> None:
        """Raise `SandboxError` if the canary gets out of the sandbox with this network. Proves once."""
        from talaria.workspace.sandbox.choice import prove  # noqa: PLC0415 - heavy

        if self._proving is None or self._proving.cancelled():
            work = prove(sandbox, self._home, access)
            self._proving = asyncio.create_task(work, name="prove the network")
        proof = await asyncio.shield(self._proving)
        if not proof.holds:
            text = f"The sandbox does not hold with a network: {proof.sentence()}."
            raise SandboxError(text, "Run `talaria doctor`.")

    def _lock(self, session_id: SessionId) -> asyncio.Lock:
        return self._locks[hash(session_id) % len(self._locks)]

    async def _get(self, places: SessionPlaces) -> _Network:
        """Return the session's network. Creates it if there is none, or if it has died or lost its files."""
        from talaria.workspace.network_holder import start_holder  # noqa: PLC0415 - heavy

        network = self._networks.get(places.session_id)
        if network is not None and network.holder.is_usable:
            return network
        if network is not None:
            del self._networks[places.session_id]
            await network.listener.close()
            await self._threads.run(places.session_id, network.holder.end)
        folder = places.session / self._folder
        await self._threads.run(places.session_id, _make_folder, folder)
        found = await self._find(places.session_id, folder)
        if found is not None:
            return found
        user = command_user(places.folder)
        session_id, hidden = places.session_id, (self._home,)
        holder = await self._threads.run(session_id, start_holder, folder, user, hidden)
        try:
            return await self._listen(places.session_id, folder, holder)
        except BaseException:
            holder.end()
            raise

    async def _find(self, session_id: SessionId, folder: Path) -> _Network | None:
        from talaria.workspace.network_holder import find_holder  # noqa: PLC0415 - heavy

        holder = await self._threads.run(session_id, find_holder, folder)
        return await self._listen(session_id, folder, holder) if holder is not None else None

    async def _listen(self, session_id: SessionId, folder: Path, holder: NetworkHolder) -> _Network:
        listener = await self._open_proxy().listen(session_id, folder)
        network = _Network(holder, listener, asyncio.get_running_loop().time())
        self._networks[session_id] = network
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.create_task(self._watch(), name="networks of sessions")
        return network

    def _open_proxy(self) -> CommandProxy:
        from talaria.net.dialer import Dialer  # noqa: PLC0415 - heavy
        from talaria.net.host_rules import NetworkGate  # noqa: PLC0415
        from talaria.net.proxy import CommandProxy  # noqa: PLC0415

        if self._proxy is None:
            self._gate = NetworkGate(self._settings, self._ask)
            self._proxy = CommandProxy(
                self._gate,
                Dialer(lambda: self._settings().private_endpoints()),
                checks_names=lambda: self._settings().commands != "open",
                on_reach=self._on_reach,
                on_end=lambda told: self._count(told.outcome, told.sent, told.received),
            )
        return self._proxy

    async def _watch(self) -> None:
        """Give up unused networks. Ends when there is none left."""
        while self._networks:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.sweep()

    async def _give_up(self, session_id: SessionId, *, is_closing: bool = False) -> None:
        """End a network unless a command uses it. With `is_closing` let go of it in any case."""
        network = self._networks.get(session_id)
        if network is None:
            return
        is_used = network.holder.is_alive and network.holder.is_used()
        if is_used and not is_closing:
            network.used_at = asyncio.get_running_loop().time()
            return
        del self._networks[session_id]
        await network.listener.close()
        if is_used:
            network.holder.forget()
        else:
            await self._threads.run(session_id, network.holder.end)


def _find_records(home: Path, folder: str) -> list[Path]:
    return [*home.glob(f"sessions/*/{folder}/holder.json")]


def end_networks(home: Path) -> None:
    """End the networks of all sessions. No gateway and no command may run on the home. Blocks."""
    from talaria.workspace.network_holder import find_holder  # noqa: PLC0415 - heavy

    for record in _find_records(home.resolve(), "*"):
        if (holder := find_holder(record.parent)) is not None:
            holder.end()


def _make_folder(folder: Path) -> None:
    make_private(folder)
    folder.chmod(0o711)  # the folder above is closed; commands' users pass through a descriptor


def _environ(is_background: bool) -> dict[str, str]:
    from talaria.workspace.network_holder import BACKGROUND_PORT, PROXY_PORT  # noqa: PLC0415 - heavy

    proxy = f"http://127.0.0.1:{BACKGROUND_PORT if is_background else PROXY_PORT}"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    variables = {name: proxy for upper in names for name in (upper, upper.lower())}
    return variables | {"NO_PROXY": _LOCAL, "no_proxy": _LOCAL, "NODE_USE_ENV_PROXY": "1"}
