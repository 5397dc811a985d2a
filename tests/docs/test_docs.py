"""The documentation agrees with the code: calls, keys, commands, paths and examples."""

from __future__ import annotations

import ast
import inspect
import json
import re
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import msgspec
import pytest

from talaria.access.settings import WebhookSettings
from talaria.agent.settings import NamedAgentSettings
from talaria.channels.http import cluster_api
from talaria.channels.http import routes as route_tables
from talaria.channels.http.errors import STATUS
from talaria.cli.main import VERBS
from talaria.config.load import load
from talaria.config.settings import settings_type
from talaria.core.events import EVENT_NAMES
from talaria.mcp.part import McpServer, McpSettings
from talaria.models.known import Abilities, PriceSettings
from talaria.models.parameters import DROPPED, NO_WAY, PARAMETERS
from talaria.models.settings import PRESETS, ProviderSettings
from talaria.operations.table import OPERATIONS
from talaria.parts import PARTS
from talaria.turns.slash import ALIASES, SLASH_COMMANDS

SETTINGS = settings_type(PARTS)
ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
)
HTTP_API = (ROOT / "docs" / "http-api.md").read_text()
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
COMMAND_PAGE = (ROOT / "docs" / "commands.md").read_text()
README = (ROOT / "README.md").read_text()


def section(page: str, title: str) -> str:
    """Return the text below a heading, up to the next heading of its level."""
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of every table row, without the heads."""
    for table in re.findall(r"^\|[-|]+\|\n((?:\|.*\n?)+)", text, re.MULTILINE):
        for line in table.splitlines():
            yield [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def fenced(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


# -- HTTP -------------------------------------------------------------------------------------------------


def routes() -> set[str]:
    """`GET /path` of the operations, and of the tables of routes as it is written there."""
    found = {operation.route for operation in OPERATIONS}
    for module in (route_tables, cluster_api):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(value, ast.Dict):
                        methods = [ast.literal_eval(method) for method in value.keys if method]
                        found |= {f"{method} {key.value!s}" for method in methods}
    return found


def test_every_call_is_documented_and_every_documented_call_exists() -> None:
    documented = {cells[0].strip("`") for cells in rows(section(HTTP_API, "The calls"))}
    assert len(documented) > 10
    assert documented == routes()


def test_every_error_is_documented_with_its_status() -> None:
    documented = {
        kind: int(cells[0])
        for cells in rows(section(HTTP_API, "Every call"))
        for kind in re.findall(r"`(\w+)`", cells[1])
    }
    assert documented == STATUS


def test_the_table_of_parameters_is_documented() -> None:
    text = HTTP_API.partition("\n### Parameters\n")[2].partition("\n### ")[0]
    wires = {DROPPED: "", NO_WAY: "refused"}
    assert list(rows(text)) == [
        [
            f"`{name}`",
            row.chat,
            row.session,
            row.responses,
            *(wires.get(own, f"`{own}`") for own in (row.to_responses, row.to_anthropic)),
            ", ".join(f"`{json.dumps(value)}`" for value in row.harmless),
        ]
        for name, row in PARAMETERS.items()
    ]


def test_every_event_is_documented() -> None:
    assert {cells[0].strip("`") for cells in rows(section(HTTP_API, "Events"))} == set(EVENT_NAMES.values())


# -- configuration ----------------------------------------------------------------------------------------


def keys(kind: type[msgspec.Struct], path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, hint in get_type_hints(kind).items():
        is_named = get_origin(hint) is dict
        here = (*path, name, "NAME") if is_named else (*path, name)
        inner = get_args(hint)[1] if is_named else hint
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            yield from keys(inner, here)
        else:
            yield ".".join(here)


def test_every_key_is_documented_with_its_default(tmp_path: Path) -> None:
    """A file with all documented defaults is the same as no file."""
    table = {cells[0].strip("`"): cells[2].strip("`") for cells in rows(section(CONFIGURATION, "Keys"))}
    assert set(table) == set(keys(SETTINGS))
    given = {key: default for key, default in table.items() if default not in ("not set", "none")}
    assert given.pop("providers.NAME.base_url") == f'"{ProviderSettings().base_url}"'
    given["providers.NAME.base_url"] = '"http://127.0.0.1/v1"'
    given["mcp.servers.NAME.command"] = '["server"]'
    (tmp_path / "config.toml").write_text("".join(f"{key} = {value}\n" for key, value in given.items()))
    loaded = load(tmp_path, {}, PARTS)
    assert loaded.warnings == ()
    providers, webhooks = {"NAME": ProviderSettings("http://127.0.0.1/v1")}, {"NAME": WebhookSettings()}
    agents = {"NAME": NamedAgentSettings()}
    expected = SETTINGS(providers=providers, webhooks=webhooks, agents=agents)
    mcp = McpSettings({"NAME": McpServer(("server",))})
    assert loaded.settings == msgspec.structs.replace(expected, mcp=mcp)
    parts = {
        **msgspec.structs.asdict(SETTINGS()),
        "providers.NAME": ProviderSettings(),
        "prices.NAME": PriceSettings(),
        "models.NAME": Abilities(),
    }
    assert {key for key, default in table.items() if default == "not set"} == {
        f"{part}.{name}"
        for part, settings in parts.items()
        if isinstance(settings, msgspec.Struct)
        for name, value in msgspec.structs.asdict(settings).items()
        if value is None
    }


def test_every_known_provider_is_documented() -> None:
    table = {
        cells[0].strip("`"): (cells[1].strip("`"), cells[2].partition(";")[0].strip("`"))
        for cells in rows(section(CONFIGURATION, "Known providers"))
    }
    assert table == {name: (known.base_url, known.api_key_env or "none") for name, known in PRESETS.items()}


@pytest.mark.parametrize("page", ["docs/quickstart.md", "docs/configuration.md"])
def test_examples_of_the_configuration_can_be_used(page: str, tmp_path: Path) -> None:
    examples = fenced((ROOT / page).read_text(), "toml")
    assert examples
    environ = {known.api_key_env: "a key" for known in PRESETS.values() if known.api_key_env}
    for example in examples:
        tomllib.loads(example)
        (tmp_path / "config.toml").write_text(example)
        assert load(tmp_path, environ, PARTS).warnings == ()


# -- commands ---------------------------------------------------------------------------------------------


def test_every_slash_command_is_documented() -> None:
    text = section(COMMAND_PAGE, "In a chat")
    assert dict(rows(text)) == {f"`{spec.usage}`": spec.help for spec in SLASH_COMMANDS.values()}
    for alias, name in ALIASES.items():
        assert f"`/{alias}` is another word for `/{name}`" in text


def test_every_command_of_the_program_is_documented() -> None:
    text = section(COMMAND_PAGE, "In a shell")
    assert dict(rows(text)) == {f"`talaria {name}`": help for name, help in VERBS.items()}


def dev_verbs() -> set[str]:
    cases = (ROOT / "dev").read_text().rpartition("case $verb in\n")[2]
    patterns = re.findall(r"^([a-z][a-z |-]*)\)$", cases, re.MULTILINE)
    return {verb for pattern in patterns for verb in pattern.split(" | ") if verb.isalpha()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_that_pages_print_exist(page: Path) -> None:
    text = page.read_text()
    lines = [line for block in fenced(text, "sh") for line in block.splitlines()]
    orders = "\n".join([*lines, *re.findall(r"`([^`\n]+)`", text)])
    used = re.findall(r"(?:^|&& |^\w+=\S+ )(\./dev|talaria) ([a-z]+)", orders, re.MULTILINE)
    if text == README:
        assert {"run", "setup", "chat", "ask", "backup", "test"} <= {verb for _, verb in used}
    for program, verb in used:
        assert verb in VERBS or (program == "./dev" and verb in dev_verbs()), f"{program} {verb}"
    for module in re.findall(r"python -m ([\w.]+)", "\n".join(lines)):
        assert find_spec(module) is not None, module


def test_the_help_of_dev_names_its_verbs() -> None:
    usage = (ROOT / "dev").read_text().partition("<<'TEXT'\n")[2].partition("\nTEXT\n")[0]
    assert dev_verbs() - {"help"} <= set(re.findall(r"\./dev ([a-z]+)", usage))


def test_the_cpu_of_a_turn_in_the_readme_is_the_measured_one() -> None:
    """The numbers are those of the page that the README links, in its words and to one decimal."""
    found = re.search(
        r"takes ([\d.]+) ms of CPU in a chat with 2 messages, and ([\d.]+) ms with 1,000", README
    )
    assert found is not None
    table = (ROOT / "docs" / "performance.md").read_text()
    measured = re.findall(
        r"^\| durable turn at (?:2|1,000) messages \| ([\d.]+) ms CPU \|", table, re.MULTILINE
    )
    assert [f"{float(each):.1f}" for each in measured] == [*found.groups()]


# -- paths ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        assert path.exists(), f"{page.name}: {target}"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path.read_text()), f"{page.name}: {target}"


def anchors(text: str) -> set[str]:
    """Return the names under which the headings of a page can be linked on a repository host."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_index_leads_to_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / each).resolve() for each in re.findall(r"\]\(([^)#\s]+)", index.read_text())}
    pages = {*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "how-to").glob("*.md")} - {index}
    assert pages - linked == set()


def test_the_files_that_architecture_names_exist() -> None:
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / "ARCHITECTURE.md").read_text())
    assert len(named) > 15
    assert [path for path in named if not exists(path)] == []


def exists(path: str) -> bool:
    """Look in the root, in the package, and, for a bare file name, in all of its packages."""
    source = ROOT / "src" / "talaria"
    return (ROOT / path).exists() or (source / path).exists() or ("/" not in path and any(source.rglob(path)))
