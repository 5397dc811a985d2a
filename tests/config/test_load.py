from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.config.load import Loaded, held_secrets, load
from talaria.config.settings import settings_type
from talaria.core.errors import ConfigError
from talaria.models.known import Abilities
from talaria.parts import PARTS

DEFAULTS = settings_type(PARTS)()


def write(home: Path, text: str) -> Path:
    path = home / "config.toml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_without_a_file_everything_is_default(tmp_path: Path) -> None:
    assert load(tmp_path, {}, PARTS) == load(tmp_path / "none", {}, PARTS) == Loaded(DEFAULTS, (), None)


def test_an_empty_file_is_default(tmp_path: Path) -> None:
    path = write(tmp_path, "")

    assert load(tmp_path, {}, PARTS) == Loaded(DEFAULTS, (), path)


def test_a_byte_order_mark_is_no_syntax_error(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xef\xbb\xbf[pool]\r\nmax_agents = 3\r\n")

    assert load(tmp_path, {}, PARTS).settings.pool.max_agents == 3


def test_loading_twice_shares_nothing_mutable(tmp_path: Path) -> None:
    load(tmp_path, {}, PARTS).settings.aliases["fast"] = "x/y"

    assert load(tmp_path, {}, PARTS).settings.aliases == {}


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            "[pool]\nmax_agent = 3\n",
            "line 2: pool.max_agent is not a known key and has no effect. Did you mean max_agents?",
        ),
        ("[pol]\nx = 1\n", "line 1: pol is not a known key and has no effect. Did you mean pool?"),
        (
            "max_agents = 3\n",
            "line 1: max_agents is not a known key and has no effect. Did you mean pool.max_agents?",
        ),
        ("[pool]\nzzz = 3\n", "line 2: pool.zzz is not a known key and has no effect."),
        (
            '[providers.x]\nbase_url = "http://x"\napikey = "k"\n',
            "line 3: providers.x.apikey is not a known key and has no effect. Did you mean api_key?",
        ),
        (
            '[channels.telegramm]\ntoken_env = "X"\n',
            "line 1: channels.telegramm is not a known key and has no effect. Did you mean telegram?",
        ),
        (
            "[channels.telegram]\nalowed = [1]\n",
            "line 2: channels.telegram.alowed is not a known key and has no effect. Did you mean allowed?",
        ),
        (
            '[tools]\nenabled = ["files", "filez"]\n',
            'line 2: tools.enabled names "filez", which is not known, and skips it. Did you mean files?',
        ),
        (
            '[pool]\n"\\u001b[2J" = 1\n',
            'line 2: pool."\\u001b[2J" is not a known key and has no effect.',
        ),
        (
            '[model]\nname = "m"\n',
            "line 2: model.name needs model.provider; without either, the built-in model answers.",
        ),
        (
            '[model]\nprovidr = "ollama"\nname = "m"\n',
            "line 2: model.providr is not a known key and has no effect. Did you mean provider?",
        ),
        (
            '[providers.x]\nbase_url = "http://x"\napi_key_env = "NOT_SET"\n',
            "line 3: providers.x.api_key_env names NOT_SET, which is not set.",
        ),
    ],
)
def test_what_has_no_effect_is_a_warning_with_the_nearest_key(
    tmp_path: Path, text: str, warning: str
) -> None:
    write(tmp_path, text)

    assert load(tmp_path, {}, PARTS).warnings == (f"config.toml {warning}",)


def test_a_name_with_its_provider_in_it_needs_no_other(tmp_path: Path) -> None:
    write(tmp_path, '[model]\nname = "ollama/m"\n')

    assert load(tmp_path, {}, PARTS).warnings == ()


def test_literal_and_named_secrets_are_collected_for_the_redactor(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        [providers.a]
        base_url = "https://me:hunter22@a.example"
        api_key = "literal-key"
        [providers.b]
        base_url = "https://b.example"
        api_key_env = "B_KEY"
        """,
    )

    loaded = load(tmp_path, {"B_KEY": "named-key"}, PARTS)

    assert {secret.value for secret in loaded.secrets} == {"literal-key", "named-key", "hunter22"}
    assert "key" not in repr(loaded)


@pytest.mark.parametrize("url", ["https://me:hunter22@a.example", "postgresql://me:hunter22@h:1,[::1]:2/d"])
def test_a_password_in_an_address_is_a_secret_of_the_file(url: str, tmp_path: Path) -> None:
    write(tmp_path, f'[agent]\nprompt = "{url}"\n')
    assert held_secrets(load(tmp_path, {}, PARTS).settings) == [("agent", "prompt")]


def test_a_text_that_is_nearly_an_address_holds_no_secret(tmp_path: Path) -> None:
    write(tmp_path, '[agent]\nprompt = "Write to http://[me@example"\n')
    loaded = load(tmp_path, {}, PARTS)
    assert (held_secrets(loaded.settings), loaded.secrets) == ([], frozenset())


def test_a_readable_file_with_a_secret_is_a_warning_with_the_command(tmp_path: Path) -> None:
    path = write(tmp_path, '[providers.a]\nbase_url = "https://a.example"\napi_key = "k"\n')
    path.chmod(0o644)

    assert load(tmp_path, {}, PARTS).warnings == (
        f"config.toml holds a secret and is open to other users (mode 0644). Close it with: chmod 600 {path}",
    )


def test_a_readable_file_without_secrets_is_fine(tmp_path: Path) -> None:
    write(tmp_path, "[pool]\nmax_agents = 3\n").chmod(0o644)

    assert load(tmp_path, {"TALARIA_PROVIDERS__A__BASE_URL": "http://a"}, PARTS).warnings == ()


TABLES = ["[pool]\n", "[providers.x]\n", "[tools]\n", "[[a]]\n"]
PAIRS = ["max_agents = ", "enabled = ", "api_key = ", "a.b = ", "pool = "]
PIECES = [*"[]{},1#\x1bé\n\n", "true", '"x"', "'y'", '"""', "2024-01-01"]
WORDS = st.sampled_from([*TABLES, *PAIRS, *PIECES])


@given(words=st.lists(WORDS, max_size=12))
def test_no_file_is_worse_than_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, words: list[str]
) -> None:
    home = tmp_path_factory.getbasetemp()
    write(home, "".join(words))

    try:
        load(home, {}, PARTS)
    except ConfigError as error:
        assert error.user_text.startswith("config.toml line ")
        assert "\x1b" not in str(error)


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("[budgets]\nper_day_usd = 5\n", True),
        ("", False),
        ('[budgets]\nper_day_usd = 5\n[prices."mine/*"]\ninput = 1\noutput = 2\n', False),
    ],
)
def test_a_cap_over_a_model_of_unknown_price_is_a_warning(tmp_path: Path, text: str, is_told: bool) -> None:
    provider = '[providers.mine]\nbase_url = "http://127.0.0.1/v1"\n'
    write(tmp_path, f'[model]\nprovider = "mine"\nname = "m"\n{provider}{text}')

    warned = (
        'config.toml line 6: budgets caps spending, so the model is refused until [prices."mine/m"] is set.'
    )
    assert load(tmp_path, {}, PARTS).warnings == ((warned,) if is_told else ())


def test_a_price_needs_both_of_its_sides_and_a_whole_name(tmp_path: Path) -> None:
    write(tmp_path, '[prices."mine/m"]\ninput = 1\n[prices.mine]\ninput = 1\noutput = 1\n')

    with pytest.raises(ConfigError) as error:
        load(tmp_path, {}, PARTS)
    assert error.value.user_text == (
        'config.toml line 1: prices."mine/m".output is missing: expected dollars for a million tokens, '
        "such as 2.5, or 0.\n"
        'config.toml line 3: prices has the name "mine": expected a provider and a model, such as '
        '"openai/gpt-5" or "mine/*".'
    )


def test_what_models_can_do_is_written_by_name_or_pattern(tmp_path: Path) -> None:
    text = '[models."mine/*"]\ncontext = 128000\nimages = true\n[models."openrouter/a/b"]\ntools = false\n'
    write(tmp_path, text)
    settings = load(tmp_path, {}, PARTS).settings
    assert settings.models == {
        "mine/*": Abilities(128_000, images=True),
        "openrouter/a/b": Abilities(tools=False),
    }
