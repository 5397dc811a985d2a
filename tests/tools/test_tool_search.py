"""Many tools behind a search: which ones are shown, how they are found, and what a wrapped call is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from talaria.core.messages import ToolCall
from talaria.core.tools import MOST_WRAPPED, ToolSpec, inner_call
from talaria.parts import builtin_tools
from talaria.skills.tool import SKILL_SPEC
from talaria.tools.function import FunctionTool, parameters, text
from talaria.tools.settings import FAMILIES, USUAL_FAMILIES, ToolSettings
from talaria.tools.tool import Findable
from talaria.tools.tool_search import (
    SEARCH_BYTES,
    ToolFinder,
    ToolUsage,
    choose_shown,
    make_offer,
    search_tools,
)
from talaria.tools.toolset import ToolFamily, ToolSet, spec_size
from talaria.tools.web import _SEARCH
from tools.conftest import bound, tool

# -- a wrapped call ------------------------------------------------------------------------------------------


def wrapped(arguments: str) -> tuple[str, str]:
    inner = inner_call(ToolCall("c1", "tool_call", arguments))
    assert inner.id == "c1"
    return inner.name, inner.arguments


@pytest.mark.parametrize(
    ("arguments", "inner"),
    [
        ('{"name":"look","arguments":{"a": 1.0}}', '{"a": 1.0}'),
        ('{"arguments": {"a":"ü\\u0041"}, "name": "look"}', '{"a":"ü\\u0041"}'),
        ('{"name":"look"}', "{}"),
        ('{"name":"look","arguments":null}', "{}"),
        ('{"name":"look","arguments":"{\\"a\\":1}"}', '{"a":1}'),
        ('{"name":"look","arguments":[1]}', "[1]"),
        ('{"name":"tool_call","name":"look"}', "{}"),
    ],
)
def test_the_inner_call_has_the_arguments_as_the_model_wrote_them(arguments: str, inner: str) -> None:
    assert wrapped(arguments) == ("look", inner)


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "nonsense",
        "[]",
        '{"arguments":{}}',
        '{"name":1}',
        '{"name":""}',
        '{"name":"two words"}',
        '{"name":"' + "x" * 65 + '"}',
        '{"name":"tool_call","arguments":{"name":"look"}}',
        '{"name":"look","arguments":"' + "x" * MOST_WRAPPED + '"}',
        '{"name":"look","arguments":' + "[" * 100_000,
        '{"name":"look\ud800"}',
    ],
    ids=lambda text: text[:20],
)
def test_a_call_that_names_no_tool_stays_what_it_is(arguments: str) -> None:
    assert wrapped(arguments) == ("tool_call", arguments)


async def test_a_call_that_stays_wrapped_fails_with_what_is_wrong(tmp_path: Path) -> None:
    tools = ToolSet([tool("look")])
    here = bound(tools.with_tools(search_tools(ToolFinder(tools), tools, tools)), tmp_path)
    missing = await here.run(ToolCall("c1", "tool_call", "{}"))
    assert missing.text == "Error: The arguments of tool_call are wrong: arguments.name is missing."
    nested = await here.run(ToolCall("c1", "tool_call", '{"name":"tool_call"}'))
    assert nested.text.startswith("Error: tool_call runs another tool, named as tool_search names it")


# -- what is shown -------------------------------------------------------------------------------------------


def family(origin: str, size: int) -> ToolFamily:
    return ToolFamily(origin, (f"{origin}_tool",), size, is_builtin=origin in FAMILIES)


BUILTIN = [family("files", 3000), family("web", 1000)]
ROOM = 4000 + SEARCH_BYTES


@pytest.mark.parametrize(
    ("others", "most", "used", "shown"),
    [
        ({"mcp:a": 1000, "mcp:b": 5000}, 10_000, [], {"mcp:a", "mcp:b"}),  # all fit
        ({"mcp:a": 1000, "mcp:b": 5000}, 9_999, [], {"mcp:a"}),
        ({"mcp:a": 2000, "mcp:b": 2000}, ROOM + 2000, [], {"mcp:a"}),  # a fixed order without use
        ({"mcp:a": 2000, "mcp:b": 2000}, ROOM + 2000, ["mcp:b"], {"mcp:b"}),
        ({"mcp:a": 2000, "mcp:b": 2000}, ROOM + 2000, ["mcp:b"] * 2 + ["mcp:a"] * 3, {"mcp:a"}),
        ({"mcp:a": 2000, "mcp:b": 300_000}, ROOM + 2000, ["mcp:b"], {"mcp:a"}),  # it would not fit anyway
        ({"mcp:a": 9000}, ROOM, ["mcp:a"], set()),  # built-in families go last behind the search
    ],
)
def test_the_least_used_families_go_behind_the_search(
    others: dict[str, int], most: int, used: list[str], shown: set[str]
) -> None:
    families = [*BUILTIN, *(family(origin, size) for origin, size in others.items())]
    usage = ToolUsage()
    for origin in used:
        usage.add(origin)
    assert choose_shown(families, most, usage.rank) == {"files", "web", *shown}
    assert choose_shown(families[::-1], most, usage.rank) == {"files", "web", *shown}


def test_built_in_families_go_behind_the_search_by_a_fixed_order_until_they_are_used() -> None:
    usage, most = ToolUsage(), 30_000 + SEARCH_BYTES
    families = [family("web", 10_000), family("files", 30_000), family("mcp:a", 1)]
    assert choose_shown(families, most, usage.rank) == {"files"}
    usage.add("web")
    assert choose_shown(families, most, usage.rank) == {"web", "mcp:a"}
    assert choose_shown(families, 0, usage.rank) == set()


def test_all_built_in_tools_take_at_most_13_000_bytes_of_a_request() -> None:
    tools = builtin_tools(ToolSettings())
    rare = [spec for spec in (_SEARCH, SKILL_SPEC) if spec.name not in tools]
    tools = tools.with_tools([FunctionTool(spec, tool("x").handler) for spec in rare])
    tools = ToolSet(tools, {name: tools.origin(name) or "skills" for name in tools.names})
    assert {each.origin for each in tools.families()} == {*USUAL_FAMILIES}
    listed = [
        {
            "type": "function",
            "function": {
                "name": spec.name,
                "description": spec.description,
                "parameters": json.loads(spec.parameters),
            },
        }
        for spec in tools.specs
    ]
    size = len(json.dumps(listed, separators=(",", ":"), ensure_ascii=False).encode())
    assert size <= 13_000
    assert abs(sum(each.size for each in tools.families()) - size) <= 2
    assert choose_shown(tools.families(), ToolSettings().search_above, lambda origin: 0) == {*USUAL_FAMILIES}


def test_the_tools_for_searching_fit_in_their_room() -> None:
    many = ToolSet(
        [tool(f"tool{n}") for n in range(50)],
        {f"tool{n}": f"mcp:a-server-with-a-long-name-{n}" for n in range(50)},
    )
    offer = make_offer(many, frozenset())
    assert offer.direct.names == ("tool_call", "tool_search")
    assert sum(map(spec_size, offer.direct.specs)) <= SEARCH_BYTES
    assert [name for name, _ in offer.searched] == sorted(many.names)


def test_the_fingerprint_of_an_offer_is_of_all_that_can_be_found() -> None:
    def offer(description: str, shown: frozenset[str] = frozenset()) -> str:
        return make_offer(ToolSet([tool("one", description)], {"one": "mcp:a"}), shown).fingerprint

    assert offer("a") == offer("a")
    assert len({offer("a"), offer("b"), offer("a", frozenset({"mcp:a"}))}) == 3


# -- usage ---------------------------------------------------------------------------------------------------


def test_usage_is_saved_when_a_count_has_doubled_and_is_read_again(tmp_path: Path) -> None:
    usage = ToolUsage(tmp_path / "usage.json")
    saves = []
    for n in range(1, 101):
        if usage.add("mcp:a"):
            saves.append(n)
            usage.save()
    assert saves == [1, 2, 4, 8, 16, 32, 64]
    assert ToolUsage(tmp_path / "usage.json").rank("mcp:a") == usage.rank("mcp:a") == 7
    assert [path.name for path in tmp_path.iterdir()] == ["usage.json"]


def test_old_calls_are_forgotten(tmp_path: Path) -> None:
    usage = ToolUsage()
    for origin in ["mcp:old"] * 3000 + ["mcp:new"] * 30_000:
        usage.add(origin)
    assert usage.rank("mcp:new") > usage.rank("mcp:old") + 5


def test_a_damaged_file_of_counts_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "usage.json"
    path.write_bytes(b'{"mcp:a": "many"')
    usage = ToolUsage(path)
    assert usage.rank("mcp:a") == 0
    path.unlink()
    path.mkdir()
    usage.save()
    assert [each.name for each in tmp_path.iterdir()] == ["usage.json"]


# -- the search ----------------------------------------------------------------------------------------------


def described(name: str, description: str, *named: str) -> FunctionTool:
    schema = parameters({each: text(f"The {each}.") for each in named})
    return FunctionTool(ToolSpec(name, description, schema), tool(name).handler)


GIT = [
    described("mcp_git_log", "Shows the commits of a repository.", "max_count"),
    described("mcp_git_diff", "Shows what has changed in the working tree.", "target"),
    described("mcp_git_createBranch", "Makes a branch.", "name"),
]
MAIL = [
    described("mcp_mail_send", "Sends a message to somebody by e-mail.", "to", "body"),
    described("mcp_mail_list", "Lists the newest messages of a mailbox.", "folder"),
]
SKILL = Findable("pdf-forms", "Fills in the forms of PDF files.", "skill")
ALL = ToolSet(
    [*GIT, *MAIL, tool("skill")],
    {each.spec.name: "mcp:git" for each in GIT} | {each.spec.name: "mcp:mail" for each in MAIL},
    [SKILL],
)


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("commits", "mcp_git_log"),
        ("show me the last commit", "mcp_git_log"),
        ("create a new branch", "mcp_git_createBranch"),
        ("MCP_GIT_CREATEBRANCH", "mcp_git_createBranch"),
        ("changes", "mcp_git_diff"),
        ("send e-mail", "mcp_mail_send"),
        ("mail", "mcp_mail_list"),
        ("mcp_mail_send", "mcp_mail_send"),
        ("fill in a form", "pdf-forms"),
    ],
)
def test_tools_are_found_by_words_of_their_names_and_descriptions(query: str, first: str) -> None:
    assert ToolFinder(ALL).find(query, ALL.names)[0].name == first


async def search(tools: ToolSet, found: ToolSet, query: str, folder: Path) -> str:
    here = bound(tools.with_tools(search_tools(ToolFinder(ALL), tools, found)), folder)
    result = await here.run(ToolCall("c1", "tool_search", json.dumps({"query": query})))
    assert result.outcome == "ok", result.text
    return result.text


async def test_a_search_returns_names_descriptions_and_schemas(tmp_path: Path) -> None:
    told = await search(ALL, ALL.only([each.spec.name for each in GIT]), "commits", tmp_path)
    assert told == (
        "mcp_git_log: Shows the commits of a repository.\n"
        f"parameters: {GIT[0].spec.parameters}\n\n"
        "Run one with tool_call(name, arguments)."
    )
    assert await search(ALL, ALL.only(()), "fill forms", tmp_path) == (
        "pdf-forms: Fills in the forms of PDF files.\nuse: skill(name='pdf-forms')"
    )


async def test_a_search_finds_only_what_the_session_may_use(tmp_path: Path) -> None:
    mail = ALL.only([each.spec.name for each in MAIL])
    for query in ("commits", "mcp_git_log", "fill forms"):
        told = await search(mail, mail, query, tmp_path)
        assert told == "Nothing fits these words. There are: mcp:mail (2 tools)."


async def test_a_result_is_bounded_and_its_first_tool_is_whole(tmp_path: Path) -> None:
    large = [described(f"large_{n}", "Is large. " * 200, *(f"key_{k}" for k in range(150))) for n in range(9)]
    tools = ToolSet(large)
    here = bound(tools.with_tools(search_tools(ToolFinder(tools), tools, tools)), tmp_path)
    told = (await here.run(ToolCall("c1", "tool_search", '{"query":"large"}'))).text
    assert told.count("parameters:") == 1
    assert told.startswith("large_0: Is large.")
    assert large[0].spec.parameters in told
    assert "\n\nAlso: large_1, large_2, large_3, large_4, large_5, large_6, large_7. Search for" in told
    assert len(told) < 16 << 10


def test_a_search_among_thousands_of_tools_is_of_all_of_them() -> None:
    words = ["alpha", "beta", "gamma", "delta", "open", "close", "read", "write", "make", "list"]
    tools = ToolSet(
        described(f"t{n}_{words[n % 10]}", f"{words[n % 7]} {words[n % 3]} thing number{n}")
        for n in range(2_000)
    )
    finder = ToolFinder(tools)
    assert finder.find("number777", tools.names)[0].name.startswith("t777_")
    best = finder.find("list " + "thing " * 1000, frozenset(tools.names))
    assert len(best) == 8
    assert all(each.name.endswith("_list") for each in best)
