from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from talaria.channels.http.part import HTTP
from talaria.config.load import load
from talaria.config.settings import Settings, settings_type
from talaria.core.errors import ConfigError
from talaria.parts import PARTS
from talaria.tools.part import ToolPart

DEFAULTS = settings_type(PARTS)()


@pytest.mark.parametrize(
    ("name", "text", "read", "value"),
    [
        ("POOL__MAX_AGENTS", " 4 ", lambda s: s.pool.max_agents, 4),
        ("pool__max_agents", "4", lambda s: s.pool.max_agents, 4),
        ("POOL__IDLE_TTL", "90s", lambda s: s.pool.idle_ttl, timedelta(seconds=90)),
        ("POOL__MAX_BYTES", "1MiB", lambda s: s.pool.max_bytes, 1 << 20),
        ("TOOLS__MAX_RESULT", "4096", lambda s: s.tools.max_result, 4096),
        ("TOOLS__ENABLED", "todo, files", lambda s: s.tools.enabled, ("todo", "files")),
        ("HTTP__PORT", "0", lambda s: s.of(HTTP).port, 0),
        ("HTTP__HOSTS", "a.b:443,c.d:80", lambda s: s.of(HTTP).hosts, ("a.b:443", "c.d:80")),
        ("LOG__LEVEL", "debug", lambda s: s.log.level, "debug"),
        ("AGENT__PROMPT", " kept as it is ", lambda s: s.agent.prompt, " kept as it is "),
        ("PROVIDERS__OPENAI__MAX_CONCURRENCY", "8", lambda s: s.providers["openai"].max_concurrency, 8),
        ("ALIASES__FAST", "openai/gpt-5-mini", lambda s: s.aliases, {"fast": "openai/gpt-5-mini"}),
    ],
)
def test_each_kind_of_scalar_can_come_from_the_environment(
    tmp_path: Path, name: str, text: str, read: Callable[[Settings], object], value: object
) -> None:
    assert read(load(tmp_path, {f"Talaria_{name}": text}, PARTS).settings) == value


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[pool]\nmax_agents = "many"\nidle_ttl = "5m"\n')

    pool = load(tmp_path, {"TALARIA_POOL__MAX_AGENTS": "4"}, PARTS).settings.pool

    assert (pool.max_agents, pool.idle_ttl) == (4, timedelta(minutes=5))


def test_a_name_in_the_file_is_found_by_its_variable_spelling(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[providers.My-LLM]\nbase_url = "http://a"\n')

    settings = load(tmp_path, {"TALARIA_PROVIDERS__MY_LLM__BASE_URL": "http://b"}, PARTS).settings

    assert {name: provider.base_url for name, provider in settings.providers.items()} == {
        "My-LLM": "http://b"
    }


def test_reserved_names_and_those_of_others_are_ignored(tmp_path: Path) -> None:
    environ = {
        "TALARIA_HOME": "/x",
        "TALARIA_HTTP_TOKEN": "t",
        "TALARIA_YES": "1",
        "TALARIA_POOL": "",
        "OTHER__KEY": "x",
    }

    loaded = load(tmp_path, environ, PARTS)

    assert (loaded.settings, loaded.warnings) == (DEFAULTS, ())


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "TALARIA_POOL__MAX_AGENTS",
            "many",
            'pool.max_agents is "many": expected a whole number of at least 1.',
        ),
        ("TALARIA_POOL__MAX_AGENTS", "", 'pool.max_agents is "": expected a whole number of at least 1.'),
        ("TALARIA_HTTP__PORT", "99999", 'http.port is "99999": expected a whole number from 0 to 65535.'),
        (
            "TALARIA_PROVIDERS__X",
            "y",
            'providers.x is "y": expected a key of this table after it, '
            "such as TALARIA_PROVIDERS__X__BASE_URL.",
        ),
        (
            "TALARIA_PROVIDERS__X__TIMEOUT",
            "9s",
            'providers.x.base_url is missing: expected an address such as "https://openrouter.ai/api/v1".',
        ),
        (
            "TALARIA_STORE__URL",
            "postgresql://me:pw@host",
            'store.url is "postgresql://…@host": expected an empty text for talaria.db in the home, '
            '"sqlite:///PATH", or "postgresql://USER@HOST/DATABASE"; a password in ~/.pgpass, or '
            "as USER:PASSWORD with / ? # @ % as %2F %3F %23 %40 %25.",
        ),
    ],
)
def test_a_wrong_value_names_its_variable(tmp_path: Path, name: str, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, {name: text}, PARTS)

    assert caught.value.user_text == f"{name}: {expected}"
    assert caught.value.hint == "Correct this in the environment."


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        (
            "TALARIA_POOL__MAX_AGENT",
            "pool.max_agent is not a known key and has no effect. Did you mean max_agents?",
        ),
        ("TALARIA_POOLS__X", "pools is not a known key and has no effect. Did you mean pool?"),
        ("TALARIA_TOOLS__NO_SUCH", "tools.no_such is not a known key and has no effect."),
        (
            "TALARIA_CHANNELS__TELEGRAM__TOKENENV",
            "channels.telegram.tokenenv is not a known key and has no effect. Did you mean token_env?",
        ),
    ],
)
def test_an_unknown_variable_is_a_warning(tmp_path: Path, name: str, warning: str) -> None:
    loaded = load(tmp_path, {name: "4"}, PARTS)

    assert loaded.warnings == (f"{name}: {warning}",)
    assert loaded.settings == DEFAULTS


def test_unknown_families_are_left_out_of_a_variable_too(tmp_path: Path) -> None:
    loaded = load(tmp_path, {"TALARIA_TOOLS__ENABLED": "files,magic"}, PARTS)

    assert loaded.settings.tools.enabled == ("files",)
    known = [part.name for part in PARTS if isinstance(part, ToolPart) and part.is_builtin]
    assert loaded.warnings == (
        'TALARIA_TOOLS__ENABLED: tools.enabled names "magic", which is not known, and skips it. '
        f"Known are: {', '.join(known)}.",
    )


def test_a_variable_under_a_value_of_the_file_does_not_hide_its_error(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("pool = 3\n")

    with pytest.raises(ConfigError, match=r"config\.toml line 1: pool is 3: expected a table") as caught:
        load(tmp_path, {"TALARIA_POOL__MAX_AGENTS": "4"}, PARTS)
    assert "\n" not in caught.value.user_text
