"""Which chats are a caller's own, by the key of the chat alone."""

from __future__ import annotations

import pytest

from talaria.access.callers import HOME_CALLER, ApiCaller, Credential
from talaria.core.access import Role
from talaria.core.ids import ChatAddress, ChatKey
from talaria.core.turns import Sender


def token(name: str, role: Role) -> ApiCaller:
    return ApiCaller(Credential.TOKEN, name, role, Sender(f"token:{name}", name))


PHONE, LAPTOP = token("phone", Role.CHAT), token("laptop", Role.CHAT)
OPS, MONITOR = token("ops", Role.OPERATE), token("monitor", Role.READ)
SHARED = ChatAddress("main", "http", "api", "demo").key()
TELEGRAM = ChatAddress("main", "telegram", "dm", "1").key()
NEAR_MISSES = [
    ChatAddress("main", "http", "token", "phone").key(),
    ChatAddress("main", "http", "token", "phone2", "demo").key(),
    ChatAddress("main", "http", "api", "phone", "demo").key(),
    ChatAddress("main", "telegram", "token", "phone", "demo").key(),
    ChatAddress("main", "http", "ephemeral", "phone").key(),
]
OWN = [PHONE.chat_key("main", "demo"), ChatAddress("main", "http", "ephemeral", "phone", "ses_1").key()]


@pytest.mark.parametrize("key", OWN)
def test_a_chat_token_has_its_own_chats(key: ChatKey) -> None:
    assert PHONE.owns(key)
    assert PHONE.may_see(key)
    for other in (LAPTOP, HOME_CALLER, OPS, MONITOR):
        assert not other.owns(key)
        assert other.may_see(key) is (other is not LAPTOP)


@pytest.mark.parametrize("key", [SHARED, TELEGRAM, *NEAR_MISSES])
def test_a_chat_token_sees_no_other_chat(key: ChatKey) -> None:
    assert not PHONE.may_see(key)


def test_callers_that_operate_share_the_chats_of_the_home() -> None:
    for caller in (HOME_CALLER, OPS):
        assert caller.chat_key("main", "demo") == SHARED == "agent:main:http:api:demo"
        assert caller.owns(SHARED)
        assert not caller.owns(TELEGRAM)
        assert caller.name_of(SHARED) == "demo"
        assert caller.name_of(OWN[0]) is None
        assert caller.prefix("main") == ""


def test_the_names_of_own_chats_are_those_of_its_paths() -> None:
    assert PHONE.name_of(OWN[0]) == "demo"
    assert PHONE.name_of(OWN[1]) is None
    assert OWN[0].startswith(PHONE.prefix("main"))
    assert not LAPTOP.chat_key("main", "demo").startswith(PHONE.prefix("main"))
    assert not token("phone2", Role.CHAT).chat_key("main", "x").startswith(PHONE.prefix("main"))
