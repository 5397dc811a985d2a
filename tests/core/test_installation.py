"""Missing extras: one command that installs each, for the way the program was installed."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from talaria.core.installation import (
    _MODULES,
    MissingExtra,
    check_extra,
    has_extra,
    install_extra,
    remove_command,
)

ROOT = Path(__file__).parents[2]


def test_in_a_clone_dev_installs_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(ROOT / ".venv"))
    monkeypatch.chdir(ROOT)
    assert install_extra("postgres") == "./dev extra postgres"
    monkeypatch.chdir(tmp_path)
    assert install_extra("postgres") == f"{ROOT}/dev extra postgres"


def test_elsewhere_the_installer_gets_the_packages_of_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    pip = f"{sys.executable} -m pip install"
    assert install_extra("postgres") == f"{pip} 'psycopg[binary]>=3.2'"
    assert install_extra("web") == f"{pip} 'lxml-html-clean>=0.4' 'trafilatura>=2'"
    (tmp_path / "pipx_metadata.json").touch()
    assert install_extra("mcp") == "pipx inject talaria-gateway 'jsonschema>=4.20' 'mcp<3,>=2'"


def test_every_extra_for_users_is_known() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*_MODULES, "dev", "fuzz"} == set(project["optional-dependencies"])


def test_a_missing_extra_says_what_is_needed_and_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_extra("postgres", "A database on PostgreSQL")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert not has_extra("postgres")
    with pytest.raises(MissingExtra) as missing:
        check_extra("postgres", "A database on PostgreSQL")
    text = "A database on PostgreSQL needs the package psycopg, which is not installed."
    assert missing.value.user_text == text
    assert missing.value.hint == f"Install it: {install_extra('postgres')}"


@pytest.mark.parametrize(
    ("mark", "command"),
    [
        ("uv-receipt.toml", "uv tool uninstall talaria-gateway"),
        ("pipx_metadata.json", "pipx uninstall talaria-gateway"),
        ("pyvenv.cfg", f"{sys.executable} -m pip uninstall talaria-gateway"),
    ],
)
def test_the_program_is_removed_in_the_way_it_was_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str, command: str
) -> None:
    assert remove_command() == f"rm -rf {ROOT}"
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / mark).touch()
    assert remove_command() == command
