"""Source addresses of tokens as values: which texts are valid, their normal form, and which peers they contain."""

import pytest

from sparrow.model.access.source_addresses import compile_networks, is_source_allowed, parse_source_addresses
from sparrow.model.errors import Refused


def test_addresses_and_networks_have_one_normal_form():
    wanted = ["2001:DB8:0::/32", "192.168.1.5", "10.1.2.3/8", "192.168.1.5/32", "2001:db8::1/128", "10.0.0.0/8"]
    assert parse_source_addresses(wanted) == ("10.0.0.0/8", "192.168.1.5", "2001:db8::/32", "2001:db8::1")
    assert parse_source_addresses(["0.0.0.0/0", "::/0"]) == ("0.0.0.0/0", "::/0")


def test_ipv4_mapped_entries_are_ipv4():
    assert parse_source_addresses(["::ffff:10.0.0.1", "::ffff:10.0.0.0/104", "::ffff:0:0/96"]) == (
        "0.0.0.0/0",
        "10.0.0.0/8",
        "10.0.0.1",
    )
    assert parse_source_addresses(["::ffff:0:0/95"]) == ("::fffe:0:0/95",), "more than the mapped addresses"


def test_no_addresses_mean_from_anywhere():
    assert parse_source_addresses(None) == parse_source_addresses([]) == ()
    for host in ("10.0.0.1", "[::1]", "unconnected", ""):
        assert is_source_allowed((), host)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "*",
        "anywhere",
        "localhost",
        "10.0.0",
        "10.0.0.*",
        "10.0.0.256",
        "10.0.0.0/33",
        "10.0.0.0/",
        "10.0.0.0/-1",
        "10.0.0.0/255.0.0.0",
        "10.0.0.1:9876",
        "[::1]",
        "fe80::1%eth0",
        "2001:db8::/129",
        " 10.0.0.1",
        "10.0.0.1 10.0.0.2",
        "10.0.0.1-10.0.0.9",
        "1" * 10_000,
    ],
)
def test_any_other_text_is_refused_with_what_to_write(text):
    with pytest.raises(Refused, match=r"is no source address: use an IP address \(192\.168\.1\.5, .* CIDR") as caught:
        parse_source_addresses(["10.0.0.0/8", text])
    assert len(str(caught.value)) < 400


def test_a_token_has_at_most_64_addresses():
    many = [f"10.0.0.{number}" for number in range(64)]
    assert len(parse_source_addresses([*many, "10.0.0.1/32"])) == 64, "duplicates do not count"
    with pytest.raises(Refused, match="at most 64 source addresses, not 65: use networks that contain them"):
        parse_source_addresses([*many, "10.0.1.0/24"])


@pytest.mark.parametrize(
    ("addresses", "inside", "outside"),
    [
        (["10.0.0.0/8"], ["10.0.0.0", "10.255.255.255", "::ffff:10.1.2.3"], ["11.0.0.0", "9.255.255.255", "::1"]),
        (["192.168.1.5"], ["192.168.1.5", "[::ffff:192.168.1.5]"], ["192.168.1.4", "::ffff:192.168.1.6"]),
        (["2001:db8::/32"], ["2001:db8::1", "[2001:db8:ffff::]"], ["2001:db9::1", "127.0.0.1"]),
        (["::1", "127.0.0.0/8"], ["::1", "[::1]", "127.9.9.9"], ["::2", "128.0.0.1", "::ffff:128.0.0.1"]),
        (["::ffff:10.0.0.0/104"], ["10.9.9.9", "::ffff:10.9.9.9"], ["11.0.0.1"]),
        (["fe80::/10"], ["fe80::1%eth0", "[fe80::1%2]"], ["fec0::1"]),
        (["0.0.0.0/0"], ["1.2.3.4", "::ffff:1.2.3.4"], ["2001:db8::1"]),
        (["::/0"], ["2001:db8::1"], ["1.2.3.4", "::ffff:1.2.3.4"]),
    ],
)
def test_a_peer_is_allowed_if_one_of_the_networks_contains_it(addresses, inside, outside):
    parsed = parse_source_addresses(addresses)
    assert [host for host in inside if not is_source_allowed(parsed, host)] == []
    assert [host for host in outside if is_source_allowed(parsed, host)] == []


@pytest.mark.parametrize("host", ["", "unconnected", "localhost", "/run/sparrow.sock", "10.0.0.1:80"])
def test_a_peer_without_an_ip_address_is_in_no_network(host):
    assert not is_source_allowed(("0.0.0.0/0", "::/0"), host)


def test_networks_are_parsed_once_for_equal_lists():
    addresses = parse_source_addresses(["10.0.0.0/8", "::1"])
    assert compile_networks(addresses) is compile_networks(parse_source_addresses(["::1", "10.0.0.0/8"]))
