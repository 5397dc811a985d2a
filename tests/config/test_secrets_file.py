"""`secrets.env`: values for `${NAME}` that stand behind the environment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from talaria.config.home import home_environ, read_secrets_file, write_secrets_file
from talaria.config.load import load
from talaria.config.reload import LiveSettings, Reloader
from talaria.core.errors import ConfigError
from talaria.core.redaction import Secret, SecretRegistry
from talaria.parts import PARTS
from talaria.testing.clock import FakeClock

VALUE, OTHER = "c4tf00d-with-whiskers-19", "ZmlzaCBhbmQgY2hpcHMgMjc5MQ"


def test_values_are_written_for_their_owner_only_and_other_lines_stay(tmp_path: Path) -> None:
    path = tmp_path / "secrets.env"
    write_secrets_file(tmp_path, {"ONE": VALUE, "TWO": "a=b c"})
    path.write_text(path.read_text() + "# mine\nTHREE=3")
    write_secrets_file(tmp_path, {"ONE": None, "FOUR": "4"})
    assert read_secrets_file(tmp_path) == {"TWO": "a=b c", "THREE": "3", "FOUR": "4"}
    assert "# mine\n" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    write_secrets_file(tmp_path, dict.fromkeys(("TWO", "THREE", "FOUR")))
    assert not path.exists()


def test_the_environment_wins_and_changes_of_the_file_are_seen(tmp_path: Path) -> None:
    environ = home_environ(tmp_path, {"ONE": "mine"})
    assert environ.get("TWO") is None
    write_secrets_file(tmp_path, {"ONE": "theirs", "TWO": VALUE, "TALARIA_POOL__MAX_AGENTS": "3"})
    assert (environ["ONE"], environ["TWO"]) == ("mine", VALUE)
    assert set(environ) == {"ONE", "TWO"}
    assert home_environ(tmp_path, environ) is environ
    assert load(tmp_path, {}, PARTS).settings.pool.max_agents != 3


def test_all_values_are_redacted_also_those_that_come_later(tmp_path: Path) -> None:
    write_secrets_file(tmp_path, {"ONE": VALUE})
    loaded = load(tmp_path, {}, PARTS)
    assert Secret("ONE", VALUE) in loaded.secrets
    secrets = SecretRegistry(loaded.secrets)
    reloader = Reloader(tmp_path, {}, PARTS, LiveSettings(loaded.settings), FakeClock(), secrets=secrets)
    write_secrets_file(tmp_path, {"TWO": OTHER})
    reloader.reload()
    assert secrets.redactor(f"{VALUE} {OTHER}") == "[secret ONE] [secret TWO]"


def test_a_file_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "secrets.env").write_bytes(b"ONE=\xff\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        write_secrets_file(tmp_path, {"TWO": VALUE})
    assert read_secrets_file(tmp_path) == {}


def test_no_key_is_lost_if_many_write_at_once(tmp_path: Path) -> None:
    names = [f"KEY_{number}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: write_secrets_file(tmp_path, {name: VALUE}), names))
    assert sorted(read_secrets_file(tmp_path)) == sorted(names)
