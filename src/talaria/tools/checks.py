"""The checks of `talaria doctor` for the built-in tools: the web, commands and their network.

Heavy modules are imported by the checks, because a start reads this module too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from talaria.core.installation import has_extra, install_extra
from talaria.core.problems import Problem, install_command, ok, shell, type_key, warn
from talaria.core.settings import Examination, Mark, holds_secret
from talaria.net.host_rules import NetworkSettings
from talaria.tools.settings import SearchSettings, ToolSettings
from talaria.workspace.browser.settings import BrowserSettings, find_program

_UNSET_PROGRAM = shell("talaria", "config", "set", "browser.executable", "")
_EXAMPLE = '{provider = "searxng", base_url = "http://127.0.0.1:8888"}'


async def check_web(examination: Examination[SearchSettings]) -> AsyncIterator[Problem]:
    from talaria.tools.search_providers import open_search  # noqa: PLC0415 - heavy, as below

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


async def check_browser(examination: Examination[BrowserSettings]) -> AsyncIterator[Problem]:
    program, wanted = find_program(examination.settings), examination.settings.executable
    if program is not None:
        text = f"The tools of `browser` use {program}. They are offered if tools.enabled names them."
        yield ok("browser", text)
    elif wanted:
        text = f"The browser tools are not offered: there is no program {wanted}."
        yield warn("browser", text, "Install it, or use the one of the system:", _UNSET_PROGRAM)
    else:
        text = "The browser tools are not offered: there is no Chromium on this machine."
        yield ok("browser", text, "If you want them, install it:", install_command("chromium-headless-shell"))


async def check_sandbox(examination: Examination[ToolSettings]) -> AsyncIterator[Problem]:
    from talaria.workspace.sandbox.choice import choose  # noqa: PLC0415

    choice = await choose(examination.settings.sandbox, examination.home)
    if choice.sandbox is not None and not choice.hint:
        yield ok("sandbox", choice.reason)
    else:
        yield warn("sandbox", choice.reason, choice.hint, choice.command)


async def check_network(examination: Examination[NetworkSettings]) -> AsyncIterator[Problem]:
    settings = examination.settings
    status = examination.status or {}
    if trouble := status.get("network", {}).get("trouble"):
        yield warn("network", f"The last command had no network: {trouble}", "See docs/network.md.")
    if settings.commands == "off":
        yield ok("network", 'Commands have no network (network.commands = "off").')
        return

    from talaria.core.slots import FairThreads  # noqa: PLC0415
    from talaria.workspace.network_holder import try_holder  # noqa: PLC0415

    if why := await FairThreads("talaria-doctor", lambda: 1).run("doctor", try_holder):
        yield warn("network", f"Commands run without a network: {why}", "See docs/network.md.")
        return
    for entry in settings.allow_private:
        if entry.startswith(("127.0.0.1:", "[::1]:")):
            yield warn(
                "network",
                f"network.allow_private names {entry}. Commands have a localhost of their own, and do not "
                "reach this machine's by that address.",
                "Let the service listen on 127.0.0.2 or another address of this machine, and name that one.",
            )
    yield ok("network", describe_reach(settings))


def describe_reach(settings: NetworkSettings) -> str:
    """Return in a sentence or two what commands reach. Pure."""
    hosts, private = len(settings.allow), len(settings.allow_private)
    asked = "every other one is a question" if settings.commands == "ask" else "so does every public one"
    named = (
        f" {private} private {'address is' if private == 1 else 'addresses are'} named." if private else ""
    )
    return f"Commands reach {hosts} {'host' if hosts == 1 else 'hosts'} by name; {asked}.{named}"


async def check_environment(examination: Examination[ToolSettings]) -> AsyncIterator[Problem]:
    """Warn of values that stand in config.toml. The check of the configuration reports unset variables."""
    for name, value in examination.settings.env.items():
        if holds_secret(value, (Mark.COMMAND_VALUE,)):
            yield warn(
                "tools",
                f"The value of tools.env.{name} stands in config.toml, where backups and editors find it.",
                f"Set {name} for the gateway instead, and refer to it:",
                shell("talaria", "config", "set", f"tools.env.{name}", f"${{{name}}}"),
            )
