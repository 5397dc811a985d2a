"""The checks of `talaria doctor` for the built-in tools: the web, skills, commands and their network.

Heavy modules are imported by the checks, because a start reads this module too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from talaria.core.errors import TalariaError
from talaria.core.gateway_part import Examination
from talaria.core.installation import has_extra, install_extra
from talaria.core.problems import Problem, ok, shell, type_key, warn
from talaria.core.setting_marks import Mark, holds_secret
from talaria.net.settings import NetworkSettings
from talaria.tools.settings import SearchSettings, ToolSettings

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


async def check_skills(examination: Examination[ToolSettings]) -> AsyncIterator[Problem]:
    """Yield what is to be said about the skills of a home. Reads every file. Nothing without skills."""
    from talaria.skills.library import SkillLibrary, SkillState  # noqa: PLC0415
    from talaria.skills.listing import list_skills  # noqa: PLC0415
    from talaria.skills.pins import FOLDER, SkillsInUse  # noqa: PLC0415

    root = examination.home / FOLDER
    library, in_use = SkillLibrary(root), SkillsInUse(root)
    standings = library.survey()
    if standings and "skills" not in examination.settings.enabled:
        text = "There are skills, but tools.enabled does not name `skills`: agents are not told of them."
        yield warn("skills", text, "Add it to the list in config.toml.")
    for each in standings:
        match each.state:
            case SkillState.BROKEN:
                yield warn("skills", f"{each.folder.name}: {each.problem.text}", each.problem.hint)
            case SkillState.NEW:
                yield warn(
                    "skills",
                    f"The skill {each.name} is new and does not count yet.",
                    "Look at it and accept it.",
                    f"talaria skills accept {each.name}",
                )
            case SkillState.CHANGED:
                yield warn(
                    "skills",
                    f"The skill {each.name} has changed. It counts as it was accepted.",
                    "See what has changed, and accept it.",
                    f"talaria skills accept {each.name}",
                )
            case SkillState.IN_USE:
                pass
    skills = in_use.get()
    for name, pin in skills.items():
        if _digest(in_use.copy_of(name)) != pin.digest:
            yield warn(
                "skills",
                f"The accepted copy of the skill {name} was changed by hand, so it is not shown to agents.",
                "Accept the skill again.",
                f"talaria skills accept {name}",
            )
    if skills:
        left = list_skills(skills)[1]
        more = f" {len(left)} of them are found by tool_search only." if left else ""
        yield ok("skills", f"{len(skills)} skill{'s' if len(skills) > 1 else ''} in use.{more}")


def _digest(folder: Path) -> str:
    from talaria.skills.skill_folder import read_skill  # noqa: PLC0415

    try:
        return read_skill(folder).digest
    except (TalariaError, OSError):
        return ""


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
