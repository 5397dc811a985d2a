"""Where `talaria connect` takes a secret from, and what it writes."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest

from talaria.channels.telegram.part import TELEGRAM
from talaria.cli.connect import _ask, _tell, _write
from talaria.config.home import Home
from talaria.core.errors import ConfigError

SECRET = TELEGRAM.connector.secrets[0] if TELEGRAM.connector else None


def test_a_secret_comes_from_a_variable_or_from_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SECRET is not None
    monkeypatch.setenv("MY_TOKEN", " 1:abc \n")
    assert _ask(SECRET, "MY_TOKEN") == "1:abc"
    monkeypatch.setenv("MY_TOKEN", " ")
    with pytest.raises(ConfigError, match="There is no token in MY_TOKEN") as error:
        _ask(SECRET, "MY_TOKEN")
    assert error.value.hint == "Set it: export MY_TOKEN=…"
    monkeypatch.setattr("sys.stdin", StringIO("2:def\n\n"))
    assert _ask(SECRET, None) == "2:def"
    with pytest.raises(ConfigError, match=r"There is no token\.") as error:
        _ask(SECRET, None)
    assert error.value.hint == SECRET.hint


def test_a_secret_is_kept_in_a_file_unless_a_variable_holds_it(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    _write(home, TELEGRAM, {"token": None}, {"token": "1:abc"}, {"api_url": "http://127.0.0.1:9"})
    file = home.path / "telegram.token"
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("1:abc\n", 0o600)
    written = '[channels.telegram]\napi_url = "http://127.0.0.1:9"\ntoken_file = "telegram.token"\n'
    assert home.config.read_text() == written
    usual = TELEGRAM.settings().api_url
    _write(home, TELEGRAM, {"token": "MY_TOKEN"}, {"token": "1:abc"}, {"api_url": usual})
    assert home.config.read_text() == '[channels.telegram]\ntoken_env = "MY_TOKEN"\n'


class Account:
    name = "@bot"

    def invite(self, code: str) -> tuple[str, ...]:
        return (f"send {code}",)


@pytest.mark.parametrize("wait", [0, 30])
def test_the_person_is_told_what_to_send(wait: int, capsys: pytest.CaptureFixture[str]) -> None:
    _tell(Account(), "abc", wait)  # type: ignore[arg-type]
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["", "send abc", "The first person who does so may talk to your agent."]
    assert any("Waiting for that, 30 seconds at most" in line for line in lines) is bool(wait)
