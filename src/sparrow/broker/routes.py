"""Routes of topics and addresses of brokers, as the name servers of a broker know them; how it connects to these."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import TypeVar

from sparrow.model.access.token import Credentials
from sparrow.model.errors import SparrowError
from sparrow.net.access.peer_access import PeerAccess
from sparrow.net.access.tls import server_tls
from sparrow.net.address import parse_addresses
from sparrow.settings import BrokerSettings
from sparrow.wire import bodies
from sparrow.wire.bodies import ClusterTable, RouteData
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import GetRoute, Header

log = logging.getLogger(__name__)

_B = TypeVar("_B")


def name_server_access(settings: BrokerSettings) -> PeerAccess:
    """Return how a broker connects to its name servers: it signs if it has an admin token, as they may require it."""
    return PeerAccess(server_tls(settings.net), first_admin(settings))


def first_admin(settings: BrokerSettings) -> Credentials | None:
    """Return what a broker signs its requests to other servers with: its first admin token."""
    for name, secret_key in settings.admin_tokens.items():
        return Credentials(name, secret_key.get_secret_value())
    return None


async def read_routes(
    access: PeerAccess, name_servers: str, topic: str, *, timeout_ms: int
) -> AsyncIterator[RouteData]:
    """Yield the route of a topic from one name server after the other; those that do not know it are passed over."""
    code, header = RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute(topic)
    async for route in _ask_each(access, name_servers, code, header, RouteData, timeout_ms=timeout_ms):
        yield route


async def find_broker(
    access: PeerAccess, name_servers: str, cluster: str, name: str, broker_id: int, *, timeout_ms: int
) -> str | None:
    """Return the address of a broker by its id, from the first name server that knows it; None if none does."""
    code = RequestCode.GET_BROKER_CLUSTER_INFO
    async for table in _ask_each(access, name_servers, code, None, ClusterTable, timeout_ms=timeout_ms):
        broker = table.broker_addr_table.get(name)
        if broker is not None and broker.cluster == cluster and broker_id in broker.broker_addrs:
            return broker.broker_addrs[broker_id]
    return None


async def _ask_each(
    access: PeerAccess, name_servers: str, code: RequestCode, header: Header | None, kind: type[_B], *, timeout_ms: int
) -> AsyncIterator[_B]:
    for address in parse_addresses(name_servers):
        try:
            channel = await access.connect(address, timeout_ms=timeout_ms)
            try:
                answer = await channel.request(code, header, timeout_ms=timeout_ms)
            finally:
                channel.close()
            if answer.code != ResponseCode.SUCCESS:
                continue
            found = bodies.read(kind, answer.body)
        except SparrowError as error:
            log.debug("name server %(address)s: %(error)s", {"address": address, "error": error})
            continue
        yield found
