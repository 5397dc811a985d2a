"""The checks of `talaria doctor` for the tools that read the web."""

from __future__ import annotations

from collections.abc import Iterator

from talaria.core.gateway_part import Examination
from talaria.core.installation import has_extra, install_extra
from talaria.core.problems import Problem, ok, shell, type_key, warn
from talaria.tools.search_providers import open_search
from talaria.tools.settings import SearchSettings

_EXAMPLE = '{provider = "searxng", base_url = "http://127.0.0.1:8888"}'


def examine_web(examination: Examination[SearchSettings]) -> Iterator[Problem]:
    settings = examination.settings
    if not has_extra("web"):
        text = (
            "web_fetch shows all text of a page, with its menus: a library is missing that leaves these out."
        )
        yield ok("web", text, "Install it:", install_extra("web"))
    if not settings.provider:
        text = "web_search is not offered: no search provider is set."
        fix = "SearXNG, which you run yourself, Brave and Tavily are known (docs/tools.md). For SearXNG:"
        yield ok("search", text, fix, shell("talaria", "config", "set", "search", _EXAMPLE))
    elif open_search(settings, examination.environ) is not None:
        yield ok("search", f"web_search asks {settings.provider} at {settings.address}.")
    elif examination.status is None:  # a running gateway has variables of its own
        text = f"web_search is not offered: {settings.provider} needs a key."
        name = settings.api_key_env or f"{settings.provider.upper()}_API_KEY"
        key = type_key(name)
        if not settings.api_key_env:
            key = f"{shell('talaria', 'config', 'set', 'search.api_key_env', name)} && {key}"
        yield warn("search", text, "Make one at the provider, and set it for the gateway:", key)
