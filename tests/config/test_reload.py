"""Which settings can change while the gateway runs, and what becomes of a changed file."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgspec
import pytest

from support.waiting import until
from talaria.channels.http.part import HTTP
from talaria.channels.telegram.part import TELEGRAM
from talaria.config.decoder import is_marked
from talaria.config.load import load
from talaria.config.reload import LiveSettings, Reloader, compare, merge
from talaria.config.settings import Settings, settings_type
from talaria.core.redaction import SecretRegistry
from talaria.core.settings import KeyPath, Mark
from talaria.parts import PARTS
from talaria.pool.policy import PoolSettings
from talaria.testing.clock import FakeClock

EVERY_SECONDS = 3.0

DEFAULTS = settings_type(PARTS)()


def is_live(path: KeyPath) -> bool:
    return is_marked(settings_type(PARTS), path, Mark.LIVE)


def test_a_key_is_live_if_it_or_a_table_around_it_is_marked() -> None:
    assert is_live(("pool", "max_agents"))
    assert is_live(("channels", "telegram", "allowed"))
    assert is_live(("channels", "telegram", "progress"))  # the channel is opened again
    assert is_live(("prices", "mine/m", "input"))
    assert not is_live(("http", "port"))
    assert not is_live(("model", "reasoning"))


def test_differences_are_named_by_their_keys(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        '[pool]\nmax_agents = 3\n[http]\nport = 1\n[aliases]\nfast = "openai/gpt-5"\n[log]\nlevel = "debug"\n'
    )
    changes = compare(DEFAULTS, load(tmp_path, {}, PARTS).settings)
    assert changes.live == (("aliases", "fast"), ("pool", "max_agents"), ("log", "level"))
    assert changes.later == (("http", "port"),)


def test_what_cannot_change_stays_as_it_was() -> None:
    old = DEFAULTS
    new = msgspec.convert(
        {"pool": {"max_agents": 3}, "http": {"port": 1}, "log": {"level": "debug", "format": "json"}},
        settings_type(PARTS),
    )
    result = merge(old, new)
    assert result.pool.max_agents == 3
    assert result.log.level == "debug"
    assert (result.of(HTTP), result.log.format) == (old.of(HTTP), old.log.format)


def test_only_those_concerned_are_told() -> None:
    live, told = LiveSettings(Settings()), []
    live.on(("pool",), tell=lambda new: told.append(("pool", new.pool.max_agents)))
    live.on(("prices",), ("budgets",), tell=lambda new: told.append(("money", 0)))
    live.take(msgspec.structs.replace(Settings(), pool=PoolSettings(max_agents=3)))
    assert told == [("pool", 3)]


def test_a_part_is_told_of_its_table_while_it_follows(tmp_path: Path) -> None:
    def settings(port: int, level: str = "info") -> Settings:
        text = f'[channels.telegram]\nallowed = [{port}]\n[log]\nlevel = "{level}"\n'
        (tmp_path / "config.toml").write_text(text)
        return load(tmp_path, {}, PARTS).settings

    live, told = LiveSettings(settings(1)), []
    with live.follow(TELEGRAM, lambda new: told.append(new.allowed)):
        live.take(settings(2))
        live.take(settings(2, "debug"))
    live.take(settings(3))
    assert told == [(2,)]


class File:
    """A home's file and the reloader that looks at it."""

    def __init__(self, home: Path) -> None:
        self.path = home / "config.toml"
        self.clock = FakeClock()
        self.live = LiveSettings(load(home, {}, PARTS).settings)
        self.secrets = SecretRegistry()
        self.reloader = Reloader(home, {}, PARTS, self.live, self.clock, secrets=self.secrets)

    def write(self, text: str) -> None:
        self.path.write_text(text)
        self.reloader.reload()


@pytest.fixture
def file(tmp_path: Path) -> File:
    (tmp_path / "config.toml").write_text("[pool]\nmax_agents = 5\n")
    return File(tmp_path)


def test_a_good_file_is_taken_up_and_what_waits_is_said(file: File, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "talaria.config"):
        file.write("[pool]\nmax_agents = 6\n[http]\nport = 9\n")
    assert file.live.settings.pool.max_agents == 6
    assert file.live.settings.of(HTTP).port is None
    assert file.reloader.status() == {"pending": ["http.port"], "trouble": ""}
    assert "in effect now: pool.max_agents" in caplog.text
    assert "from the next start on: http.port" in caplog.text
    file.write("[pool]\nmax_agents = 6\n")
    assert file.reloader.pending == ()


def test_a_broken_file_changes_nothing_and_is_told_of_once(
    file: File, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        file.write("[pool]\nmax_agents = 'x'\n[log]\nlevel = 'debug'\n")
    assert file.live.settings.pool.max_agents == 5
    assert file.live.settings.log.level == "info"
    assert caplog.text.count("cannot be used; nothing changes") == 1
    assert "line 2" in file.reloader.trouble
    file.write("[pool]\nmax_agents = 7\n")
    assert file.reloader.trouble == ""
    assert file.live.settings.pool.max_agents == 7


def test_new_secrets_are_kept_out_of_the_log(file: File) -> None:
    file.write('[providers.mine]\nbase_url = "http://127.0.0.1/v1"\napi_key = "sk-new"\n')
    assert file.secrets("it is sk-new") == "it is [secret providers.mine.api_key]"


def test_a_file_that_is_gone_means_the_defaults(file: File) -> None:
    file.path.unlink()
    file.reloader.reload()
    assert file.live.settings.pool.max_agents == Settings().pool.max_agents


async def test_the_file_is_looked_at_every_few_seconds(file: File) -> None:
    looking = asyncio.create_task(file.reloader.run())
    try:
        await file.clock.until_sleepers(1)
        file.clock.advance(EVERY_SECONDS)
        await file.clock.until_sleepers(1)
        assert file.live.settings.pool.max_agents == 5
        file.path.write_text("[pool]\nmax_agents = 12\n")
        file.clock.advance(EVERY_SECONDS)
        await until(lambda: file.live.settings.pool.max_agents == 12, pause=0)  # a thread looks at the file
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
