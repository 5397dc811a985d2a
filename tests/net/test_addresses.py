"""Which hosts and addresses may be connected to."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from talaria.net.addresses import (
    AddressRefused,
    check_address,
    find_refusal,
    parse_endpoint,
    parse_host,
    write_address,
)

PUBLIC = ("1.1.1.1", "8.8.8.8", "93.184.215.14", "151.101.0.223", "2606:4700::1111", "::ffff:8.8.8.8")
NOT_PUBLIC = (
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "100.127.255.255", "127.0.0.1",
    "127.255.255.254", "168.63.129.16", "169.254.169.254", "169.254.170.2", "172.16.0.1", "172.31.255.255",
    "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.7", "203.0.113.9",
    "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "::", "::1", "::127.0.0.1", "::8.8.8.8",
    "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1", "64:ff9b::a9fe:a9fe",
    "64:ff9b::8.8.8.8", "64:ff9b:1::1", "100::1", "2001::1", "2001:0:7f00:1::", "2001:10::1", "2001:20::1",
    "2001:db8::1", "2002:7f00:1::", "2002:a9fe:a9fe::", "2002:808:808::1", "3ffe::1", "3fff::1", "4000::1",
    "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1", "2600::5efe:7f00:1",
    "2600::200:5efe:10.0.0.1",
)  # fmt: skip


@pytest.mark.parametrize("text", PUBLIC)
def test_public_address_is_admitted(text: str) -> None:
    assert find_refusal(ip_address(text)) is None


@pytest.mark.parametrize("text", NOT_PUBLIC)
def test_other_address_is_refused(text: str) -> None:
    with pytest.raises(AddressRefused):
        check_address(ip_address(text), 443, ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PyPI.org", "pypi.org"),
        ("pypi.org.", "pypi.org"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("my_host.example", "my_host.example"),
        ("ｐｙｐｉ.org", "pypi.org"),
    ],
)
def test_name_has_one_form(text: str, expected: str) -> None:
    assert parse_host(text) == expected


@pytest.mark.parametrize("text", ["127.0.0.1", "127.0.0.1.", "①②⑦.⓪.⓪.①", "127。0。0。1", "[::1]", "::1"])
def test_address_is_recognised_in_every_form(text: str) -> None:
    parsed = parse_host(text)
    assert not isinstance(parsed, str)
    assert find_refusal(parsed) == "a loopback address"


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "..", "a..b", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1",
        "127.0.0.0x1", "1.2.3.4.5", "256.1.1.1", "example.123", "fe80::1%eth0", "[fe80::1%25lo]", "[::1",
        "::1]", "user@pypi.org", "pypi.org/..", "pypi.org\\@evil.example", "pypi.org#", "pypi.org?", "a b",
        "a\tb", "a\nb", "a\0b", "%31.0.0.1", "-a.example", "a-.example", "x" * 64 + ".example", "a." * 130,
        "pypi.org:443", "unix:/run/x.sock", "/run/x.sock", "[v1.x]", "１２７.１", "..pypi.org",
    ],
)  # fmt: skip
def test_odd_form_is_refused(text: str) -> None:
    with pytest.raises(AddressRefused):
        parse_host(text)


def test_exception_is_the_exact_address_and_port() -> None:
    allowed = {parse_endpoint("192.168.1.20:8123"), parse_endpoint("[fd00::5]:80")} - {None}
    names = {name for name in allowed if name is not None}
    check_address(ip_address("192.168.1.20"), 8123, names)
    check_address(ip_address("::ffff:192.168.1.20"), 8123, names)
    check_address(ip_address("fd00:0::5"), 80, names)
    for address, port in (("192.168.1.20", 8124), ("192.168.1.21", 8123), ("fd00::5", 81)):
        with pytest.raises(AddressRefused):
            check_address(ip_address(address), port, names)


@pytest.mark.parametrize(
    "text", ["", "192.168.1.20", "192.168.1.0/24:80", "host:80", "1.2.3.4:0", "1.2.3.4:70000", "1.2.3.4:x"]
)
def test_entry_of_allow_private_is_an_address_and_a_port(text: str) -> None:
    assert parse_endpoint(text) is None


def test_address_is_written_in_one_form() -> None:
    assert write_address(ip_address("FD00:0:0::1"), 80) == "[fd00::1]:80"
    assert write_address(ip_address("::ffff:10.0.0.1"), 80) == "10.0.0.1:80"
