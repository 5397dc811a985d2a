"""`secrets.env` in the home: values that settings name as `${NAME}`, for their owner only.

The file stands behind the environment of the process: a variable that is set there wins. Each line is
`NAME=VALUE`, without quotes; lines that begin with `#` are comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from talaria.core.errors import ConfigError
from talaria.core.whole_files import Stamp, lock_file, replace_file, stamp_of

SECRETS_FILE = "secrets.env"
_LINE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)")
_HEAD = "# Secrets that config.toml names as ${NAME}. `talaria mcp add` writes here.\n"


class HomeEnviron(Mapping[str, str]):
    """The environment, and behind it the secrets of the home, as they are now. Variables that override
    settings (`TALARIA_…`) count in the environment only."""

    def __init__(self, home: Path, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self._home = home
        self._path = home / SECRETS_FILE
        self._stamp: Stamp = None
        self._found: Mapping[str, str] = {}

    def __getitem__(self, name: str) -> str:
        value = self.environ.get(name)
        return self.stored()[name] if value is None else value

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.environ, *self.stored())))

    def __len__(self) -> int:
        return len({*self.environ, *self.stored()})

    def stored(self) -> Mapping[str, str]:
        """Return the secrets of the file. It is read again when it was changed."""
        stamp = stamp_of(self._path)
        if stamp != self._stamp:
            self._found, self._stamp = read_secrets_file(self._home), stamp
        return self._found


def home_environ(home: Path, environ: Mapping[str, str]) -> HomeEnviron:
    """Return the environment with the home's secrets behind it; an environment that has them is returned."""
    return environ if isinstance(environ, HomeEnviron) else HomeEnviron(home, environ)


def read_secrets_file(home: Path) -> dict[str, str]:
    """Return the values by their names; none without a file that can be read."""
    try:
        lines = (home / SECRETS_FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    found = (_LINE.fullmatch(line) for line in lines)
    return {match[1]: match[2] for match in found if match and not match[1].upper().startswith("TALARIA_")}


def write_secrets_file(home: Path, values: Mapping[str, str | None]) -> None:
    """Set these values, or remove those that are None; other lines stay, also those that another process
    writes at the same time. Raises `ConfigError`."""
    path = home / SECRETS_FILE
    try:
        with lock_file(home / ".lock"):
            _write(path, values)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.", "Is the home yours?") from error


def _write(path: Path, values: Mapping[str, str | None]) -> None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        lines = [_HEAD]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.", "Make it a text file of your own.") from error
    kept = [line for line in lines if line.partition("=")[0] not in values]
    if kept and not kept[-1].endswith("\n"):
        kept[-1] += "\n"
    kept += [f"{name}={value}\n" for name, value in values.items() if value is not None]
    if any(_LINE.match(line) for line in kept):
        replace_file(path, "".join(kept).encode())
    else:
        path.unlink(missing_ok=True)
