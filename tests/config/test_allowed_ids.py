"""A channel's `allowed` list takes numbers that stay with a person, and says why it takes nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from talaria.access.settings import UserNumbers
from talaria.config.report import Override, Report
from talaria.config.shape import Shaper
from talaria.core.errors import ConfigError


class Chat(msgspec.Struct, frozen=True):
    allowed: UserNumbers = ()


class Root(msgspec.Struct, frozen=True):
    chat: Chat = Chat()


def read(allowed: Any) -> tuple[int, ...]:
    report = Report(Path("config.toml"), "[chat]\nallowed = …\n", {})
    settings = Shaper(report, Root).build(Root, {"chat": {"allowed": allowed}})
    report.raise_problems()
    return settings.chat.allowed


def test_numbers_are_taken() -> None:
    assert read([]) == ()
    assert read([123456789, 1, (1 << 63) - 1]) == (123456789, 1, (1 << 63) - 1)


def test_a_variable_may_name_them_with_commas() -> None:
    assert read(Override("TALARIA_CHAT__ALLOWED", "123456789, 42")) == (123456789, 42)


@pytest.mark.parametrize(
    ("allowed", "shown"),
    [
        (["@ann"], '["@ann"]'),
        (["123456789"], '["123456789"]'),
        ([123456789, "ann"], '[123456789, "ann"]'),
        ([-1001234], "[-1001234]"),
        ([0], "[0]"),
        ([True], "[true]"),
        ([1.0], "[1.0]"),
        ([1 << 63], f"[{1 << 63}]"),
        (123456789, "123456789"),
        ("*", '"*"'),
        (Override("TALARIA_CHAT__ALLOWED", "@ann"), '"@ann"'),
    ],
)
def test_anything_else_is_refused_and_told_why(allowed: Any, shown: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(allowed)
    text = refused.value.user_text
    assert f"chat.allowed is {shown}: expected a list of people's numeric ids" in text
    assert "a @username can be given up and taken by someone else" in text
