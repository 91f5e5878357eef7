"""Brokers say that they are there, that they still are, and that they leave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from sparrow.model.errors import BadRequest, ConnectionLost
from sparrow.model.protocol import ORDER_TOPIC_NAMESPACE
from sparrow.nameserver.context import NameServerContext
from sparrow.nameserver.routes import RemovedBroker, is_same_version
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.wire.bodies import (
    BrokerMemberGroup,
    BrokerMembers,
    BrokerRegistration,
    DataVersion,
    KvTable,
    read_registration,
)
from sparrow.wire.checksum import body_crc
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import (
    BrokerHeartbeat,
    EmptyHeader,
    GetBrokerMembers,
    QueryDataVersion,
    QueryDataVersionResponse,
    RegisterBroker,
    RegisterBrokerResponse,
    UnregisterBroker,
)

log = logging.getLogger(__name__)

LARGE_REGISTRATION_BYTES = 256 << 10
"""From here on a registration is read in a thread, so that routes are still answered meanwhile."""


async def register(request: RegisterBroker, naming: NameServerContext, call: RequestContext) -> HandlerResponse:
    """All topics of a broker. Told in return: where its master is, and the order of ordered topics."""
    for name, value in (
        ("brokerName", request.broker_name),
        ("brokerAddr", request.broker_address),
        ("clusterName", request.cluster),
    ):
        if not value:
            raise BadRequest("RegisterBroker", name, "is empty")
    async with naming.registering:
        said = await _read(request, call)
        if not call.channel.is_open:  # nobody would notice its end any more
            raise ConnectionLost(call.channel.address, "it closed before the registration was read")
        asked_ms = request.heartbeat_timeout_ms
        is_new = request.broker_address not in naming.routes.member_addresses(request.broker_name).values()
        registered = naming.routes.register(
            broker_name=request.broker_name,
            broker_id=request.broker_id,
            address=request.broker_address,
            ha_address=request.ha_address,
            cluster=request.cluster,
            topics=said.topics,
            acting_master=request.acting_master,
            heartbeat_timeout_ms=asked_ms if asked_ms and asked_ms > 0 else naming.settings.broker_timeout_ms,
            connection=call.channel,
            now_ms=naming.now_ms(),
        )
    if is_new:
        log.info("broker registered", extra={"broker": request.broker_name, "address": request.broker_address})
    header = RegisterBrokerResponse(registered.ha_address, registered.master_address)
    orders = naming.kv.table(ORDER_TOPIC_NAMESPACE)
    return HandlerResponse.of(KvTable(dict(orders)), header) if orders is not None else HandlerResponse(header)


async def _read(request: RegisterBroker, call: RequestContext) -> BrokerRegistration:
    body = call.command.body
    if request.body_crc not in (0, body_crc(body)):
        raise BadRequest("Registration", "bodyCrc32", "does not match the body: damaged on its way, send it again")
    if len(body) < LARGE_REGISTRATION_BYTES:
        return read_registration(body, is_compressed=request.is_compressed)
    return await asyncio.to_thread(read_registration, body, is_compressed=request.is_compressed)


async def unregister(request: UnregisterBroker, naming: NameServerContext, _: RequestContext) -> EmptyHeader:
    # The number is not looked at: the address says who leaves, and its number may have changed since.
    log_removed_brokers(naming.routes.unregister(request.broker_name, request.broker_address), why="it said so")
    return EmptyHeader()


async def compare_version(
    request: QueryDataVersion, naming: NameServerContext, call: RequestContext
) -> HandlerResponse:
    """Whether a broker needs to register: its topics changed, or it is not known. Counts as a sign of life."""
    asked = call.body(DataVersion)
    known = naming.routes.heard(
        request.broker_name, request.broker_address, connection=call.channel, now_ms=naming.now_ms()
    )
    if known is None:
        return HandlerResponse(QueryDataVersionResponse(changed=True))
    return HandlerResponse.of(known, QueryDataVersionResponse(changed=not is_same_version(known, asked)))


async def heartbeat(request: BrokerHeartbeat, naming: NameServerContext, call: RequestContext) -> EmptyHeader:
    naming.routes.heard(request.broker_name, request.broker_address, connection=call.channel, now_ms=naming.now_ms())
    return EmptyHeader()


async def member_group(request: GetBrokerMembers, naming: NameServerContext, _: RequestContext) -> HandlerResponse:
    addresses = naming.routes.member_addresses(request.broker_name)
    return HandlerResponse.of(BrokerMemberGroup(BrokerMembers(request.cluster, request.broker_name, addresses)))


def log_removed_brokers(gone: Iterable[RemovedBroker], *, why: str) -> None:
    for name, number, address in gone:
        log.info("broker dropped", extra={"broker": name, "broker_id": number, "address": address, "why": why})


HANDLERS: dict[int, RequestHandler[NameServerContext]] = {
    RequestCode.REGISTER_BROKER: register,
    RequestCode.UNREGISTER_BROKER: unregister,
    RequestCode.QUERY_DATA_VERSION: compare_version,
    RequestCode.BROKER_HEARTBEAT: heartbeat,
    RequestCode.GET_BROKER_MEMBER_GROUP: member_group,
}
