"""`talaria setup` against a model server that wants its key and has two models only."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.conftest import Talaria, started
from cli.terminal import Terminal
from talaria.cli.setup_plan import find_foreign_keys

KEY = "sk-right-0123456789"
GOOD, OTHER = "good-1", "good-2"


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
        (("--model", "nobody"), KEY, "does not know this model or address (HTTP 404)"),
        (("--model", GOOD, "--base-url", "http://127.0.0.1:9/v1"), KEY, "cannot be reached"),
        (("--model", GOOD, "--key-env", "NOT_SET"), KEY, "NOT_SET is not set"),
        ((), KEY, "With --yes, name --provider and --model."),
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


def test_what_is_no_address_is_asked_again(talaria: Talaria, config: Path, strict_url: str) -> None:
    answers = f"localhost:9\n{strict_url}\n{KEY}\ny\n{GOOD}\n"
    done = talaria("setup", "--provider", "mine", stdin=answers)
    assert done.returncode == 0, done.stderr
    assert "expected an address such as" in done.stdout + done.stderr
    assert f'base_url = "{strict_url}"' in config.read_text()


def test_the_built_in_model_needs_no_call(talaria: Talaria, config: Path) -> None:
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


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_in_a_terminal_what_was_wrong_is_asked_again(
    terminal: Terminal, home: Path, config: Path, strict_url: str
) -> None:
    terminal.start(sys.executable, "-m", "talaria", "setup", "--home", str(home))
    screen = terminal.until("Looking for keys and model servers", "Which one")
    choice = next(line.split()[0] for line in screen.splitlines() if "an address of your own" in line)
    terminal.send(choice)
    terminal.until("Provider:")
    terminal.send("mine")
    terminal.until("Address of mine")
    terminal.send(strict_url)
    terminal.until("Key of mine (not shown; empty: none):")
    terminal.send("sk-wrong-one")
    terminal.until("[y/N]:")
    terminal.send("n")
    terminal.until("mine did not accept the key (HTTP 401).", "Type another key", "Key of mine")
    terminal.send(KEY)
    terminal.until("[y/N]:")
    terminal.send("y")
    terminal.until(f"Models of mine: {GOOD}, {OTHER}", "Which model:")
    terminal.send("nobody")
    terminal.until("does not know this model", "Name another model", "Which model:")
    terminal.send(OTHER)
    screen = terminal.until(f"mine/{OTHER} answered", 'api_key = "(not shown)"', "LEFT WITH 0")
    assert KEY not in screen
    assert "sk-wrong" not in screen
    assert f'api_key = "{KEY}"' in config.read_text()
    assert config.stat().st_mode & 0o777 == 0o600
    assert config.read_text().startswith("# by hand\n[pool]\nmax_agents = 3 # few\n")


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_another_tool_s_key_is_named_and_not_written_without_a_yes(
    terminal: Terminal, home: Path, config: Path, tmp_path: Path, strict_url: str
) -> None:
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex/auth.json").write_text(json.dumps({"OPENAI_API_KEY": "sk-codex-secret"}))
    before = config.read_text()
    terminal.start(sys.executable, "-m", "talaria", "setup", "--home", str(home))
    screen = terminal.until("key of Codex in", "Which one")
    number = next(line.split()[0] for line in screen.splitlines() if "key of Codex" in line)
    terminal.send(number)
    terminal.until("Talaria reads no file of another program", "[y/N]:")
    terminal.press("C-c")
    screen = terminal.until("LEFT WITH 130")
    assert "sk-codex-secret" not in screen
    assert config.read_text() == before
