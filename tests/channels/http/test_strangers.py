"""Requests on connections that have not passed the guard begin one by one, so that others are not held up."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping

from talaria.access.callers import AuditLog
from talaria.access.credentials import Logins, TokenChecker
from talaria.channels.http.guard import Guard
from talaria.channels.http.part import HttpSettings
from talaria.channels.http.routing import HttpApp
from talaria.channels.http.server import HttpServer, bind
from talaria.core.clock import SystemClock
from talaria.gateway import Admission
from talaria.observe.metrics import Metrics
from talaria.store.in_memory import MemoryStore

REQUEST = b"POST /hook HTTP/1.1\r\nhost: here\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Rounds:
    """A webhook that notes in which round of the event loop each request begins."""

    def __init__(self) -> None:
        self.now = 0
        self.begun: list[int] = []

    async def count(self) -> None:
        while True:
            self.now += 1
            await asyncio.sleep(0)

    def admit(self, headers: Mapping[bytes, bytes], caller: str) -> Admission:
        self.begun.append(self.now)
        return Admission(0, is_proved=False)

    async def receive(self, headers: Mapping[bytes, bytes], body: bytes, caller: str) -> tuple[int, bytes]:
        return 200, b""


async def test_one_request_of_a_stranger_begins_in_a_round_of_the_loop() -> None:
    rounds, bound, clock = Rounds(), bind(HttpSettings(port=0)), SystemClock()
    guard = Guard([], [], Logins("a token", clock), TokenChecker(MemoryStore(clock).tokens, clock))
    server = HttpServer(HttpApp({}, guard, AuditLog(clock), Metrics(), {"/hook": rounds}), bound)
    await server.start()
    counting = asyncio.create_task(rounds.count())
    clients = [socket.create_connection((bound.host, bound.port)) for _ in range(8)]
    for client in clients:
        client.sendall(REQUEST)
    answers = [await asyncio.to_thread(client.recv, 100) for client in clients]
    counting.cancel()
    for client in clients:
        client.close()
    await server.stop(1)
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    assert len(set(rounds.begun)) == len(rounds.begun) == len(clients)
