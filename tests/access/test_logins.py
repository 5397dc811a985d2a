"""Codes that log a browser in once, and the cookies they become."""

from __future__ import annotations

import pytest

from talaria.access.logins import CODE_SECONDS, COOKIE_SECONDS, Logins
from talaria.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def logged_in(logins: Logins) -> str:
    cookie = logins.redeem(logins.new_code())
    assert cookie is not None
    return cookie


def test_a_code_is_good_once(clock: FakeClock) -> None:
    logins = Logins("token", clock)
    code = logins.new_code()
    cookie = logins.redeem(f" {code.lower()} ")
    assert cookie is not None
    assert logins.is_cookie(cookie)
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
    cookie = logged_in(Logins("token", clock))
    assert Logins("token", clock).is_cookie(cookie)
    assert not Logins("another", clock).is_cookie(cookie)
    clock.advance(COOKIE_SECONDS - 1)
    assert Logins("token", clock).is_cookie(cookie)
    clock.advance(1)
    assert not Logins("token", clock).is_cookie(cookie)


def test_no_changed_cookie_is_good(clock: FakeClock) -> None:
    logins = Logins("token", clock)
    cookie = logged_in(logins)
    changed = {cookie[:at] + "0" + cookie[at + 1 :] for at in range(len(cookie))} - {cookie}
    assert not any(map(logins.is_cookie, changed))
    expires, rest = cookie.split(".", 1)
    assert not logins.is_cookie(f"{int(expires) + 1}.{rest}")
    for other in ("", ".", "..", "é", cookie[:-1], cookie + "0", f"x{cookie}"):
        assert not logins.is_cookie(other)


def test_an_ended_login_stays_ended_in_other_processes_and_is_forgotten_in_time(clock: FakeClock) -> None:
    logins = Logins("token", clock)
    one, other = logged_in(logins), logged_in(logins)
    told = logins.end(one)
    assert not logins.is_cookie(one)
    assert logins.is_cookie(other)
    again = Logins("token", clock)
    again.restore(told)
    assert not again.is_cookie(one)
    clock.advance(COOKIE_SECONDS - 1)
    later = logged_in(again)
    clock.advance(1)
    assert again.end(later).count("\n") == 0, "the first is over anyway"


def test_there_is_no_door_without_a_token(clock: FakeClock) -> None:
    with pytest.raises(ValueError, match="needs a token"):
        Logins("", clock)
