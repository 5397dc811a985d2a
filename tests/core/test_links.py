"""Which addresses may become links."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.complexity import assert_linear
from support.link_table import OWN, TABLE
from talaria.channels.links import find_addresses, is_outer, own_hosts


@pytest.mark.parametrize(("url", "may"), TABLE)
def test_only_a_public_host_becomes_a_link(url: str, may: bool) -> None:
    assert is_outer(url, own_hosts(OWN)) is may


@given(st.text(max_size=60) | st.from_regex(r"https?://[0-9a-fx.:\[\]]{1,30}(/.*)?", fullmatch=True))
def test_no_text_breaks_the_rule(url: str) -> None:
    is_outer(url)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["{}", "0x{:x}", "0{:o}"]))
def test_every_way_to_write_an_address_is_judged_alike(number: int, form: str) -> None:
    dotted = ".".join(str(byte) for byte in number.to_bytes(4))
    assert is_outer(f"http://{form.format(number)}/") == is_outer(f"http://{dotted}/")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see http://127.0.0.1:80/x, then", [("http://127.0.0.1:80/x", False)]),
        ("(http://example.org/a_b)", [("http://example.org/a_b", True)]),
        ("ping 127.0.0.1:8765/api or 1.1.1.1.", [("127.0.0.1:8765/api", False), ("1.1.1.1", True)]),
        ("version 10.4 and 0.0.1 and main.py", [("main.py", True)]),
        ("tg://resolve?domain=x", [("tg://resolve?domain=x", False)]),
        ("talaria.example.org/api", [("talaria.example.org/api", False)]),
        ("http://12*7*.0.0.1", [("http://12*7*.0.0.1", False)]),
        ("a@127.0.0.1 and plain words", [("127.0.0.1", False)]),
    ],
)
def test_addresses_are_found_in_text(text: str, found: list[tuple[str, bool]]) -> None:
    seen = [(text[each.start : each.end], each.is_outer) for each in find_addresses(text, own_hosts(OWN))]
    assert seen == found


@pytest.mark.parametrize(
    "shape", ["a", "a.", "http://", "http://a.", "1.1.1.1 ", "://", "*", "a-", "é.", "("]
)
def test_addresses_are_found_in_linear_time(shape: str) -> None:
    assert_linear(lambda size: shape * (size // 16 // len(shape)), lambda text: [*find_addresses(text)])
