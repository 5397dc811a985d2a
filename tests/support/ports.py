"""Ports for programs that cannot choose one themselves, or that come back to the same one."""

from __future__ import annotations

import socket


def reserve_port() -> socket.socket:
    """Return a socket that keeps a free port of loopback until it is closed. It does not listen, so a server
    that sets SO_REUSEADDR can, and nobody else is given the port meanwhile."""
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind(("127.0.0.1", 0))
    return place


def port_of(place: socket.socket) -> int:
    return int(place.getsockname()[1])
