"""The routes of the HTTP API: the handler, the roles and the description of each call."""

from __future__ import annotations

from talaria.access.audit import AuditLog
from talaria.access.logins import Logins
from talaria.access.tokens import TokenChecker
from talaria.channels.http.auth import Guard, LoginApi
from talaria.channels.http.callers import RouteAccess
from talaria.channels.http.feed_api import FeedApi
from talaria.channels.http.file_api import FileApi
from talaria.channels.http.openai_api import OpenAiApi
from talaria.channels.http.operator_api import OperatorApi
from talaria.channels.http.response import StreamTiming
from talaria.channels.http.responses_api import ResponseApi
from talaria.channels.http.routing import ApiRoute, HttpApp
from talaria.channels.http.session_api import SessionApi
from talaria.channels.http.settings import HttpSettings
from talaria.channels.http.turn_api import TurnApi
from talaria.channels.web.pages import PageFiles
from talaria.gateway import Gateway


def create_app(
    gateway: Gateway, settings: HttpSettings, logins: Logins, hosts: frozenset[str], timing: StreamTiming
) -> HttpApp:
    """Return the API of a gateway. `hosts` are the exact Host headers that are let in.

    Patterns are tried in this order, so the busy ones come first.
    """
    turns, openai = TurnApi(gateway, settings, timing), OpenAiApi(gateway, settings, timing)
    sessions, files = SessionApi(gateway), FileApi(gateway, settings)
    login, pages = LoginApi(logins, gateway.store), PageFiles()
    open_, all_ = RouteAccess.OPEN, RouteAccess.ALL
    chat, operate = RouteAccess.CHAT, RouteAccess.OPERATE
    routes: dict[str, dict[str, ApiRoute]] = {
        "/api/sessions/{x}/messages": {"POST": ApiRoute(turns.send, chat, "message.send")},
        "/v1/chat/completions": {"POST": ApiRoute(openai.complete, chat, "message.send")},
        **_response_routes(ResponseApi(gateway, settings, timing)),
        "/api/turns": {"GET": ApiRoute(turns.list, all_)},
        "/api/events": {"GET": ApiRoute(FeedApi(gateway, timing).events, all_)},
        "/api/turns/{id}": {"GET": ApiRoute(turns.show, all_, "turn.read")},
        "/api/turns/{id}/events": {"GET": ApiRoute(turns.events, all_, "turn.read")},
        "/api/turns/{id}/cancel": {"POST": ApiRoute(turns.cancel, chat, "turn.cancel")},
        "/api/sessions": {"GET": ApiRoute(sessions.list, all_)},
        "/api/sessions/{x}": {
            "GET": ApiRoute(sessions.show, all_, "session.read"),
            "DELETE": ApiRoute(sessions.delete, chat, "session.delete"),
        },
        "/api/sessions/{x}/entries": {"GET": ApiRoute(sessions.entries, all_, "session.read")},
        "/api/sessions/{x}/files": {"GET": ApiRoute(sessions.files, all_, "session.read")},
        "/api/sessions/{x}/end": {"POST": ApiRoute(sessions.end, chat, "session.end")},
        "/api/files": {"POST": ApiRoute(files.upload, chat)},
        "/api/files/{id}": {"GET": ApiRoute(files.show, all_, "file.read")},
        "/v1/models": {"GET": ApiRoute(openai.models, all_)},
        "/v1/models/{model}": {"GET": ApiRoute(openai.model, all_)},
        "/api/login": {"POST": ApiRoute(login.log_in, open_, "login")},
        "/api/login/codes": {"POST": ApiRoute(login.new_code, operate, "login.code")},
        "/api/logout": {"POST": ApiRoute(login.log_out, all_, "logout")},
        **_operator_routes(OperatorApi(gateway)),
        "/": {"GET": ApiRoute(pages.index, open_)},
        "/assets/{name}": {"GET": ApiRoute(pages.asset, open_)},
    }
    guard = Guard(hosts, settings.origins, logins, TokenChecker(gateway.store.tokens, gateway.clock))
    return HttpApp(routes, guard, AuditLog(gateway.clock), gateway.metrics, gateway.webhooks)


def _operator_routes(operator: OperatorApi) -> dict[str, dict[str, ApiRoute]]:
    open_, read, operate = RouteAccess.OPEN, RouteAccess.READ, RouteAccess.OPERATE
    return {
        "/api/pairings": {"GET": ApiRoute(operator.pairings, operate)},
        "/api/pairings/approve": {"POST": ApiRoute(operator.approve, operate, "pair.approve")},
        "/api/pairings/revoke": {"POST": ApiRoute(operator.revoke, operate, "pair.revoke")},
        "/api/pairings/invite": {"POST": ApiRoute(operator.invite, operate, "pair.invite")},
        "/api/tokens": {
            "GET": ApiRoute(operator.tokens, operate),
            "POST": ApiRoute(operator.add_token, operate, "token.add"),
        },
        "/api/tokens/revoke": {"POST": ApiRoute(operator.revoke_token, operate, "token.revoke")},
        "/api/pool": {"GET": ApiRoute(operator.pool, read)},
        "/api/status": {"GET": ApiRoute(operator.status, read)},
        "/api/models/{name}/fetch": {"POST": ApiRoute(operator.fetch_model, operate, "model.fetch")},
        "/api/backup": {"POST": ApiRoute(operator.backup, operate, "backup")},
        "/healthz": {"GET": ApiRoute(operator.healthz, open_)},
        "/readyz": {"GET": ApiRoute(operator.readyz, open_)},
        "/metrics": {"GET": ApiRoute(operator.metrics, read)},
    }


def _response_routes(responses: ResponseApi) -> dict[str, dict[str, ApiRoute]]:
    all_, chat = RouteAccess.ALL, RouteAccess.CHAT
    return {
        "/v1/responses": {"POST": ApiRoute(responses.create, chat, "message.send")},
        "/v1/responses/{id}": {
            "GET": ApiRoute(responses.show, all_, "response.read"),
            "DELETE": ApiRoute(responses.delete, chat, "response.delete"),
        },
        "/v1/responses/{id}/cancel": {"POST": ApiRoute(responses.cancel, chat, "response.cancel")},
        "/v1/responses/{id}/input_items": {"GET": ApiRoute(responses.list_input, all_, "response.read")},
    }
