"""Addresses in settings and route tables."""

import pytest

from sparrow.model.errors import SettingsError
from sparrow.model.message import Host
from sparrow.net.address import Address, parse_addresses
from sparrow.net.listener import advertised_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:9876", Address("10.0.0.1", 9876)),
        ("example:1", Address("example", 1)),
        ("[::1]:65535", Address("::1", 65535)),
        ("  host-a.example:10911\n", Address("host-a.example", 10911)),
    ],
)
def test_an_address_round_trips_through_its_text(text, address):
    assert Address.parse(text) == address
    assert str(address) == text.strip()
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "host", "host:", ":9876", "host:65536", "host:-1", "host:ten", "host:1.5"),
        "host:²",
    ],
)
def test_an_invalid_address_is_refused_with_the_expected_format(text):
    with pytest.raises(SettingsError) as refused:
        Address.parse(text)
    assert repr(text) in str(refused.value)
    assert "host:port" in str(refused.value)


def test_a_list_is_split_at_semicolons_or_commas():
    assert parse_addresses(" a:1; b:2,[::1]:3;;") == [Address("a", 1), Address("b", 2), Address("::1", 3)]
    assert parse_addresses("") == []


def test_one_invalid_address_makes_the_list_invalid():
    with pytest.raises(SettingsError):
        parse_addresses("a:1;b")


def test_a_host_has_the_bytes_of_the_ip_address():
    assert Address("10.0.0.1", 9876).as_host() == Host(b"\x0a\0\0\x01", 9876)
    assert Address("::1", 1).as_host() == Host(bytes(15) + b"\x01", 1)


def test_a_host_name_is_resolved_for_a_record():
    assert Address("localhost", 7).as_host() == Host(b"\x7f\0\0\x01", 7)


@pytest.mark.parametrize("everywhere", ["0.0.0.0", ""])
def test_a_wildcard_address_is_advertised_with_the_advertised_host(everywhere):
    assert advertised_address(everywhere, 1, "10.0.0.9") == Address("10.0.0.9", 1)
    assert advertised_address(everywhere, 1) == Address("127.0.0.1", 1)
    assert advertised_address("10.0.0.3", 1) == Address("10.0.0.3", 1)
