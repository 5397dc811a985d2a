from __future__ import annotations

from datetime import timedelta

import pytest

from talaria.core.units import format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0),
        ("500ms", 0.5),
        ("30s", 30),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("2m", 120),
        ("7d", 604_800),
        ("1w", 604_800),
        ("1d12h30m5s250ms", 131_405.25),
    ],
)
def test_durations_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "30",
        "s",
        "30 s",
        " 30s",
        "-1s",
        "+1s",
        "1y",
        "1M",
        "1H",
        "1h 30m",
        "1.s",
        ".5s",
        "1,5h",
        "1e3s",
        "1s\n",
    ],
)
def test_a_bad_duration_names_the_allowed_forms(text: str) -> None:
    with pytest.raises(ValueError, match='expected a duration such as "500ms"'):
        parse_duration(text)


def test_what_no_clock_or_memory_could_hold_is_a_bad_value_too() -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration("99999999999w")
    with pytest.raises(ValueError, match="expected a size"):
        parse_size("9" * 400)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("65536", 65_536),
        ("10B", 10),
        ("1kB", 1000),
        ("64KiB", 65_536),
        ("256MiB", 268_435_456),
        ("256 MiB", 268_435_456),
        (" 1GB ", 10**9),
        ("1GiB", 1 << 30),
        ("1.5MiB", 1_572_864),
        ("0.5kB", 500),
    ],
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "MiB", "-1", "1KB", "1kib", "1TB", "1 000", "0x10", "1e3", "1.MiB", "1MiBs", "ten"]
)
def test_a_bad_size_names_the_allowed_forms(text: str) -> None:
    with pytest.raises(ValueError, match='expected a size such as 65536, "64KiB"'):
        parse_size(text)


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1 << 20, "1.0 MiB"),
        (268_435_456, "256.0 MiB"),
        (1 << 30, "1.0 GiB"),
        (5 << 40, "5120.0 GiB"),
    ],
)
def test_sizes_are_shown_in_the_unit_that_fits(count: int, shown: str) -> None:
    assert format_size(count) == shown
