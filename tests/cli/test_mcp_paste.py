"""Pasted settings of MCP servers: what READMEs say, and where the keys in them go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from talaria.cli.mcp_keys import is_placeholder, looks_secret, move_keys
from talaria.cli.mcp_paste import PastedServer, parse_paste
from talaria.core.errors import BadRequest

KEY = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
CLAUDE = '{"mcpServers": {"github": {"command": "npx", "args": ["-y", "server-github"]}}}'
WANTED = PastedServer("github", ("npx", "-y", "server-github"))


@pytest.mark.parametrize(
    "text",
    [
        CLAUDE,
        f"```json\n{CLAUDE}\n```",
        CLAUDE.replace("mcpServers", "servers"),
        CLAUDE.replace("mcpServers", "mcp.servers"),
        f'{{"editor.tabSize": 2, "mcp": {CLAUDE.replace("mcpServers", "servers")}}}',
        CLAUDE.strip("{}") + "}}",
        CLAUDE[1:-1],
        '"github": {"command": "npx", "args": ["-y", "server-github"]},',
        '{"github": {"type": "stdio", "command": ["npx", "-y"], "args": ["server-github"]}}',
        """{
            // A comment with "quotes" and a , before }
            "mcpServers": {
                "github": {
                    "command": "npx", /* another */
                    "args": ["-y", "server-github",],
                },
            },
        }""",
    ],
)
def test_the_forms_of_other_programs_are_read(text: str) -> None:
    assert parse_paste(text).servers == (WANTED,)


def test_a_url_headers_and_what_is_off_are_taken_and_the_rest_is_named() -> None:
    text = """{"servers": {"docs site": {"type": "http", "url": "https://docs.example/mcp?x=//y,}",
        "headers": {"X-Count": 3, "X-On": true}, "disabled": true, "autoApprove": ["a"], "cwd": "/x"}}}"""
    (server,) = parse_paste(text).servers
    assert (server.name, server.url) == ("docs-site", "https://docs.example/mcp?x=//y,}")
    assert (server.headers, server.enabled) == ({"X-Count": "3", "X-On": "true"}, False)
    assert server.notes == ("docs-site: not taken over: autoApprove, cwd.",)
    assert parse_paste('{"url": "https://a.example/mcp"}', "mine").servers[0].name == "mine"


@pytest.mark.parametrize(
    ("table", "is_sse"),
    [
        ({"type": "sse", "url": "https://a.example/events"}, True),
        ({"url": "https://a.example/sse/?x=1"}, True),
        ({"type": "http", "url": "https://a.example/sse"}, False),
        ({"url": "https://a.example/mcp"}, False),
        ({"command": "sse"}, False),
    ],
)
def test_the_older_transport_is_known_by_its_type_or_its_address(table: dict[str, str], is_sse: bool) -> None:
    (server,) = parse_paste(json.dumps({"mcpServers": {"a": table}})).servers
    assert server.is_sse is is_sse


def test_references_of_other_programs_become_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    text = """{"inputs": [{"id": "key", "type": "promptString", "description": "The key", "password": true}],
        "servers": {"a": {"command": "run", "args": ["${workspaceFolder}/x", "--key=${input:key}"],
        "env": {"A": "${env:HOME_KEY}", "B": "${MINE:-3}", "C": "${input:other}"}}}}"""
    pasted = parse_paste(text)
    assert [(each.id, each.password) for each in pasted.wanted()] == [("key", True), ("other", False)]
    (server,) = pasted.filled({"key": KEY, "other": "o"}).servers
    assert server.command == ("run", f"{tmp_path}/x", f"--key={KEY}")
    assert server.env == {"A": "${HOME_KEY}", "B": "3", "C": "o"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("npx -y server", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"theme": "dark"}', "no MCP servers"),
        ('{"mcpServers": {}}', "no MCP servers"),
        ('{"command": "npx"}', "has no name"),
        ('{"mcpServers": {"a": {"args": ["x"], "url": "https://a/mcp"}}}', "needs a `command` or a `url`"),
        ('{"mcpServers": {"a": {"command": "npx", "args": "x"}}}', "no list of texts"),
        ('{"mcpServers": {"a": {"command": "npx", "env": ["x"]}}}', "no object of texts"),
        ('{"mcpServers": {"a": 5}}', "not a JSON object"),
        ('{"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}}', "one name was given"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        parse_paste(text, "n" if "one name" in why else "")


def test_keys_leave_variables_headers_and_arguments() -> None:
    moved = move_keys(
        PastedServer(
            "my-hub",
            ("npx", "hub", "--api-key", "a-long-key", f"--token={KEY}", "--header",
             f"Authorization: Bearer {KEY}", "postgresql://me:geheim@db.example/x", "/data/key/notes",
             "--key-file", "/etc/key", "--verbose"),
            env={"HUB_TOKEN": "some-token", "PLAIN": "production", "REGION_KEY": "eu", "OTHER": KEY},
        )
    )  # fmt: skip
    assert moved.server.command == (
        "npx", "hub", "--api-key", "${MCP_MY_HUB_API_KEY}", "--token=${MCP_MY_HUB_TOKEN}", "--header",
        "Authorization: Bearer ${MCP_MY_HUB_AUTHORIZATION}", "${MCP_MY_HUB_KEY}", "/data/key/notes",
        "--key-file", "/etc/key", "--verbose",
    )  # fmt: skip
    assert moved.server.env == {
        "HUB_TOKEN": "${MCP_MY_HUB_HUB_TOKEN}",
        "PLAIN": "production",
        "REGION_KEY": "eu",
        "OTHER": "${MCP_MY_HUB_OTHER}",
    }
    assert moved.keys["MCP_MY_HUB_AUTHORIZATION"] == moved.keys["MCP_MY_HUB_TOKEN"] == KEY
    assert moved.keys["MCP_MY_HUB_KEY"] == "postgresql://me:geheim@db.example/x"
    headers = move_keys(
        PastedServer("h", url="https://h.example/mcp", headers={"X-API-Key": KEY, "Accept": "a"})
    )
    assert headers.server.headers == {"X-API-Key": "${MCP_H_X_API_KEY}", "Accept": "a"}


def test_two_keys_of_one_name_are_two() -> None:
    moved = move_keys(PastedServer("a", ("x", "--key", "first-key", "--key", "second-key")))
    assert moved.keys == {"MCP_A_KEY": "first-key", "MCP_A_KEY_2": "second-key"}


@pytest.mark.parametrize("value", ["${HUB_TOKEN}", "true", "8080", ""])
def test_what_is_no_key_stays(value: str) -> None:
    assert move_keys(PastedServer("a", ("x",), env={"TOKEN": value})).keys == {}


def test_names_of_packages_and_paths_are_no_keys() -> None:
    for word in ("@modelcontextprotocol/server-github", "mcp-server-kubernetes-v2-stable", "/srv/a1B2c3D4"):
        assert not looks_secret("", word)


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        ("<YOUR_TOKEN>", True),
        ("YOUR_API_KEY_HERE", True),
        ("Bearer <token>", True),
        ("your-api-key", True),
        ("xxxxxxxx", True),
        ("...", True),
        (KEY, False),
        ("production", False),
        ("https://example.org", False),
    ],
)
def test_placeholders_of_readmes_are_known(value: str, is_one: bool) -> None:
    assert is_placeholder(value) is is_one
