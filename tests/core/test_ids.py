from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from talaria.core.ids import (
    ChatAddress,
    ChatKey,
    JobId,
    asking_chat,
    is_session_name,
    job_chat,
    jobs_within,
    new_owner_id,
    new_session_id,
    new_turn_id,
    runs_within,
)

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


@pytest.mark.parametrize(
    ("make", "prefix"), [(new_session_id, "ses_"), (new_turn_id, "turn_"), (new_owner_id, "own_")]
)
def test_an_id_says_what_it_names_and_is_fit_for_urls_and_file_names(make: type[str], prefix: str) -> None:
    made = make()
    assert made.startswith(prefix)
    assert len(made) == len(prefix) + 26
    assert set(made.removeprefix(prefix)) <= set(ALPHABET)


def test_ids_are_unique() -> None:
    assert len({new_turn_id() for _ in range(20_000)}) == 20_000


def test_ids_sort_by_the_millisecond_they_were_made_in() -> None:
    """The first ten characters are the time; what follows is random."""
    made = [new_session_id().removeprefix("ses_") for _ in range(5000)]
    times = [one[:10] for one in made]
    assert times == sorted(times)
    assert "".join(sorted(ALPHABET)) == ALPHABET


@pytest.mark.parametrize("name", ["a", "work", "A.b_c-9", ".", "..", "-", "ses", "SES_x", "x" * 128])
def test_what_people_may_call_a_session(name: str) -> None:
    assert is_session_name(name)


@pytest.mark.parametrize(
    "name", ["", "ses_", "ses_x", "a b", "a/b", "a:b", "ü", "x" * 129, "a\n", "\0", f"ses_{ALPHABET[:26]}"]
)
def test_what_is_not_a_session_name(name: str) -> None:
    assert not is_session_name(name)


part = st.text(max_size=30)
addresses = st.builds(ChatAddress, part, part, part, part, st.none() | part)


@settings(deadline=None)
@given(addresses)
@example(ChatAddress("main", "http", "api", "work"))
@example(ChatAddress("a:b", "c%3Ad", "/", "../..", "#\n\0 ?"))
@example(ChatAddress("", "", "", "", ""))
def test_a_chat_key_comes_apart_into_what_it_was_made_of(address: ChatAddress) -> None:
    key = address.key()
    assert ChatAddress.parse(key) == address
    assert key.isascii()
    assert key.count(":") == (4 if address.thread is None else 5)
    assert "/" not in key


@settings(deadline=None)
@given(addresses, addresses)
def test_two_places_never_share_a_chat_key(one: ChatAddress, other: ChatAddress) -> None:
    assert (one.key() == other.key()) == (one == other)


def test_a_chat_key_is_readable() -> None:
    assert (
        ChatAddress("main", "telegram", "group", "-100:5", "7").key()
        == "agent:main:telegram:group:-100%3A5:7"
    )


@pytest.mark.parametrize(
    "key", ["", "agent", "agent:a:b:c", "agent:a:b:c:d:e:f", "user:a:b:c:d", "a:b:c:d:e"]
)
def test_what_is_not_a_chat_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="not a chat key"):
        ChatAddress.parse(ChatKey(key))


@pytest.mark.parametrize(
    "key",
    ["", "agent", "user:a:b:c:d", "agent:a:b:c", "agent:a:b:c:d:e:f", "agent:a:b:c:%zz", "agent:a:b:c:a%41"],
)
def test_a_key_that_was_not_made_here_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="not a chat key"):
        ChatAddress.parse(ChatKey(key))


def test_the_chat_of_a_job_names_the_chat_that_asked() -> None:
    asked_in = ChatAddress("main", "telegram", "group", "-1/2", "7").key()
    chat = job_chat("main", JobId("job_1"), asked_in)
    assert asking_chat(chat) == asked_in
    assert asking_chat(asked_in) == asked_in
    assert ChatAddress.parse(chat).chat == "job_1"
    assert chat.startswith(jobs_within("main", JobId("job_1")))
    assert chat.startswith(runs_within("main"))
