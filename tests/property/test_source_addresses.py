"""Source addresses against a plain model: a peer is allowed if its first bits are those of an entry."""

from ipaddress import IPv4Address, IPv6Address

from hypothesis import given
from hypothesis import strategies as st

from sparrow.model.access.source_addresses import SOURCE_ADDRESSES_MAX, is_source_allowed, parse_source_addresses

BITS = {4: 32, 6: 128}
_BASES = {4: 0x0A00_0000, 6: 0x2001_0DB8 << 96}


@st.composite
def addresses(draw: st.DrawFn) -> tuple[int, int]:
    """Return version and number of an address; many are close to each other."""
    version = draw(st.sampled_from([4, 6]))
    return version, _BASES[version] ^ draw(st.integers(0, 15) | st.integers(0, (1 << 24) - 1))


Entry = tuple[tuple[int, int], int]


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    version, number = draw(addresses())
    return (version, number), draw(st.integers(0, BITS[version]))


def text(address: tuple[int, int]) -> str:
    version, number = address
    return str(IPv4Address(number) if version == 4 else IPv6Address(number))


def contains(entry: Entry, address: tuple[int, int]) -> bool:
    (version, number), prefix = entry
    shift = BITS[version] - prefix
    return version == address[0] and number >> shift == address[1] >> shift


@given(st.lists(entries(), min_size=1, max_size=8), addresses())
def test_a_peer_is_allowed_if_its_first_bits_are_those_of_an_entry(wanted: list[Entry], peer: tuple[int, int]) -> None:
    parsed = parse_source_addresses(f"{text(address)}/{prefix}" for address, prefix in wanted)
    expected = any(contains(entry, peer) for entry in wanted)
    assert is_source_allowed(parsed, text(peer)) == expected
    if peer[0] == 4:
        assert is_source_allowed(parsed, f"::ffff:{text(peer)}") == expected


@given(st.lists(entries(), max_size=SOURCE_ADDRESSES_MAX))
def test_the_normal_form_is_stable_and_independent_of_order(wanted: list[Entry]) -> None:
    texts = [f"{text(address)}/{prefix}" for address, prefix in wanted]
    parsed = parse_source_addresses(texts)
    assert parse_source_addresses(parsed) == parse_source_addresses(reversed(texts)) == parsed
