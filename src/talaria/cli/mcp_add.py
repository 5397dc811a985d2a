"""`talaria mcp add`: from a pasted text to a server in config.toml, with its keys beside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec

from talaria.cli.mcp_keys import is_placeholder, move_keys
from talaria.cli.mcp_paste import Pasted, PastedInput, PastedServer, is_sse_address, is_whole, parse_paste
from talaria.cli.text import ask_hidden, columns
from talaria.config.edit import check_change, edited, replace_config
from talaria.config.home import Home, read_secrets_file, write_secrets_file
from talaria.config.load import FILE_NAME, load, own_secrets, read_config
from talaria.core.errors import BadRequest, ConfigError
from talaria.core.text import clean_line
from talaria.mcp.launch import refusal
from talaria.mcp.part import MCP, McpServer
from talaria.parts import PARTS

TABLE = ("mcp", "servers")
_FETCHERS = ("npx", "uvx", "bunx", "pipx", "uv", "bun", "pnpm", "yarn", "deno")
_SCRIPTS = (".js", ".mjs", ".cjs", ".ts", ".py")
_PACKAGE_FILES = ("package.json", "pyproject.toml", "setup.py")
_TOO_WIDE = ("/", "/home", "/root", "/Users", "/etc", "/usr", "/var", "/tmp")  # noqa: S108 - not used


class AddOptions(msgspec.Struct, frozen=True):
    """Options of the command line, beside the server itself."""

    env: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    inputs: Mapping[str, str] = {}
    sent: tuple[str, ...] = ()
    network: str = ""
    writable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    is_forced: bool = False


class NewServer(msgspec.Struct, frozen=True):
    """A server that would be added: its settings, its keys, the text that config.toml would have, and what a
    person should know of it."""

    name: str
    server: McpServer
    keys: dict[str, str]
    config: str
    notes: tuple[str, ...]


# -- reading ----------------------------------------------------------------------------------------------


def read_pasted(name: str, words: Sequence[str], text: str | None) -> Pasted:
    """Return the servers that the command line names, or those of a text: of `--json`, else of stdin."""
    if not words:
        return parse_paste(_read_text(text), name)
    if text is not None:
        raise click.UsageError("Give either --json, or a URL or a command.")
    if len(words) == 1 and words[0].startswith(("http://", "https://")):
        return Pasted((PastedServer(name, url=words[0], is_sse=is_sse_address(words[0])),))
    return Pasted((PastedServer(name, tuple(words)),))


def _read_text(text: str | None) -> str:
    if text is None:
        if sys.stdin.isatty():
            click.echo("Paste the JSON of the server (Ctrl-D ends it):", err=True)
        return _read_paste()
    if text == "-" or text.lstrip().startswith(("{", '"')):
        return sys.stdin.read() if text == "-" else text
    try:
        return Path(text).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{text} cannot be read: {error}.", "Name a file with JSON, or paste it.") from error


def _read_paste() -> str:
    """Return what stdin has; in a terminal, up to the end of the JSON, so that nobody has to end it."""
    if not sys.stdin.isatty():
        return sys.stdin.read()
    lines: list[str] = []
    for line in sys.stdin:
        lines.append(line)
        if is_whole("".join(lines)):
            break
    return "".join(lines)


def fill_in(pasted: Pasted, options: AddOptions) -> Pasted:
    """Return the servers with the values that they ask for: of the options, else of a person."""
    missing = [each for each in pasted.wanted() if each.id not in options.inputs]
    if missing and not sys.stdin.isatty():
        names = ", ".join(each.id for each in missing)
        raise BadRequest(f"The text asks for {names}.", f"Give them: --input {missing[0].id}=VALUE.")
    answers = {each.id: _ask(each) for each in missing}
    filled = pasted.filled({**options.inputs, **answers})
    return msgspec.structs.replace(filled, servers=tuple(_fill(each, options) for each in filled.servers))


def _ask(wanted: PastedInput) -> str:
    question = wanted.description or wanted.id
    return ask_hidden(question) if wanted.password else str(click.prompt(question))


def _fill(server: PastedServer, options: AddOptions) -> PastedServer:
    """Return the server with the values of the options, and own keys in the place of a README's words."""

    def own(table: str, values: Mapping[str, str]) -> dict[str, str]:
        return {name: _own_value(f"{server.name}: {table}.{name}", value) for name, value in values.items()}

    env, headers = {**server.env, **options.env}, {**server.headers, **options.headers}
    return msgspec.structs.replace(server, env=own("env", env), headers=own("headers", headers))


def _own_value(place: str, value: str) -> str:
    if not is_placeholder(value):
        return value
    if not sys.stdin.isatty():
        raise BadRequest(
            f"{place} is {value!r}, which stands for a value of yours.",
            "Put your own there, or give it: --env NAME=VALUE or --header 'NAME: VALUE'.",
        )
    given = ask_hidden(f"{place} ({value})")
    scheme, blank, rest = value.partition(" ")
    return f"{scheme} {given}" if blank and is_placeholder(rest) and not is_placeholder(scheme) else given


# -- settings ---------------------------------------------------------------------------------------------


def plan_server(home: Home, pasted: PastedServer, options: AddOptions) -> NewServer:
    """Return the server as it would be added. Writes nothing. Raises `BadRequest` and `ConfigError`."""
    before = read_config(home.config) or ""
    servers = load(home.path, os.environ, PARTS).settings.of(MCP).servers
    if pasted.name in servers and not options.is_forced:
        raise BadRequest(
            f"There is a server {pasted.name} already.", "Name it otherwise, or replace it with --force."
        )
    moved = move_keys(pasted, _known_keys(home, servers, pasted.name))
    server = moved.server
    notes = list(pasted.notes)
    fields: dict[str, Any] = {"url": server.url} if server.url else {"command": list(server.command)}
    fields |= {"transport": "sse"} if server.is_sse else {}
    fields |= {"env": server.env} if server.env else {}
    fields |= {"headers": server.headers} if server.headers else {}
    if server.command:
        fields |= _containment(server, options, notes)
    if not server.enabled:
        fields["enabled"] = False
        notes.append(f"{server.name} is off: enabled = false.")
    path = (*TABLE, server.name)
    bare = edited(home.config, before, TABLE, {server.name: None}) if options.is_forced else before
    after = edited(home.config, bare, path, fields)
    change = check_change(home.path, (path,), (before, after), os.environ, PARTS)
    if change.loaded is None:
        raise ConfigError(f"{FILE_NAME} cannot be used: {change.left}", "`talaria config edit` opens it.")
    found = change.loaded.settings.of(MCP).servers[server.name]
    _check_references(found, own_secrets(change.loaded.settings))
    return NewServer(server.name, found, moved.keys, after, tuple(notes))


def _known_keys(home: Home, servers: Mapping[str, McpServer], replaced: str) -> dict[str, str]:
    """Return the variables and stored keys that exist, without the stored keys of the server `replaced`."""
    named = {name: {variable for _, variable in server.references()} for name, server in servers.items()}
    own = named.pop(replaced, set()).difference(*named.values())
    stored = {name: key for name, key in read_secrets_file(home.path).items() if name not in own}
    return {**stored, **os.environ}


def _check_references(server: McpServer, is_own: Callable[[str], bool]) -> None:
    for key, variable in server.references():
        if is_own(variable):
            raise BadRequest(*refusal(key, variable))
    if "${" in server.address.whole:
        raise BadRequest(
            "The url contains a variable, and variables are not replaced in addresses.",
            "Write the address without it, and send the value in a header.",
        )


def confirm_sending(new: NewServer, options: AddOptions) -> None:
    """List the variables of this machine that the server gets, and ask. Without a terminal `--send` must name
    each of them. Raises `BadRequest` after a no."""
    taken = [(key, name) for key, name in new.server.references() if name not in new.keys]
    left = [*dict.fromkeys(name for _, name in taken if name not in options.sent)]
    if not taken:
        return
    click.echo(f"{new.name} gets the values of these variables:")
    click.echo(columns([(f"  {name}", _destination(key, new.server)) for key, name in taken]))
    if not left:
        return
    if not sys.stdin.isatty():
        names = " ".join(f"--send {name}" for name in left)
        raise BadRequest(
            "Cannot ask for confirmation without a terminal.",
            f"If the server may have these values, add {names}.",
        )
    if not click.confirm(f"Send the values of {', '.join(left)}?", default=False):
        raise BadRequest("You did not confirm it, so nothing was sent.")


def _destination(key: str, server: McpServer) -> str:
    table, _, name = key.partition(".")
    if table == "headers":
        return f"as the header {name}, to {clean_line(urlsplit(server.url).netloc)}"
    what = f"as the variable {name}" if name else "as an argument, which other users can see"
    return f"{what}, to the program {clean_line(' '.join(server.command), 60)}"


def _containment(server: PastedServer, options: AddOptions, notes: list[str]) -> dict[str, Any]:
    """Return what the command may reach. Folders that its arguments name are its to write; a program that
    fetches packages gets the network."""
    places = (*_folders(server.command[1:], notes), *_env_folders(server.env, notes))
    named = [*dict.fromkeys(map(str, places))]
    writable = [*dict.fromkeys((*named, *map(_whole, options.writable)))]
    own = [str(path) for path in _programs(server.command[1:])]
    readable = [*dict.fromkeys((*own, *map(_whole, options.readable)))]
    fields: dict[str, Any] = {"writable": writable} if writable else {}
    fields |= {"readable": readable} if readable else {}
    if own:
        notes.append(f"It may read {', '.join(own)}, where its program is.")
    if named:
        notes.append(f"It may read and write {', '.join(named)}, which its command or its variables name.")
    program = Path(server.command[0]).name
    network = options.network or ("open" if program in _FETCHERS else "off")
    if network == "open":
        fields["network"] = "open"
        why = f", because {program} fetches packages" if not options.network else ""
        notes.append(f"It may reach public hosts (network = open){why}.")
    return fields


def _folders(words: Sequence[str], notes: list[str]) -> Iterator[Path]:
    for word in words:
        path = _path(word.partition("=")[2] if word.startswith("-") and "=" in word else word)
        if path is not None and path.is_dir() and _is_narrow(path, notes):
            yield path


def _env_folders(env: Mapping[str, str], notes: list[str]) -> Iterator[Path]:
    """Yield the folders that variables name, and those of files that they name, which a server may yet write:
    `MEMORY_FILE_PATH=/data/memory.json`."""
    for value in env.values():
        if (path := _path(value)) is None:
            continue
        folder = path if path.is_dir() else path.parent
        if folder.is_dir() and _is_narrow(folder, notes):
            yield folder


def _path(text: str) -> Path | None:
    """Return the path that a text names; None for any other text, also one that is too long for a path."""
    if not text.startswith(("/", "~/")):
        return None
    path = Path(text).expanduser()
    try:
        path.exists()
    except OSError:
        return None
    return path


def _is_narrow(folder: Path, notes: list[str]) -> bool:
    if _is_too_wide(folder):
        notes.append(
            f"It may not use {folder}: that is too much. Name a folder in it (--writable allows it)."
        )
        return False
    return True


def _programs(words: Sequence[str]) -> Iterator[Path]:
    """Yield the folders of scripts among the arguments, as in `node /srv/hub/build/index.js`: that of the
    whole package, which has a file that says so."""
    for word in words:
        if (path := _path(word)) is None or not path.is_file() or path.suffix not in _SCRIPTS:
            continue
        around = [*path.parents]
        modules = [each.parent for each in around if each.name == "node_modules"]
        packages = [each for each in around[:4] if any((each / name).exists() for name in _PACKAGE_FILES)]
        folder = next(iter((*modules[-1:], *packages)), path.parent)
        yield path.parent if _is_too_wide(folder) else folder


def _is_too_wide(folder: Path) -> bool:
    return folder == Path.home() or str(folder) in _TOO_WIDE


def _whole(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def write_server(home: Home, new: NewServer) -> None:
    """Write the keys, then config.toml, so that a running gateway finds both. Raises `ConfigError`."""
    home.prepare()
    if new.keys:
        write_secrets_file(home.path, new.keys)
    replace_config(home.path, new.config)
