"""`talaria service`: what it writes, and what it does where there is no service manager."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import Serve, Talaria
from talaria.cli.service import launchd_agent, linger_note, systemd_unit

ODD = Path("/srv/my 100% home$")


def test_the_unit_starts_this_program_on_this_home() -> None:
    service = systemd_unit(["/opt/t/bin/talaria"], Path("/srv/talaria"), Path("/c"), is_usable=True)
    assert service.file == Path("/c/systemd/user/talaria-srv-talaria.service")
    assert "ExecStart=/opt/t/bin/talaria serve --home /srv/talaria\n" in service.text
    assert "EnvironmentFile=-/srv/talaria/service.env\n" in service.text
    assert "Restart=on-failure\n" in service.text


def test_odd_paths_are_quoted() -> None:
    text = systemd_unit(["/bin/talaria"], ODD, Path("/c"), is_usable=True).text
    assert 'ExecStart=/bin/talaria serve --home "/srv/my 100%% home$$"' in text
    assert "EnvironmentFile=-/srv/my 100%% home$/service.env\n" in text


def test_the_file_of_variables_is_no_pattern() -> None:
    text = systemd_unit(["/bin/talaria"], Path(r"/srv/a*[b]\c"), Path("/c"), is_usable=True).text
    assert "EnvironmentFile=-" + r"/srv/a\*\[b]\\c/service.env" + "\n" in text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("home", [Path("/srv/talaria"), ODD])
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path, home: Path) -> None:
    unit = tmp_path / "talaria-test.service"
    unit.write_text(systemd_unit([sys.executable, "-m", "talaria"], home, tmp_path, is_usable=True).text)
    command = ["systemd-analyze", "--user", "verify", "--man=no", str(unit)]
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    complaints = [line for line in done.stderr.splitlines() if "talaria-test" in line]
    assert (done.returncode, complaints) == (0, []), done.stderr


def test_the_agent_is_a_property_list() -> None:
    service = launchd_agent(["/bin/talaria"], Path("/srv/a & b"), Path("/Users/me"), is_usable=True)
    found = plistlib.loads(service.text.encode())
    assert found["ProgramArguments"][-3:] == ["serve", "--home", "/srv/a & b"]
    assert found["RunAtLoad"] is True
    assert service.file.name == f"{found['Label']}.plist"


def test_the_agent_gives_the_gateway_its_variables(tmp_path: Path) -> None:
    service = launchd_agent(["/usr/bin/env"], tmp_path, tmp_path, is_usable=True)
    words = plistlib.loads(service.text.encode())["ProgramArguments"][:5]  # the shell that reads, then env
    (tmp_path / "service.env").write_text("MY_KEY='sk-1 $x'\n")
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "MY_KEY=sk-1 $x\n" in done.stdout


def test_it_is_written_and_removed_also_without_a_service_manager(
    talaria: Talaria, home: Path, tmp_path: Path
) -> None:
    config = home / "config.toml"
    config.write_text(
        config.read_text() + '[providers.mine]\nbase_url = "http://x/v1"\napi_key_env = "MY_KEY"\n'
    )
    env = {"XDG_CONFIG_HOME": str(tmp_path / "c"), "MY_KEY": "sk-secret", "PATH": "/nowhere"}
    assert talaria("service", "status", env=env).returncode == 1
    done = talaria("service", "install", "--no-start", env=env)
    assert done.returncode == 0, done.stderr
    assert "systemd does not run here" in done.stdout
    assert "sk-secret" not in done.stdout
    (unit,) = (tmp_path / "c" / "systemd" / "user").iterdir()
    assert f"--home {home}" in unit.read_text()
    variables = home / "service.env"
    assert variables.read_text() == "MY_KEY='sk-secret'\n"
    assert variables.stat().st_mode & 0o777 == 0o600
    done = talaria("service", "status", env=env)
    assert "Installed: " in done.stdout
    assert "No gateway runs" in done.stdout
    assert talaria("service", "remove", env=env).returncode == 0
    assert not unit.exists()
    assert not variables.exists()
    assert "Not installed" in talaria("service", "remove", env=env).stdout


def test_a_variable_that_is_not_set_is_refused(talaria: Talaria, tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path / "c")}
    done = talaria("service", "install", "--no-start", "--env", "NOT_THERE", env=env)
    assert done.returncode == 1
    assert "NOT_THERE is not set in this shell" in done.stderr


def test_without_a_service_manager_it_fails_and_says_what_else_keeps_it_running(
    talaria: Talaria, home: Path, tmp_path: Path
) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path / "c"), "PATH": "/nowhere"}
    done = talaria("service", "install", env=env)
    assert done.returncode == 1
    assert "Nothing was installed: systemd does not run here" in done.stderr
    assert "systemctl" not in done.stderr
    for other in ("restart policy", "@reboot", "tmux", "nohup"):
        assert other in done.stderr
    assert not (tmp_path / "c").exists()
    assert not (home / "service.env").exists()


@pytest.mark.skipif(shutil.which("sh") is None, reason="sh is not installed")
def test_the_line_for_crontab_adds_a_line(talaria: Talaria, home: Path, tmp_path: Path) -> None:
    fake = tmp_path / "bin" / "crontab"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\ncase $1 in -l) echo "1 * * * * x" ;; -) cat >{tmp_path}/table ;; esac\n')
    fake.chmod(0o755)
    told = talaria("service", "install", env={"PATH": "/nowhere"}).stderr
    line = next(line for line in told.splitlines() if "(crontab" in line)
    order = line[line.index("(crontab") :]
    subprocess.run(["sh", "-c", order], env={"PATH": f"{fake.parent}:/usr/bin:/bin"}, check=True)
    first, second = (tmp_path / "table").read_text().splitlines()
    assert first == "1 * * * * x"
    assert second.startswith("@reboot ") and f"serve --home {home} >" in second


def test_a_key_that_the_service_would_not_have_is_told(talaria: Talaria, home: Path, tmp_path: Path) -> None:
    (home / "config.toml").write_text('[model]\nprovider = "openai"\nname = "gpt-5"\n')
    env = {"XDG_CONFIG_HOME": str(tmp_path / "c"), "PATH": "/nowhere", "OPENAI_API_KEY": ""}
    done = talaria("service", "install", "--no-start", env=env)
    assert "OPENAI_API_KEY" in done.stderr and "no key" in done.stderr
    assert (
        "OPENAI_API_KEY"
        not in talaria("service", "install", "--no-start", env={**env, "OPENAI_API_KEY": "sk-1"}).stderr
    )
    assert "OPENAI_API_KEY" not in talaria("service", "install", "--no-start", env=env).stderr  # it has it


def test_a_channel_s_variable_that_the_service_would_not_have_is_told(
    talaria: Talaria, home: Path, tmp_path: Path
) -> None:
    with (home / "config.toml").open("a") as config:
        config.write('[channels.telegram]\ntoken_env = "MY_BOT"\n')
    env = {"XDG_CONFIG_HOME": str(tmp_path / "c"), "PATH": "/nowhere"}
    done = talaria("service", "install", "--no-start", env=env)
    assert "The service has no key for telegram: MY_BOT is not set here." in done.stderr
    again = talaria("service", "install", "--no-start", env={**env, "MY_BOT": "1:a"})
    assert "MY_BOT" not in again.stderr


def test_a_gateway_that_holds_the_home_is_told_of(talaria: Talaria, serve: Serve, tmp_path: Path) -> None:
    gateway = serve()
    env = {"XDG_CONFIG_HOME": str(tmp_path / "c"), "PATH": "/nowhere"}
    done = talaria("service", "install", "--no-start", env=env)
    assert f"kill {gateway.pid}" in done.stderr and "runs on" in done.stderr


def test_lingering_is_told_of_when_it_is_off(tmp_path: Path) -> None:
    for said, notes in (("no", 1), ("yes", 0)):
        fake = tmp_path / said / "loginctl"
        fake.parent.mkdir()
        fake.write_text(f"#!/bin/sh\necho {said}\n")
        fake.chmod(0o755)
        told = linger_note("ada", str(fake))
        assert told.count("loginctl enable-linger ada") == notes
    assert linger_note("ada", str(tmp_path / "none")) == ""
