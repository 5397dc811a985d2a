"""Credentials in an address are for requests only; nothing that shows the address has them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.channels.telegram.part import TelegramSettings
from talaria.core.redaction import ApiAddress
from talaria.models.settings import ProviderSettings


@pytest.mark.parametrize(
    ("url", "shown", "target", "secrets"),
    [
        ("https://h/v1", "https://h/v1", "https://h/v1/x", set()),
        ("https://h/v1/", "https://h/v1/", "https://h/v1/x", set()),
        ("https://u:pa%3Ass@h:8/v1", "https://h:8/v1", "https://h:8/v1/x", {"pa%3Ass", "pa:ss"}),
        ("https://key-1@h/v1", "https://h/v1", "https://h/v1/x", {"key-1"}),
        ("https://h/v1?key=abc", "https://h/v1?key=…", "https://h/v1/x?key=abc", {"abc"}),
        (
            "https://h/v1/?api-version=2&token=t%20u&flag",
            "https://h/v1/?api-version=2&token=…&flag",
            "https://h/v1/x?api-version=2&token=t%20u&flag",
            {"t u"},
        ),
        ("https://h/v1#secret", "https://h/v1", "https://h/v1/x", set()),
        (
            "https://t.org/bot12:abcdefghijk/",
            "https://t.org/",
            "https://t.org/x",
            {"12:abcdefghijk"},
        ),
        ("http://[::1]:80/v1", "http://[::1]:80/v1", "http://[::1]:80/v1/x", set()),
        ("", "", "/x", set()),
    ],
)
def test_an_address_is_taken_apart(url: str, shown: str, target: str, secrets: set[str]) -> None:
    address = ApiAddress(url)
    assert (str(address), address.target("/x"), {*address.secrets}) == (shown, target, secrets)
    assert ApiAddress(address) is address
    assert address.whole == url


def test_user_and_password_become_a_header() -> None:
    assert ApiAddress("https://u:p@h").authorization == "Basic dTpw"
    assert ApiAddress("https://h").authorization is None


def test_a_change_of_the_credentials_alone_is_a_change() -> None:
    one, two = (ProviderSettings(f"https://h/v1?key={key}") for key in ("one", "two"))
    assert one != two
    assert one == ProviderSettings("https://h/v1?key=one")
    assert one.base_url == "https://h/v1?key=…"


@pytest.mark.parametrize("settings", [ProviderSettings, lambda url: TelegramSettings(api_url=url)])
def test_settings_show_no_credentials(settings: type[ProviderSettings]) -> None:
    made = settings("https://user:canary-1@h/p?key=canary-2#canary-3")
    again = msgspec.structs.replace(made)
    for each in (made, again):
        assert "canary" not in repr(each)
        assert "canary" not in repr(msgspec.structs.asdict(each))


@given(st.text(max_size=60))
def test_no_text_breaks_it(url: str) -> None:
    ApiAddress(url).target("/x")
