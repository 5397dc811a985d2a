"""Codes that log a browser in once, and the cookies they become."""

from __future__ import annotations

import pytest

from talaria.access.credentials import BrowserLogin, Logins
from talaria.testing.clock import FakeClock

CODE_SECONDS = 600.0
COOKIE_SECONDS = 30 * 24 * 3600


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def logged_in(logins: Logins) -> BrowserLogin:
    login = logins.redeem(logins.new_code())
    assert login is not None
    return login


def test_a_code_is_good_once(clock: FakeClock) -> None:
    logins = Logins("token", clock)
    code = logins.new_code()
    login = logins.redeem(f" {code.lower()} ")
    assert login is not None
    assert logins.find(*login)
    assert logins.redeem(code) is None


@pytest.mark.parametrize("code", ["", "A" * 16, "é", "\ud800"])
def test_a_code_that_was_never_given_is_no_code(clock: FakeClock, code: str) -> None:
    logins = Logins("token", clock)
    logins.new_code()
    assert logins.redeem(code) is None


def test_a_code_ages(clock: FakeClock) -> None:
    logins = Logins("token", clock)
    early, late = logins.new_code(), logins.new_code()
    clock.advance(CODE_SECONDS - 1)
    assert logins.redeem(early)
    clock.advance(1)
    assert logins.redeem(late) is None


def test_codes_that_nobody_uses_do_not_pile_up(clock: FakeClock) -> None:
    logins = Logins("token", clock)
    codes = [logins.new_code() for _ in range(1_000)]
    assert [logins.redeem(code) is not None for code in codes].count(True) == 16
    assert len(set(codes)) == 1_000


def test_a_cookie_outlives_the_process_but_neither_its_month_nor_the_token(clock: FakeClock) -> None:
    login = logged_in(Logins("token", clock))
    assert Logins("token", clock).find(*login)
    assert not Logins("another", clock).find(*login)
    clock.advance(COOKIE_SECONDS - 1)
    assert Logins("token", clock).find(*login)
    clock.advance(1)
    assert not Logins("token", clock).find(*login)


def test_no_changed_secret_is_good(clock: FakeClock) -> None:
    logins = Logins("token", clock)
    cookie, secret = logged_in(logins)
    for changed in _changes(cookie):
        assert not logins.find(changed, secret)
    for changed in _changes(secret):
        assert not logins.find(cookie, changed)
    expires, rest = cookie.split(".", 1)
    assert not logins.find(f"{int(expires) + 1}.{rest}", secret)


def _changes(text: str) -> set[str]:
    changed = {text[:at] + "0" + text[at + 1 :] for at in range(len(text))} - {text}
    return changed | {"", ".", "..", "é", text[:-1], text + "0", f"x{text}", text * 1000}


def test_neither_secret_is_worth_anything_alone_or_with_that_of_another_login(clock: FakeClock) -> None:
    logins = Logins("token", clock)
    one, other = logged_in(logins), logged_in(logins)
    assert not logins.find(one.cookie, other.secret)
    assert not logins.find(one.cookie, one.cookie.rpartition(".")[2]), "nor can it be read off the cookie"
    assert logins.find(*one) != logins.find(*other)
    assert one.secret not in one.cookie


def test_an_ended_login_stays_ended_in_other_processes_and_is_forgotten_in_time(clock: FakeClock) -> None:
    logins = Logins("token", clock)
    one, other = logged_in(logins), logged_in(logins)
    told = logins.end(one.cookie)
    assert not logins.find(*one)
    assert logins.find(*other)
    again = Logins("token", clock)
    again.restore(told)
    assert not again.find(*one)
    clock.advance(COOKIE_SECONDS - 1)
    later = logged_in(again)
    clock.advance(1)
    assert again.end(later.cookie).count("\n") == 0, "the first is over anyway"


def test_there_is_no_door_without_a_token(clock: FakeClock) -> None:
    with pytest.raises(ValueError, match="needs a token"):
        Logins("", clock)
