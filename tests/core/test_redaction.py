from __future__ import annotations

import base64
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.core.redaction import MARK, Redactor

SECRET = "sk-~~~???/+=ü"
FORMS = {
    "plain": SECRET,
    "url": quote(SECRET, safe=""),
    "hex": SECRET.encode().hex(),
    "base64": base64.b64encode(SECRET.encode()).decode(),
    "base64url": base64.urlsafe_b64encode(SECRET.encode()).decode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_hidden_in_every_usual_encoding(form: str) -> None:
    shown = Redactor([SECRET])(f"before {FORMS[form]} after")
    assert shown.rstrip("=").startswith(f"before {MARK}")
    assert shown.endswith("after")
    assert FORMS[form].rstrip("=") not in shown


def test_the_forms_are_really_different() -> None:
    assert len(set(FORMS.values())) == len(FORMS)


def test_every_occurrence_is_hidden() -> None:
    assert Redactor(["secret-1"])("secret-1secret-1, secret-1") == f"{MARK}{MARK}, {MARK}"


def test_of_two_secrets_where_one_begins_the_other_the_longer_is_hidden_whole() -> None:
    assert Redactor(["token-1", "token-1-extended"])("token-1-extended token-1") == f"{MARK} {MARK}"


def test_of_two_overlapping_secrets_neither_survives() -> None:
    shown = Redactor(["abcdefgh", "efghijkl"])("abcdefghijkl")
    assert "abcdefgh" not in shown
    assert "efghijkl" not in shown


def test_secrets_too_short_to_mean_anything_are_ignored() -> None:
    redact = Redactor(["", "a", "12345", "123456"])
    assert redact("a 12345 b") == "a 12345 b"
    assert redact("123456") == MARK


def test_a_secret_is_text_and_not_a_pattern() -> None:
    redact = Redactor([".*[a-z]+$", "(((((((("])
    assert redact("anything at all") == "anything at all"
    assert redact("x .*[a-z]+$ ((((((((") == f"x {MARK} {MARK}"


def test_without_secrets_nothing_changes() -> None:
    assert Redactor()("text") == "text"


def test_with_secrets_is_another_redactor() -> None:
    small = Redactor(["first-secret"])
    large = small.with_secrets(["second-secret"])
    assert small("second-secret") == "second-secret"
    assert large("first-secret second-secret") == f"{MARK} {MARK}"


def test_a_redactor_does_not_show_its_secrets() -> None:
    assert repr(Redactor(["first-secret", "second-secret"])) == "Redactor(2 secrets)"


@settings(deadline=None)
@given(
    st.lists(st.text("xyz09=/", min_size=6, max_size=12), min_size=1, max_size=4),
    st.text("xyz09=/ ", max_size=60),
)
def test_no_secret_is_left_in_any_text(secrets: list[str], text: str) -> None:
    shown = Redactor(secrets)(text + secrets[0] + text)
    assert not any(secret in shown for secret in secrets)
