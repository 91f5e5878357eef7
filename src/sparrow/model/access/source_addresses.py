"""Source addresses: the networks that the requests of a token may come from. Pure; `broker/access` applies it.

1. A token without a list may be used from anywhere.
2. An entry is an IP address, or a network in CIDR notation, of IPv4 or IPv6.
3. IPv4-mapped IPv6 addresses (`::ffff:10.0.0.1`) count as IPv4, in lists and of peers. A listener for both protocols
   sees the peers of IPv4 in that form.
4. A peer without an IP address is in no network.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from sparrow.model.errors import Refused

SOURCE_ADDRESSES_MAX = 64
"""Addresses and networks that a token may have."""
SOURCE_ADDRESS_CHARS_MAX = 64
"""More than the longest network in any notation has."""
_MAPPED_PREFIX_BITS = 96
"""Bits before the IPv4 address in an IPv4-mapped one."""

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network


def parse_source_addresses(addresses: Iterable[str] | None) -> tuple[str, ...]:
    """Return addresses and networks in their normal form, sorted and without duplicates; none mean from anywhere.

    Raises `Refused` for a text that is neither, and for too many of them.
    """
    networks = {_parse_network(address) for address in addresses or ()}
    if len(networks) > SOURCE_ADDRESSES_MAX:
        raise Refused(
            f"a token has at most {SOURCE_ADDRESSES_MAX} source addresses, not {len(networks)}: use networks that "
            "contain them (10.0.0.0/8), or none for everywhere"
        )
    ordered = sorted(networks, key=lambda network: (network.version, int(network.network_address), network.prefixlen))
    return tuple(
        str(network.network_address if network.prefixlen == network.max_prefixlen else network) for network in ordered
    )


@lru_cache(maxsize=4096)
def compile_networks(addresses: tuple[str, ...]) -> tuple[IpNetwork, ...]:
    """Return parsed addresses in the form that is compared."""
    return tuple(ip_network(address) for address in addresses)


def is_source_allowed(addresses: tuple[str, ...], host: str) -> bool:
    """Return whether requests may come from a peer. `addresses` are parsed; `host` may be in brackets, as in URLs."""
    if not addresses:
        return True
    try:
        address = _unmapped(ip_address(host.strip("[]")))
    except ValueError:
        return False
    return any(address in network for network in compile_networks(addresses))


def _parse_network(text: str) -> IpNetwork:
    prefix = text.partition("/")[2]
    try:
        # The module also takes masks (/255.0.0.0), and zones (fe80::1%eth0), which have a meaning on one machine only.
        if len(text) > SOURCE_ADDRESS_CHARS_MAX or "%" in text or (prefix and not prefix.isdigit()):
            raise ValueError(text)
        network = ip_network(text, strict=False)
    except ValueError:
        raise Refused(
            f"{text[:SOURCE_ADDRESS_CHARS_MAX]!r} is no source address: use an IP address (192.168.1.5, 2001:db8::1) "
            "or a network in CIDR notation (10.0.0.0/8, 2001:db8::/32); leave all out to permit every address"
        ) from None
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    if mapped is None or network.prefixlen < _MAPPED_PREFIX_BITS:
        return network
    return IPv4Network((mapped, network.prefixlen - _MAPPED_PREFIX_BITS))


def _unmapped(address: IpAddress) -> IpAddress:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
