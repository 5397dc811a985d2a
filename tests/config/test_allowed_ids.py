"""A channel's `allowed` list takes numbers that stay with a person, and says why it takes nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from talaria.channels.telegram.part import TELEGRAM
from talaria.config.load import load
from talaria.core.errors import ConfigError
from talaria.parts import PARTS

VARIABLE = "TALARIA_CHANNELS__TELEGRAM__ALLOWED"


def test_numbers_are_taken_from_the_file_or_with_commas_from_a_variable(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(f"channels.telegram.allowed = [123456789, 1, {(1 << 63) - 1}]\n")
    assert load(tmp_path, {}, PARTS).settings.of(TELEGRAM).allowed == (123456789, 1, (1 << 63) - 1)
    assert load(tmp_path, {VARIABLE: "123456789, 42"}, PARTS).settings.of(TELEGRAM).allowed == (123456789, 42)
    assert load(tmp_path, {VARIABLE: ""}, PARTS).settings.of(TELEGRAM).allowed == ()


@pytest.mark.parametrize(
    "allowed",
    [
        '["@ann"]', '["123456789"]', '[123456789, "ann"]', "[-1001234]", "[0]", "[true]", "[1.0]",
        f"[{1 << 63}]", "123456789", '"*"',
    ],
)  # fmt: skip
def test_anything_else_is_refused_and_told_why(tmp_path: Path, allowed: str) -> None:
    (tmp_path / "config.toml").write_text(f"channels.telegram.allowed = {allowed}\n")
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, {}, PARTS)
    text = refused.value.user_text
    assert f"channels.telegram.allowed is {allowed}: expected a list of people's numeric ids" in text
    assert "a @username can be abandoned and taken by someone else" in text


def test_a_name_in_a_variable_is_refused_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'allowed is "@ann": expected a list of people'):
        load(tmp_path, {VARIABLE: "@ann"}, PARTS)
