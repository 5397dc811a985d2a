"""The file `keys.json` in the home: keys that config.toml names with `${NAME}` and no variable holds.

Commands that are given a key, such as `talaria mcp add`, move it here, so that it is not in config.toml. A
variable of the environment with the same name comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from talaria.core.errors import ConfigError
from talaria.core.whole_files import replace_file

KEYS_FILE = "keys.json"


def read_keys(home: Path) -> dict[str, str]:
    """Return the keys by their names; none without the file. Raises `ConfigError`. Blocks."""
    path = home / KEYS_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        text = f"{path} cannot be read: {getattr(error, 'strerror', None) or error}."
        raise ConfigError(
            text, "It must be a JSON object of names and keys, for this user alone to read."
        ) from error


def write_keys(home: Path, keys: Mapping[str, str]) -> None:
    """Add keys to the file, or replace them; an empty value removes its name. Raises `OSError` and
    `ConfigError`. Blocks."""
    kept = {name: value for name, value in {**read_keys(home), **keys}.items() if value}
    replace_file(home / KEYS_FILE, msgspec.json.format(msgspec.json.encode(kept, order="sorted")))
