"""`talaria config`: what counts and why, and changes that never leave a broken file."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import Talaria

FILE = """\
# mine, by hand
[pool]
max_agents = 32   # not more

[providers.mine]
base_url = "http://127.0.0.1:9/v1"
"""


@pytest.fixture
def config(home: Path) -> Path:
    path = home / "config.toml"
    path.write_text(FILE)
    return path


def test_get_shows_no_password_of_an_address(talaria: Talaria, config: Path) -> None:
    config.write_text(
        '[store]\nurl = "postgresql://me:S3cret%40Pw@db.example:5432,db2.example/talaria?sslmode=require"\n'
        '[mcp.servers.notes]\nurl = "https://me:S3cret-Too@notes.example/mcp"\n'
    )
    shown = "postgresql://me:PASSWORD@db.example:5432,db2.example/talaria?sslmode=require"
    assert talaria("config", "get", "store.url").stdout == f"{shown}\n"
    for key in ("store", "mcp", None):
        assert "S3cret" not in talaria("config", "get", *filter(None, [key])).stdout


def test_get_says_where_a_value_comes_from(talaria: Talaria, config: Path) -> None:
    for key, env, value, source in [
        ("pool.max_agents", {}, "32", "(config.toml line 3)"),
        (
            "pool.max_agents",
            {"TALARIA_POOL__MAX_AGENTS": "4"},
            "4",
            "(environment: TALARIA_POOL__MAX_AGENTS)",
        ),
        ("pool.idle_ttl", {}, "1h", "(default)"),
        ("http.port", {}, "8765", "(default: 8765, or the next free port)"),
        ("http.port", {"TALARIA_HTTP__PORT": "0"}, "0", "(environment: TALARIA_HTTP__PORT)"),
        ("model.provider", {}, "local", "(default: local, the built-in model)"),
        ("model.provider", {"TALARIA_MODEL__NAME": "m"}, "", "(default: what model.name has before a /)"),
        ("agent.timezone", {}, "", "(default: the machine's time zone)"),
        ("prices", {}, "", "(not set: prices has no value, and no default)"),
        ("providers.mine.base_url", {}, "http://127.0.0.1:9/v1", "(config.toml line 6)"),
    ]:
        done = talaria("config", "get", key, env=env)
        assert (done.stdout.strip(), done.stderr.strip()) == (value, source)


def test_get_without_a_key_is_a_file_that_could_be_used(talaria: Talaria, config: Path) -> None:
    everything = talaria("config", "get").stdout
    assert 'pool.idle_ttl = "1h"  # default' in everything
    assert "# http.port = 8765  # default: 8765, or the next free port" in everything
    config.write_text(everything)
    assert talaria("config", "get", "pool.max_agents").stdout.strip() == "32"


def test_set_keeps_every_other_line(talaria: Talaria, config: Path) -> None:
    done = talaria("config", "set", "pool.max_agents", "64")
    assert done.returncode == 0
    assert "takes it up within seconds" in done.stdout
    assert config.read_text() == FILE.replace("32 ", "64 ")
    assert "from the next start on" in talaria("config", "set", "http.port", "0").stdout
    assert config.read_text().endswith("\n[http]\nport = 0\n")


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("tools.enabled", "files,todo", 'enabled = ["files", "todo"]'),
        ("channels.telegram.allowed", "1,2", "allowed = [1, 2]"),
        ("pool.max_bytes", "1GiB", 'max_bytes = "1GiB"'),
        ("pool.max_bytes", "4096", "max_bytes = 4096"),
        ("budgets.per_day_usd", "2.5", "per_day_usd = 2.5"),
        ("agent.prompt", "Be brief, please.", 'prompt = "Be brief, please."'),
        ('prices."mine/m"', "{ input = 1, output = 2 }", '"mine/m" = {input = 1, output = 2}'),
        (
            "model.fallback",
            '[{ provider = "mine", name = "m" }]',
            'fallback = [{provider = "mine", name = "m"}]',
        ),
    ],
)
def test_values_are_written_as_their_key_wants_them(
    talaria: Talaria, config: Path, key: str, value: str, line: str
) -> None:
    done = talaria("config", "set", key, value)
    assert done.returncode == 0, done.stderr
    assert line in config.read_text().splitlines()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("pool.max_agents", "lots"), 'pool.max_agents is "lots": expected a whole number of at least 1.'),
        (("pool.max_agent", "3"), "Did you mean pool.max_agents?"),
        (("providers.other.api_key_env", "KEY"), "providers.other.base_url is missing"),
        (("model.provider", "mine"), "model.name is missing"),
        (("pool..x", "3"), "'pool..x' is not a key.\n  A key is written table.name"),
        (("prices.scripted/m.input", "3"), """is quoted: 'prices."scripted/m".input'."""),
        (("prices.mine/m-4.1.input", "3"), """is quoted: 'prices."mine/m-4.1".input'."""),
        (("prices.mine/m-4.1", "{}"), """is quoted: 'prices."mine/m-4.1"'."""),
        (
            ('prices."x/y".input', "2.5"),
            """`talaria config set 'prices."x/y"' '{input = 2.5, output = 2.5}'`.""",
        ),
        (("pool.max_agents.x", "3"), "is not a known key"),
    ],
)
def test_what_would_break_the_file_is_not_written(
    talaria: Talaria, config: Path, arguments: tuple[str, str], said: str
) -> None:
    done = talaria("config", "set", *arguments)
    assert done.returncode == 1
    assert said in done.stderr
    assert config.read_text() == FILE


def test_a_broken_file_can_be_mended_key_by_key(talaria: Talaria, config: Path) -> None:
    config.write_text('[pool]\nmax_agents = "lots"\nidle_ttl = "soon"\n')
    done = talaria("config", "unset", "pool.max_agents")
    assert done.returncode == 0
    assert "still cannot be used" in done.stderr
    assert talaria("config", "set", "pool.idle_ttl", "1h").stderr == ""
    assert config.read_text() == '[pool]\nidle_ttl = "1h"\n'


def test_a_secret_is_asked_for_and_kept_from_others(talaria: Talaria, config: Path) -> None:
    config.chmod(0o644)
    done = talaria("config", "set", "providers.mine.api_key", stdin="sk-very-secret\n")
    assert done.returncode == 0
    assert 'api_key = "sk-very-secret"' in config.read_text()
    assert config.stat().st_mode & 0o777 == 0o600
    assert "sk-very-secret" not in done.stdout + done.stderr + talaria("config", "get").stdout


def test_a_variable_that_counts_more_is_told(talaria: Talaria, config: Path) -> None:
    done = talaria("config", "set", "pool.max_agents", "5", env={"TALARIA_POOL__MAX_AGENTS": "7"})
    assert "TALARIA_POOL__MAX_AGENTS is set in this shell, and counts more" in done.stderr


def test_unset_of_what_is_not_set_says_so(talaria: Talaria, config: Path) -> None:
    done = talaria("config", "unset", "pool.idle_ttl")
    assert done.returncode == 1
    assert "is not set" in done.stderr


def test_unset_of_an_unknown_key_names_the_nearest(talaria: Talaria, config: Path) -> None:
    done = talaria("config", "unset", "pool.max_agent")
    assert done.returncode == 1
    assert "pool.max_agent is not a known key." in done.stderr
    assert "Did you mean pool.max_agents?" in done.stderr


def test_on_a_full_disk_the_file_stays_and_the_way_out_is_told(config: Path, environ: dict[str, str]) -> None:
    before = config.read_text()
    words = "-m talaria config set pool.max_agents 5"
    done = subprocess.run(  # a quota of nothing
        ["sh", "-c", f"ulimit -f 0 && exec {shlex.quote(sys.executable)} {words}"],
        env={**environ, "TALARIA_HOME": str(config.parent)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "its disk is full or your quota is used up" in done.stderr
    assert "The file is as it was. Make room on that disk" in done.stderr
    assert config.read_text() == before
    assert [path.name for path in config.parent.iterdir()] == ["config.toml"]


def test_a_linked_file_stays_a_link(talaria: Talaria, config: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    config.rename(real)
    config.symlink_to(real)
    assert talaria("config", "set", "pool.max_agents", "5").returncode == 0
    assert config.is_symlink()
    assert "max_agents = 5" in real.read_text()


def test_edit_writes_what_is_good_and_nothing_else(talaria: Talaria, config: Path) -> None:
    done = talaria("config", "edit", env={"EDITOR": "sed -i s/32/33/"})
    assert done.returncode == 0
    assert config.read_text() == FILE.replace("32", "33")
    done = talaria("config", "edit", env={"EDITOR": "sed -i s/33/many/"})
    assert done.returncode == 1
    assert "config.toml line 3" in done.stderr
    assert config.read_text() == FILE.replace("32", "33")
    assert "is as it was" in talaria("config", "edit", env={"EDITOR": "true"}).stdout
    assert "cannot be started" in talaria("config", "edit", env={"EDITOR": "/no/such/editor"}).stderr


def test_edit_mends_a_file_that_is_no_utf_8(talaria: Talaria, config: Path) -> None:
    config.write_bytes(FILE.encode() + b"# caf\xe9\n")
    done = talaria("config", "edit", env={"EDITOR": "sed -i s/32/33/"})
    assert done.returncode == 0, done.stderr
    assert config.read_text() == FILE.replace("32", "33") + "# café\n"


def test_an_editor_that_fails_writes_nothing(talaria: Talaria, config: Path) -> None:
    done = talaria("config", "edit", env={"EDITOR": "sh -c 'sed -i s/32/33/ $0; exit 3'"})
    assert done.returncode == 1
    assert config.read_text() == FILE


def test_edit_notices_that_someone_else_wrote(talaria: Talaria, config: Path) -> None:
    editor = f"sh -c 'sed -i s/32/33/ $0; echo >> {config}'"
    done = talaria("config", "edit", env={"EDITOR": editor})
    assert done.returncode == 1
    assert "by someone else meanwhile" in done.stderr
    assert config.read_text() == FILE + "\n"


def test_unset_takes_an_empty_table_with_it_unless_it_has_a_comment(talaria: Talaria, config: Path) -> None:
    config.write_text('[pool]\nmax_agents = 3\n\n[log]\nlevel = "debug"\n')
    assert talaria("config", "unset", "log.level").returncode == 0
    assert config.read_text().rstrip() == "[pool]\nmax_agents = 3"
    config.write_text('[pool]\nmax_agents = 3\n\n[log]\n# loud for now\nlevel = "debug"\n')
    assert talaria("config", "unset", "log.level").returncode == 0
    assert "# loud for now" in config.read_text()
    config.write_text('[channels.telegram]\ngroups = "all"\n')
    assert talaria("config", "unset", "channels.telegram.groups").returncode == 0
    assert config.read_text().strip() == ""


def test_sizes_and_durations_are_shown_as_people_write_them(talaria: Talaria, config: Path) -> None:
    assert talaria("config", "get", "pool.max_bytes").stdout == "256MiB\n"
    assert talaria("config", "get", "pool.idle_ttl").stdout == "1h\n"
    assert (
        talaria("config", "get", "pool.max_bytes", env={"TALARIA_POOL__MAX_BYTES": "1001"}).stdout == "1001\n"
    )


def test_a_negative_value_is_no_option(talaria: Talaria, config: Path) -> None:
    done = talaria("config", "set", "http.port", "-1")
    assert done.returncode == 1
    assert "http.port is -1: expected" in done.stderr
    assert "no such option" in talaria("config", "set", "--nonsense", "http.port", "1").stderr.lower()


def test_a_table_that_stands_twice_is_told_in_plain_words(talaria: Talaria, config: Path) -> None:
    config.write_text('[pool]\nmax_agents = 3\n[pool]\nidle_ttl = "1h"\n')
    said = talaria("config", "get").stderr
    assert "(" not in said.splitlines()[0]
    assert "pool stands there twice" in said


def test_half_a_model_is_refused_with_the_command_that_sets_it_whole(talaria: Talaria, config: Path) -> None:
    refused = talaria("config", "set", "model.provider", "mine")
    whole = """`talaria config set model '{provider = "mine", name = "NAME"}'`"""
    assert f"Nothing was written. Set both at once: {whole}." in refused.stderr
    assert config.read_text() == FILE
    done = talaria("config", "set", "model", '{provider = "mine", name = "m"}')
    assert done.returncode == 0, done.stderr
    assert "A running gateway takes it up within seconds." in done.stdout
    assert config.read_text() == FILE + '\n[model]\nprovider = "mine"\nname = "m"\n'
