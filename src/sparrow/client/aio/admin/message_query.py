"""Queries for messages: by key, by unique id, and by offset id."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from ipaddress import ip_address

from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.topic_route import TopicRoute
from sparrow.model.errors import ProtocolError, Refused
from sparrow.model.message import StoredMessage
from sparrow.net.address import Address
from sparrow.wire import record
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.headers import QueryMessage, ViewMessage
from sparrow.wire.message_ids import parse_offset_id

END_OF_TIME_MS = (1 << 63) - 1


async def query_by_key(
    session: ClientSession, route: TopicRoute, key: str, *, limit: int, begin_ms: int, end_ms: int
) -> list[StoredMessage]:
    """Return the newest `limit` messages with the key, the oldest of them first."""
    found = await _query_all(session, route, QueryMessage(route.topic, key, limit, begin_ms, end_ms))
    # Brokers search by hash: drop what only has the same hash.
    exact = [each for each in found if each.topic == route.topic and (key in each.keys or each.unique_key == key)]
    return exact[-limit:]


async def query_by_unique_key(session: ClientSession, route: TopicRoute, unique_key: str) -> StoredMessage | None:
    """Return the first copy of the message with that id; a retried send may have stored several."""
    header = QueryMessage(route.topic, unique_key, 32, 0, END_OF_TIME_MS, by_unique_key=True)
    found = await _query_all(session, route, header)
    return next((each for each in found if each.topic == route.topic and each.unique_key == unique_key), None)


async def view_by_offset_id(
    session: ClientSession, offset_id: str, *, only: Collection[str] | None = None
) -> StoredMessage:
    """Return the message at an offset id. With `only`, connect to no other address than these."""
    try:
        host, physical_offset = parse_offset_id(offset_id)
    except ProtocolError as cause:
        raise Refused(f"{offset_id!r} is no offset id: give the topic if it is a unique id") from cause
    address = str(Address(str(ip_address(host.ip)), host.port))
    if only is not None and address not in only:
        raise Refused(f"{offset_id!r} contains the address {address}, which is no broker of the cluster")
    answer = await session.invoke_unchecked(address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(physical_offset))
    if answer.code != ResponseCode.SUCCESS:
        raise Refused(f"{address} has no message {offset_id!r}: {answer.remark or error_for_response(answer.code)}")
    return record.decode(answer.body)


async def _query_all(session: ClientSession, route: TopicRoute, header: QueryMessage) -> list[StoredMessage]:
    """Query one member of every broker, and return the messages by store time."""
    addresses = [address for name in route.addresses if (address := route.address_of(name)) is not None]
    answers = await asyncio.gather(
        *(session.invoke_unchecked(each, RequestCode.QUERY_MESSAGE, header) for each in addresses)
    )
    found: list[StoredMessage] = []
    for answer in answers:
        if answer.code == ResponseCode.SUCCESS:
            found += record.decode_all(answer.body)
        elif answer.code != ResponseCode.QUERY_NOT_FOUND:
            raise error_for_response(answer.code, answer.remark)
    return sorted(found, key=lambda each: (each.store_ms, each.physical_offset))
