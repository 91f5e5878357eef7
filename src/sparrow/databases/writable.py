"""Which of several hosts may be written: the first in the order of the URL that accepts writes.

1. A host that does not answer, or answers that it is read-only, is passed over.
2. A host that could not be reached is tried last for some seconds: a machine that is gone does not refuse a connection,
   and waiting for it would delay each one.
3. Whoever uses another than the first host tries the hosts in order again after some time. So all processes return to
   the same host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

from sparrow.databases.url import DatabaseHost, Dialect

AVOID_S = 5.0
RECHECK_S = 30.0

ROLE_QUERIES: Mapping[Dialect, tuple[str, ...]] = {
    "mysql": (
        "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'super_read_only', 'wsrep_on')",
        "SHOW GLOBAL STATUS LIKE 'wsrep_ready'",
    ),
    "postgresql": (
        "SELECT 'read_only',"
        " CASE WHEN pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' THEN 'ON' ELSE 'OFF' END",
    ),
    "sqlite": (),
}
"""Queries whose rows are pairs of a name and ON or OFF."""
GALERA_SESSION = "SET SESSION wsrep_sync_wait = 7"
"""For a node of a Galera cluster: a statement waits until the node has applied what other nodes have acknowledged."""

READ_ONLY_CODES = frozenset({1047, 1290, 1792, 1836})
"""Errors of MySQL about a host that must not be written any more: a node of Galera without its cluster, read_only."""
READ_ONLY_STATE = "25006"
"""The same of PostgreSQL."""


class NoWritableHost(ConnectionError):
    """None of the hosts accepts writes now."""


def refusal(rows: Sequence[Sequence[Any]]) -> str | None:
    """Return why a host may not be written; None if it may. `rows` are those of `ROLE_QUERIES`."""
    states = {str(name).lower(): value for name, value in rows}
    if "ON" in (states.get("read_only"), states.get("super_read_only")):
        return "is read-only"
    if is_galera(rows) and states.get("wsrep_ready") != "ON":
        return "is not in sync with its cluster"
    return None


def is_galera(rows: Sequence[Sequence[Any]]) -> bool:
    """Return whether the host is a node of a Galera cluster."""
    return any(str(name).lower() == "wsrep_on" and value == "ON" for name, value in rows)


class HostOrder:
    """The order in which hosts are tried, and what is known about them."""

    def __init__(self, hosts: Sequence[DatabaseHost]) -> None:
        self.hosts = tuple(hosts)
        self._current = self.hosts[0]
        self._recheck_at = 0.0
        self._avoided_until: dict[DatabaseHost, float] = {}
        self._reasons: dict[DatabaseHost, str] = {}

    def to_try(self) -> list[DatabaseHost]:
        """Return the hosts, those to be avoided last."""
        now = monotonic()
        return sorted(self.hosts, key=lambda host: self._avoided_until.get(host, 0.0) > now)

    def is_recheck_due(self) -> bool:
        """Return whether a host before the current one may be writable again."""
        return self._current != self.hosts[0] and monotonic() > self._recheck_at

    def failed(self, host: DatabaseHost, cause: object) -> None:
        """Note that a host could not be reached."""
        self._avoided_until[host] = monotonic() + AVOID_S
        self._reasons[host] = f"failed: {str(cause) or type(cause).__name__}"

    def refused(self, host: DatabaseHost, reason: str) -> None:
        """Note that a host answers and may not be written."""
        self._reasons[host] = reason

    def connected(self, host: DatabaseHost) -> bool:
        """Note that a host is used; return whether it is another one than before."""
        self._avoided_until.pop(host, None)
        self._recheck_at = monotonic() + RECHECK_S
        is_moved, self._current = host != self._current, host
        return is_moved

    def no_host(self) -> NoWritableHost:
        """Return the error for the case that every host was tried."""
        return NoWritableHost("; ".join(f"{host} {self._reasons.get(host, 'was not tried')}" for host in self.hosts))
