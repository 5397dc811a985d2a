from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from talaria.access.people import People
from talaria.core.clock import SystemClock
from talaria.core.problems import Severity
from talaria.core.settings import Examination
from talaria.core.tools import Risk
from talaria.net.host_rules import NetworkSettings
from talaria.parts import PARTS, builtin_tools
from talaria.tools.browser import browser_tools
from talaria.tools.builtin import BROWSER, NETWORK
from talaria.tools.checks import describe_reach
from talaria.tools.part import ToolScope, describe_families
from talaria.tools.settings import FAMILIES, ToolSettings
from talaria.tools.toolset import spec_size
from talaria.workspace.browser.settings import BrowserSettings


def test_the_built_in_families_are_the_ones_that_config_may_name() -> None:
    assert {source.name for source in describe_families(PARTS, ToolSettings())} == set(FAMILIES)


@pytest.mark.parametrize(
    ("allow", "private", "told"),
    [
        (1, 0, "Commands reach 1 host by name; every other one is a question."),
        (2, 1, "Commands reach 2 hosts by name; every other one is a question. 1 private address is named."),
        (
            2,
            2,
            "Commands reach 2 hosts by name; every other one is a question. 2 private addresses are named.",
        ),
    ],
)
def test_what_commands_reach_is_told_with_the_right_number(allow: int, private: int, told: str) -> None:
    hosts, addresses = ("a.example", "b.example")[:allow], ("10.0.0.1:80", "10.0.0.2:80")[:private]
    assert describe_reach(NetworkSettings("ask", allow=hosts, allow_private=addresses)) == told


def test_the_built_in_tools_say_rightly_what_they_do() -> None:
    tools = builtin_tools(ToolSettings())
    flags = {spec.name: (spec.risk, spec.idempotent, spec.read_only) for spec in tools.specs}
    reads = (Risk.NONE, True, True)
    assert flags == {
        "ask_user": reads,
        "delegate": (Risk.NONE, True, False),
        "edit_file": (Risk.FILES, False, False),
        "jobs": (Risk.NONE, False, False),
        "list_files": reads,
        "memory": (Risk.NONE, True, False),
        "process": (Risk.FILES, False, False),
        "read_file": reads,
        "recall_describe": reads,
        "recall_expand": reads,
        "recall_search": reads,
        "search_files": reads,
        "send_file": (Risk.NONE, True, False),
        "send_message": (Risk.NONE, False, False),
        "session_search": reads,
        "terminal": (Risk.FILES, False, False),
        "todo": (Risk.FILES, True, False),
        "web_fetch": reads,
        "write_file": (Risk.FILES, True, False),
    }


def test_the_built_in_parameters_are_canonical_and_the_contracts() -> None:
    contract = {
        "ask_user": {"question", "choices"},
        "delegate": {"task", "tasks", "context", "tools", "agent", "model", "background"},
        "edit_file": {"path", "old", "new"},
        "jobs": {
            *("action", "job", "text", "when", "after", "name", "timezone", "session", "to", "model"),
            *("check", "missed", "remind", "quiet"),
        },
        "list_files": {"path", "pattern"},
        "memory": {"action", "text", "old", "page"},
        "process": {"action", "id", "input", "offset"},
        "read_file": {"path", "offset", "limit", "column"},
        "recall_describe": {"id", "page"},
        "recall_expand": {"id", "page"},
        "recall_search": {"query", "limit"},
        "search_files": {"pattern", "path"},
        "send_file": {"path"},
        "send_message": {"chat", "text"},
        "session_search": {"query"},
        "terminal": {"command", "timeout", "background", "wake", "tty"},
        "todo": {"items"},
        "web_fetch": {"url"},
        "write_file": {"path", "content"},
    }
    specs = builtin_tools(ToolSettings()).specs
    assert {spec.name for spec in specs} == set(contract)
    for spec in specs:
        schema = msgspec.json.decode(spec.parameters)
        assert msgspec.json.encode(schema, order="sorted").decode() == spec.parameters
        assert set(schema["properties"]) == contract[spec.name]
        assert spec.description
        assert all(inner["description"] for inner in schema["properties"].values())


def test_a_set_built_again_has_the_same_bytes() -> None:
    one, other = (builtin_tools(ToolSettings()) for _ in range(2))
    assert one.fingerprint == other.fingerprint


async def test_doctor_says_that_commands_have_a_localhost_of_their_own(tmp_path: Path) -> None:
    assert NETWORK.findings is not None
    named = NetworkSettings(allow_private=("127.0.0.1:8080", "127.0.0.2:8080"))
    found = [finding async for finding in NETWORK.findings(Examination(tmp_path, named, {}))]
    if any("without a network" in finding.text for finding in found):
        pytest.skip("no network namespace can be made here")
    assert [finding.severity for finding in found] == [Severity.WARN, Severity.OK]
    assert "names 127.0.0.1:8080" in found[0].text


def test_the_browser_tools_are_small_and_offered_only_with_a_browser(tmp_path: Path) -> None:
    tools = browser_tools(BrowserSettings())
    assert sum(spec_size(tool.spec) for tool in tools) <= 6 << 10
    assert {
        tool.spec.name: set(msgspec.json.decode(tool.spec.parameters)["properties"]) for tool in tools
    } == {
        "browser_open": {"url", "new_tab"},
        "browser_read": {"all", "within", "depth"},
        "browser_find": {"text"},
        "browser_click": {"element", "double"},
        "browser_type": {"element", "text", "append", "submit"},
        "browser_select": {"element", "options"},
        "browser_scroll": {"direction", "element"},
        "browser_wait": {"text", "gone", "seconds"},
        "browser_back": set(),
        "browser_tabs": {"show", "close"},
        "browser_dialog": {"accept", "text"},
        "browser_upload": {"element", "path"},
        "browser_screenshot": {"whole", "save"},
    }
    with_script = browser_tools(BrowserSettings(evaluate=True))
    assert {tool.spec.name for tool in with_script} - {tool.spec.name for tool in tools} == {
        "browser_evaluate"
    }
    missing = BrowserSettings(executable=str(tmp_path / "chromium"))
    scope = ToolScope(tmp_path, {}, SystemClock(), People())
    assert BROWSER.make(scope, missing).tools() == ()


async def test_doctor_says_how_to_get_a_browser(tmp_path: Path) -> None:
    assert BROWSER.findings is not None
    named = BrowserSettings(executable=str(tmp_path / "chromium"))
    (found,) = [each async for each in BROWSER.findings(Examination(tmp_path, named, {}))]
    assert found.severity is Severity.WARN and "there is no program" in found.text
