"""Which gateways can serve one database together, and what people are told of the others."""

from __future__ import annotations

import pytest

from talaria.cluster.member_checks import ClusterToken, check_members, find_trouble, is_loopback, read_boot
from talaria.core.cluster import Member, MemberFigures
from talaria.core.errors import ConfigError
from talaria.core.ids import OwnerId, PlaceId
from talaria.core.problems import Severity


def member(
    name: str,
    *,
    boot: str = "one",
    url: str = "",
    version: str = "1.0",
    shared: bool = False,
    files: str = "",
) -> Member:
    return Member(
        OwnerId(f"own_{name}"),
        PlaceId(f"place_{name}"),
        boot=boot,
        host=f"host-{name}",
        url=url or f"http://10.0.0.{ord(name)}:8765",
        version=version,
        schema=22,
        started_at=1.0,
        has_shared_files=shared or bool(files),
        figures=MemberFigures(files=files),
    )


@pytest.mark.parametrize(
    ("url", "is_local"),
    [
        ("http://127.0.0.1:8765", True),
        ("http://127.3.2.1", True),
        ("http://[::1]:8765", True),
        ("http://localhost:1", True),
        ("http://a.localhost:1", True),
        ("http://0.0.0.0:8765", True),
        ("http://[::]:8765", True),
        ("http://10.0.0.5:8765", False),
        ("http://gateway-1:8765", False),
        ("http://localhost.example.org", False),
        ("http://[2001:db8::1]:8765", False),
    ],
)
def test_an_address_that_only_this_machine_reaches(url: str, is_local: bool) -> None:
    assert is_loopback(url) is is_local


@pytest.mark.parametrize(
    ("url", "boot", "has_token", "said"),
    [
        ("http://127.0.0.1:1", "one", True, []),
        ("http://127.0.0.1:1", "two", True, ["cannot reach this gateway at http://127.0.0.1:1"]),
        ("http://10.0.0.9:1", "two", True, []),
        ("http://10.0.0.9:1", "two", False, ["has no cluster token"]),
        ("http://127.0.0.1:1", "two", False, ["has no cluster token", "cannot reach this gateway"]),
    ],
)
def test_who_is_refused_beside_another(url: str, boot: str, has_token: bool, said: list[str]) -> None:
    found = find_trouble(
        member("a", url=url), [member("b", boot=boot)], ClusterToken("A_TOKEN", is_set=has_token)
    )
    assert len(found) == len(said)
    for error, words in zip(found, said, strict=True):
        assert words in error.user_text
        assert "host-b" in error.user_text
        assert error.hint


def test_a_gateway_alone_needs_no_token_and_no_address() -> None:
    assert (
        find_trouble(member("a", url="http://127.0.0.1:1"), [], ClusterToken("A_TOKEN", is_set=False)) == []
    )


def test_gateways_share_all_files_or_none() -> None:
    token, shared = ClusterToken("A_TOKEN", is_set=True), member("a", shared=True)
    (error,) = find_trouble(shared, [member("b")], token)
    assert "only this one has store.files" in error.user_text
    (error,) = find_trouble(member("b"), [shared], token)
    assert "only that one has store.files" in error.user_text
    assert not find_trouble(shared, [member("b", shared=True)], token)
    (error,) = find_trouble(member("a", files="x"), [member("b", files="x"), member("c", files="y")], token)
    assert "host-c" in error.user_text and "another folder" in error.user_text
    assert not find_trouble(member("a", files="x"), [member("b", shared=True)], token), "an older version"


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        ("", None),
        ("a-token-of-the-cluster", None),
        ("short", "has 5 characters"),
        ("two words that are long", "spaces"),
        ("one line\nand another", "spaces"),
        ("schlüssel-für-alle-häuser", "ASCII"),
    ],
)
def test_a_token_that_can_be_guessed_or_not_be_sent_is_refused(secret: str, said: str | None) -> None:
    if said is None:
        assert ClusterToken.of("A_TOKEN", secret).is_set is bool(secret)
        return
    with pytest.raises(ConfigError, match=said) as refused:
        ClusterToken.of("A_TOKEN", secret)
    assert "A_TOKEN" in refused.value.user_text
    assert secret not in str(refused.value), "it is a secret all the same"


def test_processes_of_one_machine_have_the_same_boot() -> None:
    assert read_boot() == read_boot()
    assert len(read_boot()) > 10


@pytest.mark.parametrize(
    ("members", "has_token", "levels"),
    [
        ([], True, []),
        ([member("a")], False, [Severity.OK, Severity.OK]),
        ([member("a", shared=True), member("b", shared=True)], True, [Severity.OK]),
        ([member("a", shared=True), member("b", shared=True)], False, [Severity.OK, Severity.PROBLEM]),
        ([member("a"), member("b")], True, [Severity.OK, Severity.WARN]),
        ([member("a", shared=True), member("b")], True, [Severity.OK, Severity.PROBLEM]),
        ([member("a", files="x"), member("b", files="y")], True, [Severity.OK, Severity.PROBLEM]),
        ([member("a", files="x"), member("b", shared=True)], True, [Severity.OK]),
        (
            [member("a", shared=True), member("b", shared=True, version="1.1")],
            True,
            [Severity.OK, Severity.WARN],
        ),
        (
            [member("a", shared=True, url="http://127.0.0.1:1"), member("b", boot="two", shared=True)],
            True,
            [Severity.OK, Severity.PROBLEM],
        ),
    ],
)
def test_doctor_judges_the_living_members(
    members: list[Member], has_token: bool, levels: list[Severity]
) -> None:
    found = list(check_members(members, ClusterToken("A_TOKEN", is_set=has_token)))
    assert [finding.severity for finding in found] == levels
    assert all(finding.hint for finding in found if finding.severity is not Severity.OK)
