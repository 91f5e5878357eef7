"""Clusters and their brokers, as the name server reports them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from typing import TypeVar

import msgspec

from sparrow.client.aio.connection.session import ClientSession
from sparrow.model.errors import Refused, Unavailable
from sparrow.model.protocol import MASTER_BROKER_ID
from sparrow.wire import bodies
from sparrow.wire.bodies import ClusterTable
from sparrow.wire.codes import RequestCode

T = TypeVar("T")


class Cluster(msgspec.Struct, frozen=True):
    """The brokers of one cluster."""

    name: str
    brokers: Mapping[str, Mapping[int, str]]
    """Broker name to broker id to `host:port`. Id 0 is the master."""

    @property
    def masters(self) -> dict[str, str]:
        """Broker name to the address of the master; brokers without a master are missing."""
        return {
            name: members[MASTER_BROKER_ID] for name, members in self.brokers.items() if MASTER_BROKER_ID in members
        }

    @property
    def addresses(self) -> list[str]:
        """The addresses of all masters and slaves."""
        return [address for members in self.brokers.values() for address in members.values()]


async def fetch_clusters(session: ClientSession) -> dict[str, Cluster]:
    """Return every cluster by name."""
    answer = await session.invoke_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
    table = bodies.read(ClusterTable, answer.body)
    return {
        name: Cluster(name, {broker: table.broker_addr_table[broker].broker_addrs for broker in sorted(brokers)})
        for name, brokers in sorted(table.cluster_addr_table.items())
    }


async def fetch_masters(
    session: ClientSession, cluster: str | None = None, brokers: Iterable[str] | None = None
) -> dict[str, str]:
    """Return broker names with the addresses of their masters: of a cluster, of some brokers, or all. At least one."""
    clusters = await fetch_clusters(session)
    if cluster is not None and cluster not in clusters:
        raise Refused(f"there is no cluster {cluster!r}: use {' or '.join(map(repr, clusters)) or 'a running one'}")
    masters = {
        name: address
        for some in clusters.values()
        if cluster in (None, some.name)
        for name, address in some.masters.items()
    }
    if brokers is not None:
        wanted = list(brokers)
        missing = [name for name in wanted if name not in masters]
        if missing:
            known = ", ".join(map(repr, masters)) or "none"
            raise Refused(f"there is no master of {', '.join(map(repr, missing))}, only of {known}")
        masters = {name: masters[name] for name in wanted}
    if not masters:
        raise Unavailable(
            "the name server lists no broker with a master: start a broker, and check the name server address it uses"
        )
    return masters


async def gather_all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Run the calls concurrently and return their results in order."""
    return list(await asyncio.gather(*calls))
