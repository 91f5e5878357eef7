"""Name conflicts: brokers that were given one name and one id, and replace each other with every registration.

A broker that takes over an id (a new leader, a broker that moved) replaces the other one for good. Only if the replaced
one registers the id again, over a connection that was never closed, both are running.
"""

from __future__ import annotations

from collections.abc import Hashable

MemberKey = tuple[str, int]
"""Broker name and broker id."""


class NameConflicts:
    """The conflicts of one name server."""

    def __init__(self) -> None:
        self._replaced: dict[MemberKey, dict[str, Hashable]] = {}
        """The addresses that were replaced, with the connections of their last requests."""
        self._found: dict[MemberKey, dict[str, Hashable]] = {}

    def replace(self, key: MemberKey, old: tuple[str, Hashable], new: tuple[str, Hashable]) -> bool:
        """Record that one address and connection replaces another. Return whether this shows a new conflict."""
        replaced = self._replaced.setdefault(key, {})
        is_conflict = replaced.pop(new[0], None) is not None
        replaced[old[0]] = old[1]
        if not is_conflict:
            return False
        known = self._found.setdefault(key, {})
        is_new = not {old[0], new[0]} <= known.keys()
        known.update((old, new))
        return is_new

    def forget(self, broker_name: str, address: str, *, except_id: int | None = None) -> None:
        """Forget an address that left, or has another id now."""
        for key in [key for key in self._replaced if key[0] == broker_name and key[1] != except_id]:
            self._drop(key, {address})

    def connection_closed(self, connection: Hashable) -> None:
        """Forget the addresses whose last request came over this connection."""
        for key in list(self._replaced):
            addresses = self._found.get(key, {}) | self._replaced[key]
            self._drop(key, {address for address, last in addresses.items() if last == connection})

    def _drop(self, key: MemberKey, addresses: set[str]) -> None:
        for table in (self._replaced, self._found):
            for address in addresses & table.get(key, {}).keys():
                del table[key][address]
        if not self._replaced[key]:
            del self._replaced[key]
        if len(self._found.get(key, ())) < 2:
            self._found.pop(key, None)

    def current(self) -> dict[MemberKey, list[str]]:
        """Return the addresses that compete for a name and an id."""
        return {key: sorted(addresses) for key, addresses in sorted(self._found.items())}
