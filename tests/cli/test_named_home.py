"""`--home` with a folder that does not exist: asked about in a terminal, refused elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

from cli.conftest import Talaria
from cli.terminal import Terminal
from support.programs import needs


def test_without_a_terminal_a_missing_home_is_refused_with_the_command_that_makes_it(
    talaria: Talaria, tmp_path: Path
) -> None:
    typo = tmp_path / "hmoe"
    for command in (["serve"], ["ask", "hi"], ["sessions", "list"]):
        done = talaria(*command, "--home", str(typo))
        assert done.returncode == 1
        assert f"The home {typo} does not exist." in done.stderr
        assert f"mkdir -p -m 700 {typo}" in done.stderr
        assert not typo.exists()
    path = talaria("config", "path", "--home", str(typo))
    assert path.stdout == f"{typo / 'config.toml'}\n"


def test_a_variable_may_name_a_home_that_is_new(talaria: Talaria, tmp_path: Path) -> None:
    new = {"TALARIA_HOME": str(tmp_path / "new")}
    assert talaria("config", "set", "pool.max_agents", "1", env=new).returncode == 0
    assert (tmp_path / "new" / "config.toml").is_file()


def test_a_variable_with_a_home_that_is_not_there_is_told_by_commands_that_read(
    talaria: Talaria, tmp_path: Path
) -> None:
    typo = tmp_path / "hmoe"
    reading = (["sessions", "list"], ["why"], ["logs"], ["top"], ["backup", str(tmp_path / "saved")])
    for command in reading:
        done = talaria(*command, env={"TALARIA_HOME": str(typo)})
        assert done.returncode == 1
        assert f"The home {typo} does not exist." in done.stderr, command
    assert not typo.exists()
    assert not (tmp_path / "saved").exists()


@needs("tmux")
def test_in_a_terminal_the_user_is_asked(terminal: Terminal, tmp_path: Path) -> None:
    new = tmp_path / "new"
    line = f"{sys.executable} -m talaria config get pool.max_agents --home {new}"
    terminal.start("sh", "-c", f"{line}; {line}")
    terminal.until("Make a new one there? [Y/n]:")
    terminal.send("n")
    terminal.until("None was made.", "Make a new one there? [Y/n]:")
    assert not new.exists()
    terminal.send("y")
    assert "\n128\n" in terminal.until("LEFT WITH 0")
    assert new.stat().st_mode & 0o777 == 0o700
