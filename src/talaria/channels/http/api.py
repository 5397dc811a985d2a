"""The HTTP API: its table of routes behind the guard."""

from __future__ import annotations

from starlette.routing import Route, Router
from starlette.types import ASGIApp

from talaria.channels.http.files import FileRoutes
from talaria.channels.http.guard import Guard
from talaria.channels.http.login import LoginRoutes
from talaria.channels.http.openai import OpenAIRoutes
from talaria.channels.http.pairings import PairingRoutes
from talaria.channels.http.parts import HttpParts
from talaria.channels.http.resources import Endpoint, Resource, not_found, not_yet, webhook_endpoint
from talaria.channels.http.sessions import SessionRoutes
from talaria.channels.http.status import StatusRoutes
from talaria.channels.http.turns import TurnDesk, TurnRoutes
from talaria.channels.web.pages import PageRoutes

__all__ = ["HttpParts", "create_app"]

_LATER = (
    "/v1/responses",
    "/api/approvals",
    "/api/approvals/{id}",
)


def create_app(parts: HttpParts) -> ASGIApp:
    """The whole API as one ASGI app. Routes are tried in order: the busy ones come first."""
    desk = TurnDesk(parts)
    sessions, turns = SessionRoutes(parts, desk), TurnRoutes(parts, desk)
    openai, status = OpenAIRoutes(parts, desk), StatusRoutes(parts)
    pairings, files, login = PairingRoutes(parts), FileRoutes(parts), LoginRoutes(parts.logins, parts.store)
    pages = PageRoutes()
    table: dict[str, dict[str, Endpoint]] = {
        "/api/sessions/{x}/messages": {"POST": sessions.send},
        "/v1/chat/completions": {"POST": openai.complete},
        "/api/turns/{id}": {"GET": turns.show},
        "/api/turns/{id}/events": {"GET": turns.events},
        "/api/turns/{id}/cancel": {"POST": turns.cancel},
        "/api/sessions": {"GET": sessions.list},
        "/api/sessions/{x}": {"GET": sessions.show},
        "/api/sessions/{x}/entries": {"GET": sessions.entries},
        "/api/sessions/{x}/end": {"POST": sessions.end},
        "/api/files": {"POST": files.upload},
        "/api/files/{id}": {"GET": files.show},
        "/v1/models": {"GET": openai.models},
        "/api/login": {"POST": login.log_in},
        "/api/login/codes": {"POST": login.new_code},
        "/api/logout": {"POST": login.log_out},
        "/api/pairings": {"GET": pairings.list},
        "/api/pairings/approve": {"POST": pairings.approve},
        "/api/pairings/revoke": {"POST": pairings.revoke},
        "/api/pairings/invite": {"POST": pairings.invite},
        "/api/pool": {"GET": status.pool},
        "/api/status": {"GET": status.status},
        "/api/backup": {"POST": status.backup},
        "/healthz": {"GET": status.healthz},
        "/readyz": {"GET": status.readyz},
        "/metrics": {"GET": status.metrics},
        "/": {"GET": pages.index},
        "/assets/{name}": {"GET": pages.asset},
    }
    metrics = parts.metrics
    routes = [Route(path, Resource(path, endpoints, metrics)) for path, endpoints in table.items()]
    routes += [Route(path, Resource(path, {}, metrics, otherwise=not_yet)) for path in _LATER]
    router = Router(
        routes, redirect_slashes=False, default=Resource("unknown", {}, metrics, otherwise=not_found)
    )
    hooks = {
        path: Resource(path, {"POST": webhook_endpoint(hook)}, metrics) for path, hook in parts.hooks.items()
    }
    return Guard(router, parts.hosts, parts.logins, metrics, hooks)
