"""`talaria setup` against a model server that wants its key and has two models only."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.conftest import Serve, Talaria, started
from cli.terminal import Terminal
from support.model_programs import MODEL, ollama, serving
from support.programs import needs
from talaria.cli.setup_plan import find_foreign_keys
from talaria.config.model_choice import Candidate, is_like_address, read_address
from talaria.models.local.weights import DEFAULT_MODEL

KEY = "sk-right-0123456789"
GOOD, OTHER = "good-1", "good-2"
needs_tmux = needs("tmux")


@pytest.fixture(scope="module")
def strict_url() -> Iterator[str]:
    with started("model_server", "--key", KEY, "--model", GOOD, "--model", OTHER) as url:
        yield url


@pytest.fixture
def config(home: Path) -> Path:
    path = home / "config.toml"
    path.write_text("# by hand\n[pool]\nmax_agents = 3 # few\n")
    return path


@pytest.fixture
def environ(environ: dict[str, str]) -> dict[str, str]:
    """Without the keys of whoever runs the tests."""
    return {name: value for name, value in environ.items() if not name.endswith("_API_KEY")}


def mine(url: str) -> tuple[str, ...]:
    return ("--provider", "mine", "--base-url", url, "--key-env", "MY_KEY", "--yes")


def test_without_questions(talaria: Talaria, config: Path, strict_url: str) -> None:
    done = talaria("setup", *mine(strict_url), "--model", GOOD, env={"MY_KEY": KEY})
    assert done.returncode == 0, done.stderr
    assert f"mine/{GOOD} answered in" in done.stdout
    assert "one call: " in done.stdout
    assert "Next: talaria serve" in done.stdout
    assert config.read_text() == (
        "# by hand\n[pool]\nmax_agents = 3 # few\n\n"
        f'[model]\nprovider = "mine"\nname = "{GOOD}"\n\n'
        f'[providers.mine]\nbase_url = "{strict_url}"\napi_key_env = "MY_KEY"\n'
    )
    assert talaria("ask", "hello", env={"MY_KEY": KEY}).stdout.strip() == "You said: hello"


@pytest.mark.parametrize(
    ("options", "key", "said"),
    [
        (("--model", GOOD), "sk-wrong", "did not accept the key (HTTP 401)"),
        (("--model", "good-11"), KEY, f"no model named good-11 (HTTP 404). It has: {GOOD}, {OTHER}."),
        (("--model", GOOD, "--base-url", "http://127.0.0.1:9/v1"), KEY, "or correct --base-url"),
        (("--model", GOOD, "--key-env", "NOT_SET"), KEY, "export NOT_SET=…"),
        ((), KEY, "With --yes, name --provider and --model."),
        (("--model", "m", "--base-url", "", "--provider", "openia"), KEY, "Did you mean openai?"),
        (("--model", "m", "--base-url", "", "--provider", "own"), KEY, "add --base-url URL"),
        (
            ("--model", "m", "--base-url", "", "--provider", "http://127.0.0.1:9999/v1"),
            KEY,
            "Write: --provider NAME --base-url http://127.0.0.1:9999/v1",
        ),
    ],
)
def test_what_does_not_work_is_not_written(
    talaria: Talaria, config: Path, strict_url: str, options: tuple[str, ...], key: str, said: str
) -> None:
    before = config.read_text()
    done = talaria("setup", *mine(strict_url), *options, env={"MY_KEY": key})
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "/model" not in done.stderr, "that is for chats"
    assert len(done.stderr.strip().splitlines()) == 2, "one sentence and one action"
    assert config.read_text() == before


def test_nobody_to_answer_is_told_what_to_write(talaria: Talaria, config: Path) -> None:
    done = talaria("setup")
    assert done.returncode == 2
    assert "name --provider and --model, and --yes" in done.stderr


def test_a_known_provider_s_key_goes_to_no_other_address(
    talaria: Talaria, config: Path, strict_url: str
) -> None:
    options = ("--provider", "openai", "--base-url", strict_url, "--model", GOOD, "--yes")
    done = talaria("setup", *options, env={"OPENAI_API_KEY": KEY})
    assert done.returncode == 1
    assert "did not accept the key" in done.stderr


def test_a_file_with_a_wrong_model_is_set_right(talaria: Talaria, config: Path, strict_url: str) -> None:
    config.write_text('[model]\nprovider = "mine"\n\n[providers.mine]\napi_key_env = "MY_KEY"\n')
    assert talaria("setup", *mine(strict_url), "--model", GOOD, env={"MY_KEY": KEY}).returncode == 0
    assert talaria("config", "get", "model.name").stdout.strip() == GOOD


def test_a_broken_file_is_told_before_anything_is_asked(talaria: Talaria, config: Path) -> None:
    config.write_text("[pool\n")
    done = talaria("setup", stdin="1\n")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "line 1" in done.stderr


def test_a_second_setup_changes_the_key_for_all_sessions(
    talaria: Talaria, config: Path, strict_url: str, serve: Serve
) -> None:
    config.write_text(
        f'[model]\nprovider = "mine"\nname = "{GOOD}"\n[providers.mine]\nbase_url = "{strict_url}"\n'
        'api_key = "sk-wrong-0123456789"\n[prices."mine/*"]\ninput = 100\noutput = 100\n'
    )
    config.chmod(0o600)
    serve()
    done = talaria("setup", "--provider", "mine", "--model", GOOD, stdin=f"{KEY}\ny\n0\n")
    assert done.returncode == 0, done.stdout
    assert "did not accept the key (HTTP 401)" in done.stdout
    assert "wants a key" not in done.stdout
    assert " out, $0.0" in done.stdout, "the configured price"
    assert "takes it up within seconds, for all sessions, from the next message on." in done.stdout


def test_what_is_no_address_is_asked_again(talaria: Talaria, config: Path, strict_url: str) -> None:
    answers = f"no address\n{strict_url}\n{KEY}\n{GOOD}\ny\n"
    done = talaria("setup", "--provider", "mine", stdin=answers)
    assert done.returncode == 0, done.stderr
    assert "expected an address such as" in done.stdout + done.stderr
    assert f'base_url = "{strict_url}"' in config.read_text()


def test_an_address_without_its_end_is_completed(talaria: Talaria, config: Path, strict_url: str) -> None:
    bare = strict_url.removesuffix("/v1").removeprefix("http://")
    done = talaria("setup", *mine(bare), "--model", GOOD, env={"MY_KEY": KEY})
    assert done.returncode == 0, done.stderr
    assert f"at {strict_url}: that address is used" in done.stdout
    assert f'base_url = "{strict_url}"' in config.read_text()


def test_an_address_where_nothing_is_can_be_corrected(
    talaria: Talaria, config: Path, strict_url: str
) -> None:
    options = ("--provider", "mine", "--base-url", f"{strict_url}/wrong/v1", "--model", GOOD)
    done = talaria("setup", *options, stdin=f"{KEY}\n{strict_url}\n{GOOD}\ny\n")
    assert done.returncode == 0, done.stderr
    assert "(HTTP 404)" in done.stdout
    assert f'base_url = "{strict_url}"' in config.read_text()


def test_a_server_that_is_gone_leads_back_to_the_choice(
    talaria: Talaria, config: Path, strict_url: str
) -> None:
    """The model that was meant for it is forgotten with it."""
    with socket.socket() as ollama:
        if ollama.connect_ex(("127.0.0.1", 11434)) == 0:
            pytest.skip("Ollama runs on this machine")
    config.write_text(
        f'[model]\nprovider = "mine"\nname = "{GOOD}"\n'
        f'[providers.mine]\nbase_url = "{strict_url}"\napi_key_env = "MY_KEY"\n'
    )
    done = talaria("setup", "--provider", "ollama", "--model", "x", stdin="1\n", env={"MY_KEY": KEY})
    assert done.returncode == 0, done.stderr
    assert "ollama (model x) cannot be reached" in done.stdout
    assert f"mine/{GOOD} answered" in done.stdout


def test_what_is_written_is_shown_by_its_keys(talaria: Talaria, config: Path, strict_url: str) -> None:
    config.write_text('[model]\nprovider = "mine"\nname = "old"\n[providers.mine]\napi_key = "sk-old"\n')
    done = talaria("setup", *mine(strict_url), "--model", GOOD, env={"MY_KEY": KEY})
    written = done.stdout.partition("Written to ")[2].splitlines()[1:6]
    assert written == [
        f'  model.name = "{GOOD}"',
        f'  providers.mine.base_url = "{strict_url}"',
        "  providers.mine.api_key (removed)",
        '  providers.mine.api_key_env = "MY_KEY"',
        "",
    ]
    again = talaria("setup", *mine(strict_url), "--model", GOOD, env={"MY_KEY": KEY})
    assert "config.toml stays as it was." in again.stdout
    assert talaria("ask", "hello", env={"MY_KEY": KEY}).stdout.strip() == "You said: hello"


def priced(url: str) -> tuple[str, ...]:
    named = ("--provider", "openai", "--base-url", url, "--key-env", "MY_KEY")
    return (*named, "--model", "gpt-5-mini", "--yes")


@pytest.mark.parametrize(
    ("before", "options", "cap"),
    [
        ("", (), "5.0"),
        ("", ("--daily-cap", "2.5"), "2.5"),
        ("", ("--daily-cap", "0"), None),
        ("[budgets]\nper_day_usd = 7.0\n", (), "7.0"),
        ("[budgets]\nper_day_usd = 7.0\n", ("--daily-cap", "9"), "9.0"),
        ("[budgets]\nper_session_usd = 1.0\n", (), None),
    ],
)
def test_a_model_that_costs_money_gets_a_daily_cap(
    talaria: Talaria, config: Path, model_url: str, before: str, options: tuple[str, ...], cap: str | None
) -> None:
    config.write_text(before)
    done = talaria("setup", *priced(model_url), *options, env={"MY_KEY": KEY})
    assert done.returncode == 0, done.stderr
    assert (f"per_day_usd = {cap}\n" if cap else "per_day_usd") in config.read_text() or cap is None
    assert ("per_day_usd" in config.read_text()) is (cap is not None)
    shown = f"Spend cap: ${float(cap):g} a day." if cap else "Spend cap: "
    assert shown in done.stdout
    assert "config set budgets.per_day_usd 10" in done.stdout


def test_a_model_without_a_price_gets_no_cap(talaria: Talaria, config: Path, strict_url: str) -> None:
    done = talaria("setup", *mine(strict_url), "--model", GOOD, env={"MY_KEY": KEY})
    assert "Spend cap: none, because the price of this model is not known." in done.stdout
    assert "budgets" not in config.read_text()
    free = talaria("setup", "--provider", "local", "--yes")
    assert "Spend cap" not in free.stdout


@pytest.mark.parametrize(
    ("typed", "address", "name"),
    [
        ("http://127.0.0.1:9999/v1/", "http://127.0.0.1:9999/v1", "local-9999"),
        ("127.0.0.1:8123", "http://127.0.0.1:8123", "local-8123"),
        ("localhost", "http://localhost", "local-server"),
        ("192.168.0.7:8000/v1", "http://192.168.0.7:8000/v1", "192-168-0-7-8000"),
        ("8.8.4.4/v1", "https://8.8.4.4/v1", "8-8-4-4"),
        ("api.example.com/v1", "https://api.example.com/v1", "example"),
        ("https://api.openai.com/v1", "https://api.openai.com/v1", "openai"),
        ("https://openai.example/v1", "https://openai.example/v1", "openai-example"),
    ],
)
def test_an_address_names_its_provider(typed: str, address: str, name: str) -> None:
    assert is_like_address(typed)
    assert read_address(typed) == address
    assert Candidate.at(address).provider == name


def test_the_built_in_model_needs_no_call(talaria: Talaria, config: Path) -> None:
    done = talaria("setup", "--provider", "local", "--yes")
    assert done.returncode == 0, done.stderr
    assert f'provider = "local"\nname = "{DEFAULT_MODEL}"\n' in config.read_text()
    done = talaria("setup", "--provider", "local", "--model", "smollm2-135m", "--yes")
    assert done.returncode == 0, done.stderr
    assert "model pull smollm2-135m" in done.stdout
    assert 'provider = "local"\nname = "smollm2-135m"\n' in config.read_text()
    done = talaria("setup", "--provider", "local", "--model", "nobody", "--yes")
    assert done.returncode == 1
    assert "There is no built-in model named nobody." in done.stderr


def test_keys_of_other_tools_are_found_and_left_alone(tmp_path: Path) -> None:
    files = {
        ".codex/auth.json": {"OPENAI_API_KEY": "sk-codex", "tokens": {"access_token": "oauth"}},
        ".config/io.datasette.llm/keys.json": {"openai": "sk-llm", "// Note": "x", "groq": "gsk"},
        ".local/share/opencode/auth.json": {
            "anthropic": {"type": "oauth", "access": "theirs"},
            "openrouter": {"type": "api", "key": "sk-or"},
        },
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / ".hermes").mkdir()
    (tmp_path / ".hermes/.env").write_text(
        "# x\nexport DEEPSEEK_API_KEY='sk-ds' # mine\nOTHER=1\nANTHROPIC_API_KEY=\n"
    )
    found = find_foreign_keys(tmp_path)
    assert [(each.where.split()[2], each.provider, each.key) for each in found] == [
        ("Codex", "openai", "sk-codex"),
        ("llm", "openai", "sk-llm"),
        ("llm", "groq", "gsk"),
        ("opencode", "openrouter", "sk-or"),
        ("Hermes", "deepseek", "sk-ds"),
    ]
    assert "sk-codex" not in repr(found)
    for name in files:
        (tmp_path / name).write_text("{ not json")
    assert [each.where for each in find_foreign_keys(tmp_path)] == ["key of Hermes in ~/.hermes/.env"]


@pytest.fixture
def setup(terminal: Terminal, home: Path) -> Terminal:
    """A terminal in which it asks which one."""
    terminal.start(sys.executable, "-m", "talaria", "setup", "--home", str(home))
    return terminal


def choose(terminal: Terminal, shown: str) -> None:
    screen = terminal.until("Looking for keys and model servers", "Which one")
    terminal.send(next(line.split()[0] for line in screen.splitlines() if shown in line))


@needs_tmux
def test_in_a_terminal_what_was_wrong_is_asked_again(config: Path, setup: Terminal, strict_url: str) -> None:
    setup.until("Which one")
    setup.send("banana")
    setup.until("Type a number from 1 to ", "Which one")
    choose(setup, "an address of your own")
    setup.until("Provider:")
    setup.send("mine")
    setup.until("Address of mine")
    setup.send("http://127.0.0.1:9/v1")
    setup.until("Key of mine (not shown; empty: none):")
    setup.press("Enter")
    setup.until("cannot be reached", "correct the address", "[http://127.0.0.1:9/v1]:")
    setup.send(strict_url)
    setup.until("mine wants a key (HTTP 401).", "Type the right key", "Key of mine (not shown):")
    setup.send("sk-wrong-one")
    setup.until("mine did not accept the key (HTTP 401).", "Type the right key", "Key of mine (not shown):")
    setup.send(KEY)
    setup.until(f"Models of mine: {GOOD}, {OTHER}", "Which model:")
    setup.send("nobody")
    screen = setup.until("no model named nobody", "Name another model", "Which model:")
    assert "[y/N]" not in screen, "no key is written before it has worked"
    setup.send(OTHER)
    setup.until(f"mine/{OTHER} answered", "[y/N]:")
    setup.send("y")
    screen = setup.until('providers.mine.api_key = "(not shown)"', "LEFT WITH 0")
    assert KEY not in screen
    assert "sk-wrong" not in screen
    assert screen.count("[y/N]") == 1
    assert f'api_key = "{KEY}"' in config.read_text()
    assert config.stat().st_mode & 0o777 == 0o600
    assert config.read_text().startswith("# by hand\n[pool]\nmax_agents = 3 # few\n")


@needs_tmux
def test_in_a_terminal_an_address_is_taken_for_one(config: Path, setup: Terminal, strict_url: str) -> None:
    bare = strict_url.removesuffix("/v1").removeprefix("http://")
    name = f"local-{bare.rpartition(':')[2]}"
    choose(setup, "an address of your own")
    setup.until("Provider:")
    setup.send(bare)
    setup.until(f"Taken as http://{bare}", f"It is called {name} here.", f"Key of {name}")
    setup.send(KEY)
    setup.until(f"It lists its models at {strict_url}", "Which model:")
    setup.send(GOOD)
    setup.until("answered", "[y/N]:")
    setup.send("n")
    variable = name.upper().replace("-", "_") + "_API_KEY"
    setup.until("The key was only tried, and is written nowhere.", f"export {variable}=…", "LEFT WITH 0")
    assert KEY not in config.read_text()
    assert f'base_url = "{strict_url}"\napi_key_env = "{variable}"' in config.read_text()


@pytest.fixture
def configured(config: Path, strict_url: str) -> Path:
    config.write_text(
        f'[model]\nprovider = "mine"\nname = "{GOOD}"\n\n'
        f'[providers.mine]\nbase_url = "{strict_url}"\napi_key_env = "MY_KEY"\n'
    )
    return config


@needs_tmux
def test_what_is_used_now_comes_first_and_wants_its_key_only(configured: Path, setup: Terminal) -> None:
    screen = setup.until("Which one [1]:")
    first = next(line for line in screen.splitlines() if line.startswith("  1  "))
    assert first.split() == ["1", f"mine/{GOOD}", "(now", "used)"]
    setup.press("Enter")
    setup.until("Key of mine (not shown):")
    setup.send(KEY)
    assert "another program" not in setup.until(f"mine/{GOOD} answered", "[y/N]:")
    before = configured.read_text()
    setup.send("n")
    setup.until("config.toml stays", "LEFT WITH 0")
    assert configured.read_text() == before


@pytest.fixture
def slow_config(config: Path) -> Iterator[Path]:
    with started("model_server", "--latency", "0.5") as url:
        config.write_text(f'[model]\nprovider = "slow"\nname = "x"\n[providers.slow]\nbase_url = "{url}"\n')
        yield config


@needs_tmux
def test_in_a_terminal_a_line_is_shown_while_it_is_tried(slow_config: Path, setup: Terminal) -> None:
    setup.until("Which one [1]:")
    setup.press("Enter")
    assert "Trying" not in setup.until("slow/x answered in", "LEFT WITH 0")
    setup.until_written("Trying slow/x … 0 s of 30")


@pytest.fixture
def codex(config: Path, tmp_path: Path) -> Path:
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex/auth.json").write_text(json.dumps({"OPENAI_API_KEY": "sk-codex-secret"}))
    return config


@needs_tmux
def test_another_tool_s_key_is_named_and_not_used_by_default(codex: Path, setup: Terminal) -> None:
    if "  1  openai" in setup.until("key of Codex in", "Which one"):  # no server runs on this machine
        setup.press("Enter")
        setup.until("Which one:\nWhich one:", "Which one:")
    setup.press("C-c")
    assert "sk-codex-secret" not in setup.until("LEFT WITH 130")
    assert codex.read_text() == "# by hand\n[pool]\nmax_agents = 3 # few\n"


def test_a_server_with_a_small_context_is_told_with_the_command_that_raises_it(
    talaria: Talaria, config: Path
) -> None:
    with serving(ollama(4096)) as url:
        words = ("--provider", "mine", "--base-url", url, "--model", MODEL)
        done = talaria("setup", *words, "--yes")
        assert done.returncode == 0, done.stderr
        assert f"Ollama has loaded {MODEL} with a context of 4,096 tokens" in done.stdout
        assert "\n  OLLAMA_CONTEXT_LENGTH=16384 ollama serve\n" in done.stdout
        checked = talaria("doctor").stdout
        assert f"Ollama has loaded {MODEL} with a context of 4,096 tokens" in checked
        assert "OLLAMA_CONTEXT_LENGTH=16384 ollama serve" in checked
    with serving(ollama(32_768)) as url:
        done = talaria("setup", "--provider", "mine", "--base-url", url, "--model", MODEL, "--yes")
        assert "OLLAMA_CONTEXT_LENGTH" not in done.stdout
        assert "Ollama runs qwen3:8b with 32,768 tokens." in talaria("doctor").stdout
