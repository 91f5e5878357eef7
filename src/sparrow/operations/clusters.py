"""Clusters: their brokers with runtime figures, their name servers, and the settings of a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.admin.broker_state import fetch_runtime, fetch_settings
from sparrow.client.aio.admin.clusters import gather_all
from sparrow.model.errors import SparrowError
from sparrow.model.protocol import MASTER_BROKER_ID
from sparrow.operations.errors import NotFound
from sparrow.wire import bodies
from sparrow.wire.codes import RequestCode


class BrokerState(msgspec.Struct, frozen=True, kw_only=True):
    """A broker, as its name server and its own figures describe it. None: it does not report the figure."""

    cluster: str
    name: str
    broker_id: int
    """0 is the master."""
    address: str
    is_reachable: bool
    error: str | None = None
    """Why it cannot be reached."""
    version: str | None = None
    """The version of RocketMQ whose protocol it speaks."""
    sparrow_version: str | None = None
    """None if it is not a broker of Sparrow."""
    started_ms: int | None = None
    in_per_s: float | None = None
    """Messages sent to it, over the last 10 s."""
    out_per_s: float | None = None
    """Messages read from it, over the last 10 s."""
    in_total: int | None = None
    out_total: int | None = None
    parked_pulls: int | None = None
    connections: int | None = None
    """Connections of producers and consumers."""
    send_latency: Mapping[float, int] = {}
    """Sends since its start that took up to so many ms; the others are counted under infinity."""
    log_first: int | None = None
    """The first physical offset of the log; None if messages are in a database, like `log_end`."""
    log_end: int | None = None
    unflushed_bytes: int | None = None
    disk_ratio: float | None = None
    """The used part of the disk, 0 to 1; None if messages are in a database."""
    oldest_ms: int | None = None
    """Store time of the oldest message."""
    figures: Mapping[str, str] = {}
    """All runtime figures, under RocketMQ's names."""

    @property
    def is_master(self) -> bool:
        """Whether it accepts messages."""
        return self.broker_id == MASTER_BROKER_ID


class NameServerState(msgspec.Struct, frozen=True):
    """A name server, and the brokers that it lists."""

    address: str
    is_reachable: bool
    brokers: tuple[str, ...] = ()
    error: str | None = None


class ClusterState(msgspec.Struct, frozen=True):
    """All brokers and name servers that an admin client knows."""

    name_servers: tuple[NameServerState, ...]
    brokers: tuple[BrokerState, ...]


async def fetch_cluster(admin: Admin) -> ClusterState:
    """Return brokers and name servers. One that cannot be reached is marked; only a loss of all name servers raises."""
    clusters = await admin.clusters()
    brokers = gather_all(
        _broker_state(admin, cluster.name, name, broker_id, address)
        for cluster in clusters.values()
        for name, members in cluster.brokers.items()
        for broker_id, address in sorted(members.items())
    )
    servers = gather_all(_name_server_state(admin, address) for address in admin.session.name_servers)
    found_brokers, found_servers = await asyncio.gather(brokers, servers)
    return ClusterState(tuple(found_servers), tuple(found_brokers))


async def fetch_broker(admin: Admin, name: str) -> BrokerState:
    """Return the master of a broker name, or another member if it has none; raise `NotFound` for an unknown name."""
    cluster, broker_id, address = await _member(admin, name)
    return await _broker_state(admin, cluster, name, broker_id, address)


async def fetch_broker_settings(admin: Admin, name: str) -> dict[str, str]:
    """Return the settings of a broker, under RocketMQ's names; raise `NotFound` for an unknown name."""
    _, _, address = await _member(admin, name)
    return await fetch_settings(admin.session, address)


async def _member(admin: Admin, name: str) -> tuple[str, int, str]:
    clusters = await admin.clusters()
    for cluster in clusters.values():
        if name in cluster.brokers:
            broker_id = min(cluster.brokers[name])
            return cluster.name, broker_id, cluster.brokers[name][broker_id]
    known = ", ".join(sorted(name for cluster in clusters.values() for name in cluster.brokers)) or "none"
    raise NotFound("broker", name, f"the name server lists {known}")


async def _broker_state(admin: Admin, cluster: str, name: str, broker_id: int, address: str) -> BrokerState:
    try:
        figures = await fetch_runtime(admin.session, address)
    except SparrowError as error:
        return BrokerState(
            cluster=cluster, name=name, broker_id=broker_id, address=address, is_reachable=False, error=str(error)
        )
    # A database has neither a log nor a disk that its broker sees; its offsets are no bytes.
    has_log = "commitLogDiskRatio" in figures
    return BrokerState(
        cluster=cluster,
        name=name,
        broker_id=broker_id,
        address=address,
        is_reachable=True,
        version=figures.get("brokerVersionDesc"),
        sparrow_version=figures.get("sparrowVersion"),
        started_ms=_whole(figures.get("bootTimestamp")),
        in_per_s=_number(figures.get("putTps")),
        out_per_s=_number(figures.get("getTransferredTps", figures.get("getTransferedTps"))),
        in_total=_whole(figures.get("msgPutTotalTodayNow")),
        out_total=_whole(figures.get("msgGetTotalTodayNow")),
        parked_pulls=_whole(figures.get("heldPulls")),
        connections=_whole(figures.get("clientConnections")),
        send_latency=_buckets(figures.get("sendLatency", "")),
        log_first=_whole(figures.get("commitLogMinOffset")) if has_log else None,
        log_end=_whole(figures.get("commitLogMaxOffset")) if has_log else None,
        unflushed_bytes=_whole(figures.get("remainHowManyDataToFlush")),
        disk_ratio=_number(figures.get("commitLogDiskRatio")),
        oldest_ms=_time(figures.get("earliestMessageTimeStamp")),
        figures=figures,
    )


async def _name_server_state(admin: Admin, address: str) -> NameServerState:
    try:
        answer = await admin.session.invoke(address, RequestCode.GET_BROKER_CLUSTER_INFO)
    except SparrowError as error:
        return NameServerState(address, False, error=str(error))
    table = bodies.read(bodies.ClusterTable, answer.body)
    return NameServerState(address, True, tuple(sorted(table.broker_addr_table)))


def _number(text: str | None) -> float | None:
    """Return the first number of a figure such as `1.5 1.2 1.0` or `12 B`."""
    try:
        return float(text.split()[0]) if text else None
    except ValueError:
        return None


def _whole(text: str | None) -> int | None:
    try:
        return int(text.split()[0]) if text else None
    except ValueError:
        return None


def _buckets(text: str) -> dict[float, int]:
    """Return the buckets of a histogram such as `0.5:12 1:3 +Inf:0`; empty if it is none."""
    try:
        return {float(bound): int(count) for bound, _, count in (each.partition(":") for each in text.split())}
    except ValueError:
        return {}


def _time(text: str | None) -> int | None:
    found = _whole(text)
    return found if found is not None and found >= 0 else None
