"""`[channels.telegram]`: where the token is, what may stand where, and what `doctor` makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from talaria.channels.telegram.account import examine_bot
from talaria.channels.telegram.part import TELEGRAM, TelegramSettings, find_token
from talaria.cli.gateway_checks import check_gateway
from talaria.config.load import load
from talaria.core.errors import ConfigError
from talaria.core.problems import Problem
from talaria.core.settings import Examination
from talaria.parts import PARTS
from talaria.testing.telegram_server import FaultKind, TelegramFault, TelegramServer, WebhookState


def test_the_token_is_found_where_it_was_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(" from-file\n")
    environ = {"T": "from-env"}
    assert find_token(TelegramSettings(token="plain", token_env="T"), tmp_path, environ) == "plain"
    assert find_token(TelegramSettings(token_env="T", token_file="t"), tmp_path, environ) == "from-env"
    assert find_token(TelegramSettings(token_env="T", token_file="t"), tmp_path, {}) == "from-file"
    (tmp_path / "empty").write_text("\n")
    for settings in (
        TelegramSettings(token_env="NOT_SET"),
        TelegramSettings(token_file="nowhere"),
        TelegramSettings(token_file="empty"),
    ):
        with pytest.raises(ConfigError):
            find_token(settings, tmp_path, environ)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('mode = "webhook"', "expected channels.telegram.webhook_url beside it"),
        ('webhook_url = "https://x.org/elsewhere"', "https://talaria.example.org/hooks/telegram"),
        ('allowed = ["ada"]', "people's numeric ids"),
        ("allowed = [-100]", "a negative number is a group"),
        ('api_url = "ftp://x"', "expected an address"),
        ('progress = "loud"', '"off", "brief", "full"'),
        ('token_env = "123:secret value"', "has a wrong value (not shown)"),
        ("token = 5", "has a wrong value (not shown)"),
    ],
)
def test_a_wrong_value_says_what_may_stand_there(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "config.toml").write_text(f"[channels.telegram]\n{line}\n")
    with pytest.raises(ConfigError) as error:
        load(tmp_path, {}, PARTS)
    assert words in str(error.value)
    assert "secret" not in str(error.value)


def test_keys_come_from_the_environment_too(tmp_path: Path) -> None:
    environ = {"TALARIA_CHANNELS__TELEGRAM__PROGRESS": "full", "TALARIA_CHANNELS__TELEGRAM__TOKEN_ENV": "T"}
    telegram = load(tmp_path, {**environ, "T": "x"}, PARTS).settings.of(TELEGRAM)
    assert (telegram.progress, telegram.token_env, telegram.is_on) == ("full", "T", True)
    assert not load(tmp_path, {}, PARTS).settings.of(TELEGRAM).is_on


async def found(tmp_path: Path, settings: TelegramSettings) -> list[tuple[str, str]]:
    examination = Examination(tmp_path, settings, {})
    return [(each.severity, each.text) async for each in examine_bot(examination)]


async def test_the_doctor_knows_a_good_bot_from_a_bad_one(tmp_path: Path, server: TelegramServer) -> None:
    good = TelegramSettings(token=server.token, api_url=server.url)
    assert await found(tmp_path, TelegramSettings()) == []
    assert await found(tmp_path, good) == [("ok", "@talaria_bot answers; updates come by polling.")]
    bad = TelegramSettings(token="1:wrong", api_url=server.url)
    assert await found(tmp_path, bad) == [("problem", "Telegram does not accept the token.")]
    ((level, text),) = await found(tmp_path, TelegramSettings(token="1:x", api_url="http://127.0.0.1:1"))
    assert (level, "cannot be reached" in text) == ("problem", True)
    assert (await found(tmp_path, TelegramSettings(token_env="NOT_SET")))[0][0] == "problem"
    server.fail("getMe", TelegramFault(FaultKind.HTML))
    assert (await found(tmp_path, good))[0][0] == "problem"


async def test_the_doctor_sees_who_else_uses_the_bot(tmp_path: Path, server: TelegramServer) -> None:
    server.webhook = WebhookState("http://127.0.0.1:1/elsewhere", last_error="Connection refused")
    url = "http://127.0.0.1:2/hooks/telegram"
    for mode in ("polling", "webhook"):
        settings = TelegramSettings(
            token=server.token,
            api_url=server.url,
            mode=mode,
            webhook_url=url,
        )
        first, *rest = await found(tmp_path, settings)
        assert first == ("ok", f"@talaria_bot answers; updates come by {mode}.")
        other = "another program may use its token."
        if mode == "polling":
            assert rest == [("warn", f"A webhook is set for the bot, so it cannot be polled; {other}")]
        else:
            assert rest == [
                ("warn", f"The bot's webhook leads elsewhere; {other}"),
                ("warn", f"Telegram could not deliver to {url}: Connection refused."),
            ]


def test_the_running_gateways_channels_are_looked_at() -> None:
    def findings(state: str) -> list[Problem]:
        found = check_gateway("", {"ready": True, "channels": {"http": "draining", "telegram": state}})
        return [each for each in found if each.subject == "telegram"]

    def levels(state: str) -> list[str]:
        return [each.severity for each in findings(state)]

    assert levels("ready") == levels("starting") == []
    assert levels("stopped: Telegram does not accept the token") == ["problem"]


async def test_the_doctor_says_how_to_end_a_dispute_about_a_bot(
    tmp_path: Path, server: TelegramServer
) -> None:
    settings = TelegramSettings(token=server.token, api_url=server.url)
    state = "waiting: another process polls with this bot's token; only one can"
    status = {"channels": {"telegram": state}}
    _, disputed = [each async for each in examine_bot(Examination(tmp_path, settings, {}, status))]
    assert (disputed.subject, disputed.severity, disputed.text) == (
        "telegram", "problem", f"The gateway's channel is {state}.",
    )  # fmt: skip
    fix = "Stop the other one, or give this one a bot of its own: `talaria connect telegram`."
    assert disputed.hint == fix
