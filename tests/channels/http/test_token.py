"""The token of the HTTP API: made once, private, and refused if it is easy to guess."""

from __future__ import annotations

import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from talaria.channels.http.token import ensure_http_token
from talaria.config.home import Home
from talaria.core.errors import ConfigError

TOKEN_ENV = "TALARIA_HTTP_TOKEN"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.prepare()
    return home


def test_the_first_start_makes_a_private_token_of_256_bits(home: Home) -> None:
    token = ensure_http_token(home, {}, TOKEN_ENV)

    assert re.fullmatch("[0-9a-f]{64}", token.value)  # no dash, which would make it an option of a command
    assert mode(home.token_file) == 0o600
    assert (token.source, token.warnings) == (str(home.token_file), ())
    assert token.value not in repr(token)
    assert [path.name for path in home.path.iterdir()] == ["http.token"]


def test_the_token_stays_over_restarts_and_differs_between_homes(home: Home, tmp_path: Path) -> None:
    other = Home(tmp_path / "other")
    other.prepare()
    token = ensure_http_token(home, {}, TOKEN_ENV).value

    assert ensure_http_token(home, {}, TOKEN_ENV).value == token
    assert ensure_http_token(other, {}, TOKEN_ENV).value != token


def test_racing_first_starts_agree_on_one_token(home: Home) -> None:
    with ThreadPoolExecutor(8) as threads:
        tokens = set(threads.map(lambda _: ensure_http_token(home, {}, TOKEN_ENV).value, range(16)))

    assert len(tokens) == 1
    assert [path.name for path in home.path.iterdir()] == ["http.token"]


def test_the_variable_wins_and_no_file_is_made(home: Home) -> None:
    token = ensure_http_token(home, {TOKEN_ENV: "  0123456789abcdef\n"}, TOKEN_ENV)

    assert (token.value, token.source) == ("0123456789abcdef", TOKEN_ENV)
    assert not home.token_file.exists()


def test_without_a_variables_name_only_the_file_counts(home: Home) -> None:
    assert ensure_http_token(home, {"": "0123456789abcdef"}, "").source == str(home.token_file)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "The HTTP token in the variable TALARIA_HTTP_TOKEN is empty: "),
        ("short", "The HTTP token in the variable TALARIA_HTTP_TOKEN has 5 characters: "),
        ("with a space in it!", "The HTTP token in the variable TALARIA_HTTP_TOKEN has spaces or "),
        ("naïve-0123456789abcdef", "The HTTP token in the variable TALARIA_HTTP_TOKEN has spaces or "),
    ],
)
def test_a_bad_token_from_the_environment_is_refused_without_showing_it(
    home: Home, text: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        ensure_http_token(home, {TOKEN_ENV: text}, TOKEN_ENV)
    assert caught.value.user_text.startswith(expected)
    assert "openssl rand -hex 32" in caught.value.hint
    assert not text or text not in str(caught.value)


def test_an_emptied_token_file_is_refused_with_what_to_do(home: Home) -> None:
    home.token_file.write_text("\n")

    with pytest.raises(ConfigError) as caught:
        ensure_http_token(home, {}, TOKEN_ENV)
    assert caught.value.hint == f"Delete {home.token_file}; the next start makes a new one."


def test_an_open_token_file_is_closed_with_a_warning(home: Home) -> None:
    value = ensure_http_token(home, {}, TOKEN_ENV).value
    home.token_file.chmod(0o644)

    token = ensure_http_token(home, {}, TOKEN_ENV)

    assert token.value == value
    assert mode(home.token_file) == 0o600
    assert token.warnings[0].startswith(f"{home.token_file} was open to other users (mode 0644)")
    assert ensure_http_token(home, {}, TOKEN_ENV).warnings == ()


def test_a_token_file_that_is_a_folder_is_a_config_error(home: Home) -> None:
    home.token_file.mkdir()

    with pytest.raises(ConfigError, match="cannot be used: Is a directory"):
        ensure_http_token(home, {}, TOKEN_ENV)
