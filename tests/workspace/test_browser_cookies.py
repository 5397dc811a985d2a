"""Cookies of other browsers: every form that they are exported in, and what is wrong with others."""

from __future__ import annotations

import json

import pytest

from talaria.core.errors import BadRequest
from talaria.workspace.browser.cookies import parse_cookies

LINES = """# Netscape HTTP Cookie File

.shop.example\tTRUE\t/\tTRUE\t1893456000\tsid\tabc
#HttpOnly_shop.example\tFALSE\t/cart\tFALSE\t0\tcart\t
"""


def test_a_cookies_txt_is_read() -> None:
    sid = {"name": "sid", "value": "abc", "domain": ".shop.example", "path": "/", "secure": True}
    cart = {"name": "cart", "value": "", "domain": "shop.example", "path": "/cart", "secure": False}
    assert parse_cookies(LINES) == [
        {**sid, "httpOnly": False, "expires": 1893456000},
        {**cart, "httpOnly": True},
    ]


@pytest.mark.parametrize("wrap", [lambda found: found, lambda found: {"cookies": found, "origins": []}])
def test_cookies_of_extensions_are_read(wrap: object) -> None:
    given = {"name": "a", "value": "1", "domain": "x.example", "sameSite": "no_restriction", "hostOnly": True}
    assert callable(wrap)
    (found,) = parse_cookies(json.dumps(wrap([given | {"expirationDate": 1893456000.5}])))
    assert found["sameSite"] == "None" and found["expires"] == 1893456000.5 and found["path"] == "/"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no cookies"),
        ("[]", "has no cookies"),
        ("shop.example sid=1", "Line 1 is not a line of a cookies.txt"),
        ("a\tTRUE\t/\tTRUE\tsoon\tn\tv", "Line 1 is not a line of a cookies.txt"),
        ('[{"name": 1}]', "not as extensions export them"),
        ("[[[", "not as extensions export them"),
        ("[" * 100_000, "not as extensions export them"),
        (json.dumps([{"name": "a", "value": "1", "domain": "b"}] * 3001), "has 3001 cookies"),
    ],
)
def test_other_texts_are_refused_with_the_reason(text: str, told: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_cookies(text)
    assert told in refused.value.user_text and refused.value.hint
