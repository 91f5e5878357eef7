"""Handlers of brokers: registration, heartbeat, unregistration."""

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
"""Larger registrations are decoded in a thread, so that route requests are not delayed."""


async def register(request: RegisterBroker, context: NameServerContext, call: RequestContext) -> HandlerResponse:
    """Register all topics of a broker. Return the address of its master and the order configuration of topics."""
    for name, value in (
        ("brokerName", request.broker_name),
        ("brokerAddr", request.broker_address),
        ("clusterName", request.cluster),
    ):
        if not value:
            raise BadRequest("RegisterBroker", name, "is empty")
    async with context.registration_lock:
        registration = await _decode_registration(request, call)
        if not call.channel.is_open:  # its close event has already been handled
            raise ConnectionLost(call.channel.address, "it closed before the registration was decoded")
        timeout_ms = request.heartbeat_timeout_ms
        is_new = request.broker_address not in context.routes.member_addresses(request.broker_name).values()
        registered = context.routes.register(
            broker_name=request.broker_name,
            broker_id=request.broker_id,
            address=request.broker_address,
            ha_address=request.ha_address,
            cluster=request.cluster,
            topics=registration.topics,
            acting_master=request.acting_master,
            heartbeat_timeout_ms=timeout_ms if timeout_ms and timeout_ms > 0 else context.settings.broker_timeout_ms,
            connection=call.channel,
            now_ms=context.monotonic_ms(),
        )
    if is_new:
        log.info(
            "broker %(broker)s at %(address)s registered",
            {"broker": request.broker_name, "address": request.broker_address},
        )
    if registered.rival_address is not None:
        log.warning(
            "brokers at %(address)s and %(rival)s both register as %(broker)s with the id %(broker_id)s: clients "
            "see one of them at a time. Give each broker a name of its own with --name",
            {
                "address": request.broker_address,
                "rival": registered.rival_address,
                "broker": request.broker_name,
                "broker_id": request.broker_id,
            },
        )
    header = RegisterBrokerResponse(registered.ha_address, registered.master_address)
    orders = context.kv.table(ORDER_TOPIC_NAMESPACE)
    return HandlerResponse.of(KvTable(dict(orders)), header) if orders is not None else HandlerResponse(header)


async def _decode_registration(request: RegisterBroker, call: RequestContext) -> BrokerRegistration:
    body = call.command.body
    if request.body_crc not in (0, body_crc(body)):
        raise BadRequest("Registration", "bodyCrc32", "does not match the body: send the registration again")
    if len(body) < LARGE_REGISTRATION_BYTES:
        return read_registration(body, is_compressed=request.is_compressed)
    return await asyncio.to_thread(read_registration, body, is_compressed=request.is_compressed)


async def unregister(request: UnregisterBroker, context: NameServerContext, _: RequestContext) -> EmptyHeader:
    # The address identifies the broker; its id may have changed since it registered.
    log_removed_brokers(context.routes.unregister(request.broker_name, request.broker_address), why="it unregistered")
    return EmptyHeader()


async def compare_version(
    request: QueryDataVersion, context: NameServerContext, call: RequestContext
) -> HandlerResponse:
    """Tell a broker whether it must register: it is unknown, or its topics changed. Counts as a heartbeat."""
    version = call.body(DataVersion)
    known = context.routes.touch(
        request.broker_name, request.broker_address, connection=call.channel, now_ms=context.monotonic_ms()
    )
    if known is None:
        return HandlerResponse(QueryDataVersionResponse(changed=True))
    return HandlerResponse.of(known, QueryDataVersionResponse(changed=not is_same_version(known, version)))


async def heartbeat(request: BrokerHeartbeat, context: NameServerContext, call: RequestContext) -> EmptyHeader:
    context.routes.touch(
        request.broker_name, request.broker_address, connection=call.channel, now_ms=context.monotonic_ms()
    )
    return EmptyHeader()


async def member_group(request: GetBrokerMembers, context: NameServerContext, _: RequestContext) -> HandlerResponse:
    addresses = context.routes.member_addresses(request.broker_name)
    return HandlerResponse.of(BrokerMemberGroup(BrokerMembers(request.cluster, request.broker_name, addresses)))


def log_removed_brokers(removed: Iterable[RemovedBroker], *, why: str) -> None:
    """Log brokers that are no longer in any route."""
    for name, broker_id, address in removed:
        log.info(
            "broker %(broker)s number %(broker_id)s at %(address)s is removed from the routes: %(reason)s",
            {"broker": name, "broker_id": broker_id, "address": address, "reason": why},
        )


HANDLERS: dict[int, RequestHandler[NameServerContext]] = {
    RequestCode.REGISTER_BROKER: register,
    RequestCode.UNREGISTER_BROKER: unregister,
    RequestCode.QUERY_DATA_VERSION: compare_version,
    RequestCode.BROKER_HEARTBEAT: heartbeat,
    RequestCode.GET_BROKER_MEMBER_GROUP: member_group,
}
