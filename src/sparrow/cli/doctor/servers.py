"""Facts about name servers and brokers, fetched from them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

import msgspec

from sparrow import clock
from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.admin.broker_state import fetch_runtime, fetch_settings
from sparrow.model.errors import SparrowError
from sparrow.wire import bodies
from sparrow.wire.codes import RequestCode

BrokerTable = dict[str, dict[int, str]]
"""Broker name to broker id to address."""


class ClockReading(msgspec.Struct, frozen=True):
    """The clock of a server, compared with that of this machine."""

    skew_ms: float
    """How far it is ahead; negative: behind."""
    uncertainty_ms: float
    """Half of the time that the request took."""

    @classmethod
    def of(cls, server_ms: int, sent_ms: int, received_ms: int) -> ClockReading:
        """Compare with the middle of the request."""
        return cls(server_ms - (sent_ms + received_ms) / 2, (received_ms - sent_ms) / 2)


class NameServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a name server says."""

    address: str
    error: str | None = None
    """Why it cannot be asked."""
    brokers: BrokerTable = {}
    name_conflicts: Mapping[tuple[str, int], tuple[str, ...]] = {}
    """Addresses of running brokers that share a name and an id."""
    clock: ClockReading | None = None
    """None if it does not tell its time."""


class BrokerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker says."""

    name: str
    broker_id: int
    address: str
    error: str | None = None
    """Why it cannot be asked."""
    figures: Mapping[str, str] = {}
    """Runtime figures, under RocketMQ's names."""
    settings: Mapping[str, str] = {}
    clock: ClockReading | None = None

    def number(self, name: str) -> float | None:
        """Return a figure as a number; None if the broker does not report it."""
        try:
            return float(self.figures[name])
        except (KeyError, ValueError):
            return None


async def fetch_name_servers(admin: Admin) -> list[NameServerFacts]:
    """Ask every name server."""
    return list(await asyncio.gather(*(_fetch_name_server(admin, address) for address in admin.session.name_servers)))


async def fetch_brokers(admin: Admin, tables: list[BrokerTable]) -> list[BrokerFacts]:
    """Ask every broker that any name server lists."""
    members = {
        (name, broker_id, address)
        for table in tables
        for name, some in table.items()
        for broker_id, address in some.items()
    }
    return list(await asyncio.gather(*(_fetch_broker(admin, *member) for member in sorted(members))))


async def _fetch_name_server(admin: Admin, address: str) -> NameServerFacts:
    try:
        answer = await admin.session.invoke(address, RequestCode.GET_BROKER_CLUSTER_INFO)
        table = bodies.read(bodies.ClusterTable, answer.body)
        brokers = {name: dict(data.broker_addrs) for name, data in table.broker_addr_table.items()}
        sent_ms = clock.now_ms()
        shown = await admin.session.invoke_unchecked(address, RequestCode.GET_NAMESRV_CONFIG)
        received_ms = clock.now_ms()
    except SparrowError as error:
        return NameServerFacts(address=address, error=str(error))
    lines = bytes(shown.body).decode(errors="replace").splitlines()
    told = {name: value for name, _, value in (line.partition("=") for line in lines)}
    now = told.get("currentTimeMillis", "")
    return NameServerFacts(
        address=address,
        brokers=brokers,
        name_conflicts=dict(_name_conflicts(told.get("brokerNameConflicts", ""))),
        clock=ClockReading.of(int(now), sent_ms, received_ms) if now.isdecimal() else None,
    )


def _name_conflicts(text: str) -> Iterator[tuple[tuple[str, int], tuple[str, ...]]]:
    """Parse `name:id=address,address`, separated by `;`."""
    for part in filter(None, text.split(";")):
        key, _, addresses = part.partition("=")
        name, _, broker_id = key.rpartition(":")
        yield (name, int(broker_id)), tuple(addresses.split(","))


async def _fetch_broker(admin: Admin, name: str, broker_id: int, address: str) -> BrokerFacts:
    try:
        await admin.session.channel(address)  # so that the clock is not compared while a connection is opened
        sent_ms = clock.now_ms()
        figures = await fetch_runtime(admin.session, address)
        received_ms = clock.now_ms()
        settings = await fetch_settings(admin.session, address)
    except SparrowError as error:
        return BrokerFacts(name=name, broker_id=broker_id, address=address, error=str(error))
    told = figures.get("currentTimeMillis", "")
    return BrokerFacts(
        name=name,
        broker_id=broker_id,
        address=address,
        figures=figures,
        settings=settings,
        clock=ClockReading.of(int(told), sent_ms, received_ms) if told.isdecimal() else None,
    )
