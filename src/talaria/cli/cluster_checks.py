"""Checks of `talaria doctor` for gateways that serve one database together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from talaria.channels.http.part import HTTP
from talaria.cluster.member_checks import ClusterToken, check_members, find_far_trouble, read_boot
from talaria.config.settings import Settings
from talaria.core.errors import ConfigError
from talaria.core.gateway_part import Status
from talaria.core.problems import Problem, problem, warn
from talaria.store.part import find_members
from talaria.store.settings import is_file

_NAME = "cluster"


async def check_cluster(
    settings: Settings, environ: Mapping[str, str], status: Status | None
) -> AsyncIterator[Problem]:
    """Yield nothing for a database that one gateway serves. A running gateway has variables of its own, so
    it knows better whether it has the token."""
    url, cluster = settings.store.url, settings.cluster
    if is_file(url):
        return
    members = await asyncio.to_thread(find_members, url)
    running = (status or {}).get("cluster")
    secret = cluster.find_token(environ)
    try:
        ClusterToken.of(cluster.token_env, secret)
    except ConfigError as error:
        yield problem(_NAME, error.user_text, error.hint)
    token = ClusterToken(cluster.token_env, bool(running) or bool(secret))
    for finding in check_members(members, token):
        yield finding
    if running is None and members:
        http = settings.of(HTTP)
        address = cluster.advertise_url or f"http://{http.host}:{http.port or 8765}"
        if (trouble := find_far_trouble(address, read_boot(), members)) is not None:
            yield problem(_NAME, trouble.user_text, trouble.hint)
    for text in (running or {}).get("troubles") or ():
        yield problem(_NAME, str(text))
    for member in (running or {}).get("members") or ():
        trouble = (member.get("figures") or {}).get("trouble")
        if trouble and not member.get("is_here") and member.get("state") != "gone":
            yield warn(_NAME, f"The gateway on {member.get('host')} ({member.get('url')}) says: {trouble}")
