"""MCP servers as other programs write them down: the JSON of Claude Desktop, VS Code and READMEs.

Comments, trailing commas, a Markdown fence around the text and missing outer braces are taken as they come.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from talaria.core.errors import BadRequest

_FENCE = re.compile(r"^\s*```[\w-]*\s*\n(.*?)\n?\s*```\s*$", re.DOTALL)
_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMA = re.compile(r'("(?:[^"\\\n]|\\.)*")|,(?=\s*[}\]])', re.DOTALL)
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_INPUT = re.compile(r"\$\{input:([^}]+)\}")
_ENV = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}|\$\{([A-Za-z_][A-Za-z0-9_]*):-([^}]*)\}")
_PLACES = ("mcpServers", "mcp.servers", "servers")
_URLS = ("url", "serverUrl", "httpUrl")
_TAKEN = {"command", "args", "env", "headers", "type", "transport", "disabled", "enabled", "name", *_URLS}
_HOW = 'Paste what stands in the README of a server: {"mcpServers": {"NAME": {"command": …}}}.'


class PastedInput(msgspec.Struct, frozen=True):
    """A value that VS Code would ask for."""

    id: str
    description: str = ""
    password: bool = False


class PastedServer(msgspec.Struct, frozen=True):
    """A server as it was pasted: a command or a url. `notes` say what was left out."""

    name: str
    command: tuple[str, ...] = ()
    url: str = ""
    env: dict[str, str] = {}
    headers: dict[str, str] = {}
    enabled: bool = True
    notes: tuple[str, ...] = ()
    is_sse: bool = False  # the transport of 2024

    def texts(self) -> Iterator[str]:
        yield from (*self.command, self.url, *self.env.values(), *self.headers.values())

    def map(self, change: Callable[[str], str]) -> PastedServer:
        """Return the server with each of its texts changed."""
        return msgspec.structs.replace(
            self,
            command=tuple(map(change, self.command)),
            url=change(self.url),
            env={name: change(value) for name, value in self.env.items()},
            headers={name: change(value) for name, value in self.headers.items()},
        )


class Pasted(msgspec.Struct, frozen=True):
    servers: tuple[PastedServer, ...]
    inputs: dict[str, PastedInput] = {}

    def wanted(self) -> list[PastedInput]:
        """Return the inputs that the servers use, each once."""
        used = dict.fromkeys(
            match[1] for server in self.servers for text in server.texts() for match in _INPUT.finditer(text)
        )
        return [self.inputs.get(name, PastedInput(name)) for name in used]

    def filled(self, values: Mapping[str, str]) -> Pasted:
        """Return the servers with `${input:x}` replaced."""

        def fill(text: str) -> str:
            return _INPUT.sub(lambda match: values[match[1]], text)

        return msgspec.structs.replace(self, servers=tuple(each.map(fill) for each in self.servers))


def parse_paste(text: str, name: str = "") -> Pasted:
    """Return the servers in the text. A text with one server may leave its name to `name`.

    Raises `BadRequest`.
    """
    tree = _decode(text)
    inner = tree.get("mcp")
    if isinstance(inner, dict) and not inner.keys().isdisjoint(_PLACES):  # settings.json of VS Code
        tree = {**tree, **inner}
    inputs = {each.id: each for each in _inputs(tree)}
    found = _servers(tree)
    if "command" in found or any(key in found for key in _URLS):  # one server, without a name around it
        given = name or str(found.get("name") or "")
        if not given:
            raise BadRequest("The server has no name.", "Name it: `talaria mcp add NAME`.")
        found = {given: found}
    elif name and len(found) == 1:
        found = {name: next(iter(found.values()))}
    elif name and found:
        raise BadRequest(f"The text has {len(found)} servers, and one name was given.", "Leave the name out.")
    if not found:
        raise BadRequest("The text has no MCP servers.", _HOW)
    return Pasted(tuple(_server(each, table) for each, table in found.items()), inputs)


def is_whole(text: str) -> bool:
    """Return whether a text that is pasted line by line has come to its end."""
    fenced = text.lstrip().startswith("```")
    bare = re.sub(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*', "", text)
    depth = bare.count("{") - bare.count("}")
    return "{" in bare and depth <= 0 and (not fenced or text.rstrip().endswith("```"))


def _decode(text: str) -> dict[str, Any]:
    fenced = _FENCE.match(text)
    bare = _TOKEN.sub(
        lambda match: match[0] if match[0].startswith('"') else " ", fenced[1] if fenced else text
    )
    bare = bare.strip().lstrip("\ufeff").rstrip(",")
    if bare.startswith('"'):  # a piece of a file, without the braces around it
        bare = "{" + bare + "}"
    try:
        tree = msgspec.json.decode(_LAST_COMMA.sub(lambda match: match[1] or "", bare))
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"The text is not JSON: {error}.", _HOW) from None
    if not isinstance(tree, dict):
        raise BadRequest("The text is not a JSON object.", _HOW)
    return tree


def _servers(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the tables of servers by their names, or the table of a single server."""
    for key in _PLACES:
        if isinstance(tree.get(key), dict):
            return dict(tree[key])
    is_server = "command" in tree or any(isinstance(tree.get(key), str) for key in _URLS)
    is_all_tables = bool(tree) and all(isinstance(each, dict) for each in tree.values())
    return tree if is_server or is_all_tables else {}


def _inputs(tree: dict[str, Any]) -> Iterator[PastedInput]:
    found = tree.get("inputs")
    for each in found if isinstance(found, list) else ():
        if isinstance(each, dict) and isinstance(each.get("id"), str):
            yield PastedInput(each["id"], str(each.get("description") or ""), each.get("password") is True)


def _server(name: str, table: Any) -> PastedServer:
    name = _NOT_A_NAME.sub("-", name).strip("-_")[:32]
    if not isinstance(table, dict) or not name:
        raise BadRequest(f"The server {name!r} is not a JSON object with a name.", _HOW)
    kind = str(table.get("type") or table.get("transport") or "").lower()
    url = next((table[key] for key in _URLS if isinstance(table.get(key), str)), "")
    command: Any = table.get("command", "")
    words = [*(command if isinstance(command, list) else [command] if command else [])]
    words += _texts(name, "args", table.get("args") or [])
    if bool(words) == bool(url):
        raise BadRequest(f"{name} needs a `command` or a `url`.", _HOW)
    left = [key for key in table if key not in _TAKEN]
    server = PastedServer(
        name,
        tuple(_texts(name, "command", words)),
        url,
        _values(name, "env", table.get("env") or {}),
        _values(name, "headers", table.get("headers") or {}),
        table.get("disabled") is not True and table.get("enabled") is not False,
        (f"{name}: not taken over: {', '.join(left)}.",) if left else (),
        is_sse=bool(url) and (kind == "sse" or (not kind and is_sse_address(url))),
    )
    return server.map(_own_references)


def is_sse_address(url: str) -> bool:
    """Return whether an address looks like one of the transport of 2024."""
    return url.partition("?")[0].rstrip("/").endswith("/sse")


def _texts(name: str, key: str, values: Any) -> list[str]:
    if not isinstance(values, list) or any(isinstance(each, dict | list) or each is None for each in values):
        raise BadRequest(f"{name}: `{key}` is no list of texts.", _HOW)
    return [_text(each) for each in values]


def _values(name: str, key: str, values: Any) -> dict[str, str]:
    if not isinstance(values, dict) or any(isinstance(each, dict | list) for each in values.values()):
        raise BadRequest(f"{name}: `{key}` is no object of texts.", _HOW)
    return {variable: _text(each) for variable, each in values.items() if each is not None}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _own_references(text: str) -> str:
    """Return the text with the variables of other programs as Talaria writes them."""
    text = text.replace("${workspaceFolder}", str(Path.cwd())).replace("${userHome}", str(Path.home()))
    return _ENV.sub(lambda match: f"${{{match[1]}}}" if match[1] else match[3], text)
