"""Single keys of config.toml: as people write them, their current values and origins, and edits that leave
every other line and comment as it was."""

from __future__ import annotations

import errno
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from talaria.config.decoder import find_hint, known_keys, read_text, values_of
from talaria.config.issues import BadConfig, Issue, dotted, key_lines, read_overrides
from talaria.config.load import FILE_NAME, Loaded, load_text, read_config
from talaria.config.settings import Settings, settings_type
from talaria.core.errors import BadRequest, ConfigError
from talaria.core.redaction import hide_passwords
from talaria.core.settings import KeyPath, Parts, Unset, holds_secret
from talaria.core.text import nearest
from talaria.core.units import Size, format_duration, write_size
from talaria.core.whole_files import replace_file

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Change(msgspec.Struct, frozen=True):
    """The result of an edit. `loaded` is None if the file still cannot be used, for reasons that were there
    before; `left` names them."""

    loaded: Loaded | None
    left: str = ""


def change_key(
    home: Path, path: KeyPath, value: object | None, environ: Mapping[str, str], parts: Parts
) -> Change:
    """Set one key of the home's file, or remove it if the value is None.

    The result is checked first. Raises `ConfigError`, and writes nothing, if the edit would break the file.
    """
    file = home / FILE_NAME
    before = read_config(file) or ""
    after = edited(file, before, path[:-1], {path[-1]: value})
    try:
        change = check_change(home, (path,), (before, after), environ, parts)
    except BadConfig as error:
        raise ConfigError(error.user_text, error.hint + _whole(path, value, error.issues)) from None
    hint = find_hint(settings_type(parts), path)
    is_secret = hint is not None and holds_secret(value, hint.marks)
    replace_config(home, after, is_secret=is_secret)
    return change


def _whole(path: KeyPath, value: object | None, issues: Sequence[Issue]) -> str:
    """Return how to set a table whole, if one of its two keys was refused because the other is missing, which
    is an issue of the table."""
    table, key = path[:-1], path[-1]
    is_price = table[:1] == ("prices",)
    keys = ("input", "output") if is_price else ("provider", "name") if table == ("model",) else ()
    if key not in keys or value is None or not any(issue.path == table for issue in issues):
        return ""
    given = {each: value if each == key or is_price else each.upper() for each in keys}
    whole = ", ".join(f"{each} = {write_value(given[each])}" for each in keys)
    words = ("talaria", "config", "set", dotted(table), f"{{{whole}}}")
    return f" Set both at once: `{shlex.join(words)}`."


def set_keys(path: Path, table: KeyPath, values: Mapping[str, object | None]) -> None:
    """Set each key of the table, or remove it if the value is None, without checking the result. The file is
    replaced as a whole. Raises `ConfigError`."""
    replace_config(path.parent, edited(path, read_config(path) or "", table, values))


def with_database(path: Path, url: str | None) -> str:
    """Return the text of a config.toml with this `store.url`, or without one. Raises `ConfigError`."""
    text = read_config(path) or ""
    with suppress(ValueError, TypeError, RecursionError):
        if url is None and "url" not in tomllib.loads(text).get("store", {}):
            return text
    return edited(path, text, ("store",), {"url": url})


def edited(path: Path, text: str, table: KeyPath, values: Mapping[str, object | None]) -> str:
    """Return the text with the keys of the table set or removed. Raises `ConfigError` if it is not TOML."""
    import tomlkit  # noqa: PLC0415 - only where a file is edited
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

    try:
        document = tomlkit.parse(text)
        place: tomlkit.TOMLDocument | tomlkit.items.Table = document
        around = []
        for depth, name in enumerate(table):
            around.append((place, name))
            if name not in place:
                if not depth and text.strip():
                    document.add(tomlkit.nl())
                place.add(name, tomlkit.table(is_super_table=depth < len(table) - 1))
            place = place[name]
            if not hasattr(place, "remove"):
                raise ConfigError(f"{dotted(table[: depth + 1])} is no table in {path}.", "Correct it there.")
        for key, value in values.items():
            if value is not None:
                place[key] = _inline(value) if table or not isinstance(value, dict) else _table(value)
            elif key in place:
                place.remove(key)
        for outer, name in reversed(around):
            if not _is_bare(outer[name]):
                break
            outer.remove(name)
        return tomlkit.dumps(document)
    except TOMLKitError as error:
        why = str(error).rstrip(".")
        raise ConfigError(f"{path} is not valid TOML: {why}.", "`talaria config edit` opens it.") from error


def _is_bare(table: object) -> bool:
    """Return whether the table has no key and no comment."""
    from tomlkit.items import AbstractTable  # noqa: PLC0415

    if not isinstance(table, AbstractTable) or len(table):
        return False
    return not table.trivia.comment and "#" not in table.as_string()


def _table(value: Mapping[str, object]) -> object:
    """Return the value as a table with a header."""
    import tomlkit  # noqa: PLC0415

    table = tomlkit.table()
    for name, each in value.items():
        table.add(name, _inline(each))
    return table


def _inline(value: object) -> object:
    """Return the value with its tables written on one line."""
    import tomlkit  # noqa: PLC0415

    if isinstance(value, list):
        array = tomlkit.array()
        array.extend(_inline(each) for each in value)
        return array
    if not isinstance(value, dict):
        return value
    inline = tomlkit.inline_table()
    inline.update(value)
    return inline


def replace_config(home: Path, text: str, *, is_secret: bool = False) -> None:
    """Replace the file as a whole, behind a link if it is one; with a secret in it, for its owner only."""
    path = home / FILE_NAME
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        real = path.resolve()
        mode = real.stat().st_mode & 0o777 if real.exists() and not is_secret else 0o600
        replace_file(real, text.encode(), mode)
    except OSError as error:
        raise _unwritable(path, error, "Make it a file that you may write.") from error


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner can read, from its first byte on. Raises `ConfigError`."""
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise _unwritable(path, error, "Is the home yours?") from error


def _unwritable(path: Path, error: OSError, hint: str) -> ConfigError:
    if error.errno not in _NO_ROOM:
        return ConfigError(f"{path} cannot be written: {error.strerror}.", hint)
    state = "is as it was" if path.exists() else "was not made"
    return ConfigError(
        f"{path} cannot be written, because its disk is full or your quota is used up: {error.strerror}.",
        f"The file {state}. Make room on that disk (`df -h {shlex.quote(str(path.parent))}` shows it), "
        "then try again.",
    )


def file_only(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that override keys: the file must be good by itself."""
    return {name: value for name, value in environ.items() if not name.upper().startswith("TALARIA_")}


def check_change(
    home: Path, touched: Sequence[KeyPath], texts: tuple[str, str], environ: Mapping[str, str], parts: Parts
) -> Change:
    """Check the texts of the file before and after a change, without the variables that override keys. Raises
    `BadConfig` if the change breaks something, or leaves a key that it touches broken."""

    def problems(text: str) -> BadConfig | Loaded:
        try:
            return load_text(home, text, file_only(environ), parts)
        except BadConfig as error:
            return error

    previous, result = map(problems, texts)
    if isinstance(result, Loaded):
        return Change(result)
    known = {
        issue.path
        for issue in (previous.issues if isinstance(previous, BadConfig) else ())
        if not any(issue.path[: len(path)] == path for path in touched)
    }
    # Without their lines, which are those of a file that is never written.
    new = [structs.replace(issue, text=issue.bare) for issue in result.issues if issue.path not in known]
    if new:
        raise BadConfig(tuple(new), "Nothing was written.", None)
    return Change(None, result.user_text)


# -- keys and values as people write them


class ShownValue(msgspec.Struct, frozen=True):
    """A key with its current value, as TOML writes it, and the origin of the value. `unset` says what an
    empty key stands for."""

    path: KeyPath
    toml: str
    origin: str
    unset: Unset | None = None

    @property
    def plain(self) -> str:
        """A text without its quotes, as scripts want it."""
        value = tomllib.loads(f"value = {self.toml}")["value"] if self.toml else ""
        plain = value if isinstance(value, str) else self.toml
        return plain or (self.unset.value if self.unset else "")

    def describe(self) -> str:
        """Return where the value comes from, and what an empty one stands for."""
        if self.unset is None:
            return self.origin
        return f"{self.origin}: {', '.join(filter(None, (self.unset.value, self.unset.meaning)))}"


def parse_key(kind: type[Settings], text: str) -> KeyPath:
    """Read `pool.max_agents` or `prices."mine/m".input`. Raises `BadRequest` if it is not a key."""
    try:
        tree: Any = tomllib.loads(f"{text} = 0")
    except ValueError:
        meant = _quoted_key(kind, text)
        hint = (
            f"A name with other characters than letters, digits, - and _ is quoted: {shlex.quote(meant)}."
            if meant
            else "A key is written table.name, such as pool.max_agents."
        )
        raise BadRequest(f"{text!r} is not a key.", hint) from None
    path: KeyPath = ()
    while isinstance(tree, dict) and tree:
        (name,) = tree
        path, tree = (*path, name), tree[name]
    return path


def _quoted_key(kind: type[Settings], text: str) -> str:
    """Return the key that was probably meant by one whose name in the middle or at the end lacks quotes."""
    first, _, rest = text.partition(".")
    name, _, last = rest.rpartition(".")
    for path in ((first, name, last), (first, rest)):
        names = tuple(each.strip("\"'") for each in path)
        if all(names) and find_hint(kind, names) is not None:
            return dotted(names)
    return ""


def parse_value(kind: type[Settings], path: KeyPath, text: str) -> object:
    """Return the value that the file would have. Raises `BadRequest` for an unknown key."""
    hint = find_hint(kind, path)
    if hint is None:
        raise unknown_key(kind, path)
    return read_text(hint.kind, text)


def unknown_key(kind: type[Settings], path: KeyPath) -> BadRequest:
    known = {dotted(key): key for key in known_keys(kind)}
    near = nearest(dotted(path), known) or next((key for key in known if key.endswith(f".{path[-1]}")), None)
    hint = (
        f"Did you mean {near}?"
        if near
        else "`talaria config get` lists the keys; docs/configuration.md explains them."
    )
    return BadRequest(f"{dotted(path)} is not a known key.", hint)


def shown_values(settings: Settings, text: str, environ: Mapping[str, str]) -> Iterator[ShownValue]:
    """Yield every key, in the order of the settings. Secrets, and passwords in addresses, are not shown."""
    tree = tomllib.loads(text) if text else {}
    lines, overrides = key_lines(text), read_overrides(environ, tree)
    values = [*values_of(settings)]
    given = {path: value for path, value, _ in values}
    for path, value, marks in values:
        if path in overrides:
            origin = f"environment: {overrides[path].variable}"
        elif path in lines:
            origin = f"config.toml line {lines[path]}"
        else:
            origin = "default"
        hint = find_hint(type(settings), path)
        is_size = hint is not None and hint.kind is Size
        toml = write_value(write_size(Size(value)) if is_size and isinstance(value, int) else value)
        is_hidden = holds_secret(value, marks)
        notes = hint.notes if hint is not None and value in (None, "", ()) else ()
        unset = next((note for note in notes if isinstance(note, Unset)), None)
        if unset is not None and unset.other and given.get((*path[:-1], unset.other)):
            unset = Unset(unset.beside)
        yield ShownValue(path, '"(not shown)"' if is_hidden else hide_passwords(toml), origin, unset)


def write_value(value: object) -> str:  # noqa: PLR0911 - one for each type
    """Return the value as TOML; empty for None."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case timedelta():
            return f'"{format_duration(value)}"'
        case str():
            return msgspec.json.encode(str(value)).decode()
        case tuple():
            return f"[{', '.join(map(write_value, value))}]"
        case msgspec.Struct():
            inner = (f"{name} = {write_value(each)}" for name, each in msgspec.structs.asdict(value).items())
            return f"{{ {', '.join(inner)} }}"
        case _:
            return str(value)
