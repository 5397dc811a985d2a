"""The name of the program in texts for users: what they can type."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from talaria.core.program import program, program_name, spoken, spoken_afar

CLONE = Path(__file__).parents[2]


def test_the_program_on_the_path_is_called_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.prefix) / "bin"))
    assert (program(), program_name()) == ("talaria", "talaria")
    assert spoken("Run `talaria open`.") == spoken_afar("Run `talaria open`.") == "Run `talaria open`."


def test_a_clone_is_called_by_its_script_and_its_folder_is_told_only_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(CLONE)
    assert (program(), program_name()) == ("./dev", "./dev")
    monkeypatch.chdir(tmp_path)
    assert (program(), program_name()) == (str(CLONE / "dev"), "./dev")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert program() == str(CLONE / "dev")
    assert spoken("`talaria why`, a talaria") == f"`{CLONE / 'dev'} why`, a talaria"
    assert spoken_afar("`talaria why`, a talaria") == "`./dev why`, a talaria"
