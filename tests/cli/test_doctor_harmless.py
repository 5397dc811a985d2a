"""No command that `talaria doctor` prints can do harm: not after a mistyped path, not through a link, and not
to a file that Talaria did not make. A database that cannot be used goes aside whole."""

from __future__ import annotations

import fcntl
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cli.conftest import DEADLINE, Serve, Talaria

Findings = list[dict[str, str]]
Look = Callable[..., Findings]


@pytest.fixture
def look(talaria: Talaria) -> Look:
    def examine(*options: str, env: dict[str, str] | None = None) -> Findings:
        found: Findings = msgspec.json.decode(talaria("doctor", "--json", *options, env=env).stdout)[
            "findings"
        ]
        return found

    return examine


def named(found: Findings, name: str, text: str = "") -> dict[str, str]:
    return next(each for each in found if each["name"] == name and text in each["text"])


def test_a_home_that_is_a_file_is_not_touched(look: Look, tmp_path: Path) -> None:
    letter = tmp_path / "letter"
    letter.write_text("Dear …")
    found = look("--home", str(letter), env={"TALARIA_HOME": ""})
    assert not [each for each in found if each["command"].startswith(("mv", "rm", "chmod"))]
    assert named(found, "home")["command"] == ""
    assert "--home" in named(found, "home")["fix"]
    found = look(env={"TALARIA_HOME": str(letter)})
    assert named(found, "home")["command"] == "unset TALARIA_HOME"


def others_file(home: Path) -> None:
    (home / "files").write_text("a list")


def others_folder(home: Path) -> None:
    (home / "config.toml").unlink()
    (home / "config.toml").mkdir()


def token_folder(home: Path) -> None:
    (home / "http.token").mkdir()


def open_folder_with_more(home: Path) -> None:
    for each in home.iterdir():
        each.unlink()
    (home / "letters").mkdir()
    home.chmod(0o755)


def token_elsewhere(home: Path) -> None:
    elsewhere = home.parent / "bot.token"
    elsewhere.write_text("1:x")
    elsewhere.chmod(0o644)
    (home / "config.toml").write_text(f'[channels.telegram]\ntoken_file = "{elsewhere}"\n')


def linked_config(home: Path) -> None:
    real = home.parent / "dotfiles.toml"
    real.write_text('[providers.x]\nbase_url = "http://127.0.0.1:9/v1"\napi_key = "k"\n')
    real.chmod(0o644)
    (home / "config.toml").unlink()
    (home / "config.toml").symlink_to(real)


@pytest.mark.parametrize(
    ("plant", "name", "says"),
    [
        (others_file, "home", "a folder is needed"),
        (others_folder, "config", "cannot be read"),
        (token_folder, "token", "cannot be used"),
        (open_folder_with_more, "home", "open to other users"),
        (token_elsewhere, "secrets", "holds a secret"),
        (linked_config, "config", "holds a secret"),
    ],
)
def test_what_is_not_talaria_s_is_left_to_its_owner(
    look: Look, home: Path, plant: Callable[[Path], None], name: str, says: str
) -> None:
    plant(home)
    finding = named(look(), name, says)
    assert finding["level"] != "ok"
    assert finding["command"] == ""
    assert finding["fix"] or "chmod" in finding["text"]


@pytest.mark.broken_database
def test_a_database_of_another_program_is_left_alone(look: Look, home: Path) -> None:
    connection = sqlite3.connect(home / "talaria.db")
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    finding = named(look(), "store")
    assert "of another program" in finding["text"]
    assert finding["command"] == ""


def test_a_damaged_database_goes_aside_with_its_log_and_the_next_start_begins_anew(
    look: Look, talaria: Talaria, serve: Serve, home: Path
) -> None:
    gateway = serve()
    assert talaria("ask", "Hello", "--session", "one").returncode == 0
    gateway.kill()
    gateway.wait(DEADLINE)
    assert (home / "talaria.db-wal").stat().st_size
    (home / "talaria.db").write_bytes(b"nothing of a database " * 400)
    before = {
        path.name: path.read_bytes() for path in home.glob("talaria.db*") if not path.name.endswith("shm")
    }
    finding = named(look(), "store")
    assert finding["level"] == "problem"
    subprocess.run(["bash", "-c", finding["command"]], check=True, timeout=DEADLINE)
    (aside,) = home.glob("damaged-*")
    assert {name: (aside / name).read_bytes() for name in before} == before
    assert not list(home.glob("talaria.db*"))
    serve()
    assert talaria("ask", "Hello", "--session", "one").returncode == 0
    assert talaria("sessions", "list").stdout.count("ses_") == 1
    assert {name: (aside / name).read_bytes() for name in before} == before


def test_a_process_that_is_none_of_ours_is_not_to_be_killed(look: Look, home: Path) -> None:
    """A gateway in a container holds the lock, and the number that it wrote there means another process."""
    with subprocess.Popen(["sleep", "60"]) as other, (home / "talaria.lock").open("w") as lock:
        try:
            lock.write(str(other.pid))
            lock.flush()
            fcntl.flock(lock, fcntl.LOCK_EX)
            finding = named(look(), "gateway")
            assert "says nowhere where it is" in finding["text"]
            assert finding["command"] == ""
        finally:
            other.kill()


def test_an_open_database_is_told(look: Look, home: Path, serve: Serve) -> None:
    gateway = serve()
    gateway.terminate()
    gateway.wait(DEADLINE)
    assert not [each for each in look() if each["name"] == "secrets"]
    (home / "talaria.db").chmod(0o644)
    finding = named(look(), "secrets", "talaria.db")
    assert finding["command"] == f"chmod 600 {home / 'talaria.db'}"


# -- the running gateway speaks for itself


def keyed(home: Path, model_url: str) -> None:
    (home / "config.toml").write_text(
        f'[providers.mine]\nbase_url = "{model_url}"\napi_key_env = "MY_KEY"\n'
        '[model]\nprovider = "mine"\nname = "m"\n'
    )


def test_a_gateway_without_its_key_is_a_problem_also_where_the_shell_has_it(
    look: Look, serve: Serve, home: Path, model_url: str
) -> None:
    keyed(home, model_url)
    gateway = serve()
    found = look(env={"MY_KEY": "sk-here"})
    finding = named(found, "model")
    assert finding["level"] == "problem"
    assert "MY_KEY" in finding["text"] and "gateway" in finding["text"]
    assert f"kill {gateway.pid}" in finding["fix"]
    assert finding["command"].startswith("read -rs MY_KEY && export MY_KEY && ")
    assert " serve --home " in finding["command"]


def test_a_gateway_with_its_key_is_fine_also_where_the_shell_has_none(
    look: Look, serve: Serve, home: Path, model_url: str
) -> None:
    keyed(home, model_url)
    serve(env={"MY_KEY": "sk-there"})
    found = look()
    assert named(found, "model")["level"] == "ok"
    assert not [each for each in found if "MY_KEY" in each["text"] and each["level"] != "ok"]


def test_a_gateway_that_answers_with_another_model_than_this_shell_would_is_told(
    look: Look, serve: Serve, home: Path, model_url: str
) -> None:
    serve(env={"TALARIA_MODEL__NAME": "other"})
    finding = named(look(), "model", "differ")
    assert finding["level"] == "warn"
    assert "scripted/other" in finding["text"] and "scripted/m" in finding["text"]


def test_without_a_gateway_a_key_is_typed_unseen(look: Look, home: Path, model_url: str) -> None:
    keyed(home, model_url)
    finding = named(look(), "config", "MY_KEY")
    assert finding["command"] == "read -rs MY_KEY && export MY_KEY"


# -- Telegram


def test_a_telegram_that_is_down_is_one_problem_in_plain_words(look: Look, serve: Serve, home: Path) -> None:
    config = home / "config.toml"
    config.write_text(
        config.read_text() + '[channels.telegram]\napi_url = "http://127.0.0.1:9"\ntoken = "1:x"\n'
    )
    serve()
    for _ in range(50):
        found = [each for each in look() if each["name"] == "telegram"]
        if "starting" not in str(found):
            break
    (finding,) = found
    assert finding["level"] == "problem"
    assert ".." not in finding["text"].replace("…", "")
    assert "Connect call" not in finding["text"]
    assert "Connection refused" in finding["text"]


def test_the_start_command_keeps_the_home(look: Look, home: Path) -> None:
    assert f"serve --home {home}` starts it" in named(look("--home", str(home)), "gateway")["text"]
