"""Each wrong value with the exact line that an operator reads."""

from __future__ import annotations

import sys
import zoneinfo
from collections.abc import Iterator
from pathlib import Path

import pytest

from talaria.config.load import load
from talaria.core.errors import ConfigError
from talaria.parts import PARTS

DURATIONS = 'a duration such as "500ms", "30s", "1h30m" or "7d"'
SIZES = 'a size such as 65536, "64KiB", "256MiB" or "1GB"'
NAMES = "1 to 64 letters, digits, dots, underscores or dashes"
ADDRESS = 'an address such as "https://openrouter.ai/api/v1"'
LEVELS = 'one of "debug", "info", "warning", "error"'
KEPT = f'"forever" or {DURATIONS}'
FALLBACK = 'a list of tables, each such as { provider = "…", name = "…" }'

WRONG = {
    FALLBACK: ['model.fallback = "x"', 'model.fallback = ["x"]'],
    "a whole number from 0 to 20": ["providers.openai.max_retries = 21"],
    DURATIONS: [
        "providers.openai.first_token = 3",
        "pool.idle_ttl = 3600",
        'pool.idle_ttl = "soon"',
        'pool.idle_ttl = "99999999999999w"',
        'shutdown.deadline = "\\u001b[2J"',
    ],
    "a number of dollars, 0 for no cap": ["budgets.per_day_usd = -1", 'budgets.per_session_usd = "5"'],
    'a list of a channel and an id each, "CHANNEL:123456789" or "http:token:NAME"': [
        'people.anna.ids = ["1234"]',
        'people.anna.ids = ["http:a b"]',
    ],
    "true or false": ['models."a/b".images = 1'],
    "a whole number of at least 1": [
        'models."a/b".context = 0',
        'pool.max_agents = "many"',
        "pool.max_agents = 0",
        "pool.max_agents = true",
        "pool.max_agents = 1.5",
        "pool.max_agents = [1]",
        "agent.max_steps = -1",
    ],
    KEPT: ['retention.ended_sessions = "never"'],
    f"{KEPT}, above zero": ['retention.ended_sessions = "0s"'],
    f"{DURATIONS}, above zero": ['pool.idle_ttl = "0s"'],
    f"{SIZES}, above zero": ["pool.max_bytes = 0"],
    SIZES: ["pool.max_bytes = false", 'pool.max_bytes = "1XB"'],
    NAMES: ['agent.name = "a b"', 'agent.name = ""', 'agent.name = "main\\n"'],
    'a text in quotes, such as "text"': ["agent.prompt = 3"],
    'a time zone such as "Europe/Berlin" (did you mean Europe/Berlin?)': ['agent.timezone = "Europe/Berln"'],
    'a time zone such as "Europe/Berlin"': ['agent.timezone = "../etc/passwd"'],
    'one of "none", "low", "medium", "high"': ['model.reasoning = "max"', "model.reasoning = 1"],
    "a whole number from 0 to 65535": ["http.port = 65536"],
    'a host name or address such as "127.0.0.1", without a port': ['http.host = "localhost:80"'],
    'texts of the form "name:port", such as "talaria.example.org:443"': ['http.hosts = ["a.example"]'],
    'exact origins such as "https://app.example.org", without a path, a final slash or a *': [
        'http.origins = ["*"]',
        'http.origins = ["null"]',
        'http.origins = ["https://a.example/"]',
        'http.origins = ["https://*.example"]',
        'http.origins = ["a.example:80"]',
        'http.origins = ["https://a.example:65536"]',
        'http.origins = ["https://a.example", "https://b.example/x"]',
    ],
    'origins as browsers send them: without the usual port, "https://a.example"': [
        'http.origins = ["https://a.example:443"]'
    ],
    'the name of a header that holds the id of a chat, such as "X-OpenWebUI-Chat-Id"': [
        'http.session_header = ""',
        'http.session_header = "X Chat"',
        'http.session_header = "Authorization"',
        'http.session_header = "x-talaria-tools"',
    ],
    LEVELS: ['log.level = "loud"'],
    'a time of day from "00:00" to "23:59"': ['sessions.daily_at = "25:00"'],
    "some text": ['aliases.fast = ""'],
    "a table": ["providers.x = 3", "pool = 3"],
    ADDRESS: ['providers.x.base_url = "ftp://x"', 'providers.x.base_url = "http://[::1"'],
}
# What is shown otherwise than it was written, or not at all.
SERVER = (
    'an empty text for talaria.db in the home, "sqlite:///PATH", or "postgresql://USER@HOST/DATABASE"; '
    "a password in ~/.pgpass, or as USER:PASSWORD with / ? # @ % as %2F %3F %23 %40 %25"
)
TOLD = {
    'model.fallback = [{ provider = "a" }]': f"model.fallback is [a table]: expected {FALLBACK}",
    'model.fallback = [{ provider = "a", name = 3 }]': f"model.fallback is [a table]: expected {FALLBACK}",
    'prices."a/b" = { input = nan, output = 1 }': 'prices."a/b".input is nan: expected a number of dollars, '
    "0 or more, such as 2.5",
    "pool.max_agents = {}": "pool.max_agents is a table: expected a whole number of at least 1",
    "log.level = 2024-01-01": f"log.level is a date or time: expected {LEVELS}",
    "http.hosts = [1, 2, 3, 4, 5, 6, 7, 8, 9]": "http.hosts is [1, 2, 3, 4, 5, 6, 7, 8, …]: "
    'expected a list of texts, such as ["one", "two"]',
    'http.token_env = "s3cret-value"': "http.token_env has a wrong value (not shown): expected the name of a "
    "variable of the environment, such as OPENROUTER_API_KEY, not its value",
    'store.url = "mysql://me:pw@host/db"': 'store.url is "mysql://…@host/db": expected an empty text for '
    'talaria.db in the home, "sqlite:///PATH", or "postgresql://USER@HOST/DATABASE"',
    'store.url = "postgresql://me:pw@host"': f'store.url is "postgresql://…@host": expected {SERVER}',
    'store.url = "postgresql://me:p/w@host/db"': f'store.url is "postgresql://…@host/db": expected {SERVER}',
    'cluster.lease = "500ms"': "cluster.lease is out of range: expected a duration from 1s to 10m",
    'cluster.takeover_after = "5s"': "cluster.takeover_after is shorter than cluster.lease: "
    "expected a longer duration",
    'aliases."a b" = "x/y"': f'aliases has the name "a b": expected {NAMES}',
    "providers.x.timeout = '1s'": f"providers.x.base_url is missing: expected {ADDRESS}",
}


def failure(home: Path, text: str, environ: dict[str, str] | None = None) -> ConfigError:
    (home / "config.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(home, environ or {}, PARTS)
    return caught.value


@pytest.mark.parametrize(
    ("pair", "expected"), [(pair, expected) for expected, pairs in WRONG.items() for pair in pairs]
)
def test_a_wrong_value_names_file_line_key_and_what_may_stand_there(
    tmp_path: Path, pair: str, expected: str
) -> None:
    error = failure(tmp_path, f"# first\n{pair}\n")

    key, _, raw = pair.partition(" = ")
    assert error.user_text == f"config.toml line 2: {key} is {raw}: expected {expected}."
    assert error.hint == f"Correct this in {tmp_path / 'config.toml'}."


@pytest.mark.parametrize("pair", TOLD)
def test_what_cannot_be_shown_as_it_is_written_is_told_too(tmp_path: Path, pair: str) -> None:
    assert failure(tmp_path, f"# first\n{pair}\n").user_text == f"config.toml line 2: {TOLD[pair]}."


def test_all_problems_come_at_once_in_the_order_of_the_file_then_the_environment(tmp_path: Path) -> None:
    text = '[log]\nlevel = 1\n\n[pool]\nmax_agents = 0\nidle_ttl = "x"\n'

    error = failure(tmp_path, text, {"TALARIA_HTTP__PORT": "-1"})

    assert [row.partition(" is ")[0] for row in error.user_text.splitlines()] == [
        "config.toml line 2: log.level",
        "config.toml line 5: pool.max_agents",
        "config.toml line 6: pool.idle_ttl",
        "TALARIA_HTTP__PORT: http.port",
    ]
    assert error.hint == f"Correct these in {tmp_path / 'config.toml'} and the environment."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[pool\nmax = 1", "config.toml line 1, column 6: not valid TOML: expected ']'"),
        ("[pool]\nmax_agents = many\n", "config.toml line 2, column 14: not valid TOML: invalid value."),
        ("a = 1\nb = 2\na = 3\n", "config.toml line 3, column 6: not valid TOML: cannot overwrite a value."),
        ("a = 1\nb = [1,\n", "config.toml line 2, at the end of the file: not valid TOML: "),
    ],
)
def test_broken_toml_names_line_and_column(tmp_path: Path, text: str, expected: str) -> None:
    error = failure(tmp_path, text)

    assert error.user_text.startswith(expected)
    assert str(tmp_path / "config.toml") in error.hint


def test_a_file_in_another_encoding_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes('[agent]\nprompt = "caf\xe9"\n'.encode("latin-1"))

    with pytest.raises(ConfigError, match=r"config\.toml line 2: not valid UTF-8"):
        load(tmp_path, {}, PARTS)


def test_a_config_that_is_a_folder_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()

    with pytest.raises(ConfigError, match=r"config\.toml cannot be read: Is a directory"):
        load(tmp_path, {}, PARTS)


PROVIDER = '[providers.openrouter]\nbase_url = "https://x.example"\n'


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            'provider = "openruter"\nname = "m"',
            'line 4: model.provider is "openruter": expected a table under [providers] or a known provider '
            '("openrouter", "openai", "anthropic", "deepseek", "moonshot", "groq", "ollama", "scripted", '
            '"local") '
            "(did you mean openrouter?).",
        ),
        (
            'provider = "openrouter"',
            'line 3: model.name is missing: expected the model\'s name, such as "gpt-5".',
        ),
        (
            'provider = "local"\nname = "m"',
            'line 5: model.name is "m": expected a built-in model '
            '("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "smollm2-135m").',
        ),
    ],
)
def test_the_models_parts_must_fit_together(tmp_path: Path, model: str, expected: str) -> None:
    error = failure(tmp_path, f"{PROVIDER}[model]\n{model}\n")

    assert error.user_text == f"config.toml {expected}"


def test_a_provider_may_be_called_local(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        '[providers.local]\nbase_url = "http://127.0.0.1:11434/v1"\n[model]\nprovider = "local"\nname = "m"\n'
    )

    assert load(tmp_path, {}, PARTS).settings.model.provider == "local"


@pytest.mark.parametrize("pair", ['api_key_env = "sk-123-456"', "api_key = ['sk-123-456']"])
def test_a_misplaced_key_is_never_shown(tmp_path: Path, pair: str) -> None:
    error = failure(tmp_path, f"{PROVIDER}{pair}\n")

    assert error.user_text.startswith("config.toml line 3: providers.openrouter.api_key")
    assert "has a wrong value (not shown): expected" in error.user_text
    assert "sk-123" not in str(error)


@pytest.fixture
def no_zones(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in {"tzdata", *(name for name in sys.modules if name.startswith("tzdata."))}:
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails: the package has zones too
    zoneinfo.reset_tzpath(to=())
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath()


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("u:s3cret@h/v1", "…@h/v1"),
        ("htp://u:s3/cret@h/v1", "htp://…@h/v1"),
        ("htp://u:s3@cret@h/v1", "htp://…@h/v1"),
        ("https://u:s3/cret@h/v1", "https://…@h/v1"),
        ("https:/h/v1?key=s3cret", "https:/h/v1?…"),
        ("https://h:s3cret/v1", "https://h:…/v1"),
        ("https://h:99999/v1", "https://h:99999/v1"),
        ("h.example:8080/v1", "h.example:8080/v1"),
    ],
)
def test_credentials_in_a_mistyped_address_are_not_shown(tmp_path: Path, address: str, shown: str) -> None:
    error = failure(tmp_path, f'[providers.x]\nbase_url = "{address}"\n')
    assert f'base_url is "{shown}": expected' in error.user_text


@pytest.mark.usefixtures("no_zones")
def test_a_machine_without_zones_says_so(tmp_path: Path) -> None:
    error = failure(tmp_path, '[agent]\ntimezone = "Europe/Berlin"\n')

    assert "this machine has no time zone database (install tzdata)" in error.user_text


@pytest.mark.parametrize(
    "text",
    [
        '[model]\nprovider = "openai"\nname = "gpt-5"\n',
        '[model]\nprovider = "scripted"\n',
        '[providers.openai]\ntimeout = "30s"\n[model]\nprovider = "openai"\nname = "gpt-5"\n',
    ],
)
def test_a_known_provider_needs_no_table_of_its_own(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.toml").write_text(text)

    assert load(tmp_path, {}, PARTS).settings.model.provider in text


def test_an_identity_is_one_person(tmp_path: Path) -> None:
    ids = 'ids = ["http:token:a"]'
    (tmp_path / "config.toml").write_text(f"[people.anna]\n{ids}\n[people.ben]\n{ids}\n")
    with pytest.raises(ConfigError, match=r"people has http:token:a twice: expected one person, anna or ben"):
        load(tmp_path, {}, PARTS)


def test_a_person_has_a_name_that_can_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[people.".."]\nids = ["http:token:a"]\n')
    with pytest.raises(ConfigError, match="people has the name"):
        load(tmp_path, {}, PARTS)
